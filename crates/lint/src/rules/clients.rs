//! Rules about clients: access, protocols and limits.

use weir_conf::{BlockPath, Directive, Error};

use super::{found, text, variable_with_prefix};

/// An `allow` or `deny` after a rule for all clients is never reached.
pub(super) fn access_order<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let is_rule = |d: &Directive| d.name.is("allow") || d.name.is("deny");
    is_rule(d).then_some(())?;
    let before = scope.inner().iter().take_while(|other| !std::ptr::eq(*other, d));
    let all = before.filter(|other| is_rule(other)).find(|other| text(other.arg(0)) == "all")?;
    found(
        d,
        d.arg(0)?,
        format!(
            "\"{} all\" in line {} fits every client, so this rule is never reached",
            all.name.lossy(),
            all.end.line
        ),
        "put the rule for all last",
    )
}

/// A whole server accepts bodies of any size.
pub(super) fn endless_body<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let whole = scope.around("location").is_none() && d.name.is("client_max_body_size");
    (whole && matches!(text(d.arg(0)), "0" | "0m" | "0k")).then_some(())?;
    // Unbuffered bodies do not fill the disk.
    let is_buffering =
        |d: &Directive| d.name.str().is_some_and(|name| name.ends_with("_request_buffering"));
    let mut buffering = scope.outwards().flatten().filter(|d| is_buffering(d));
    (!buffering.any(|d| text(d.arg(0)) == "off")).then_some(())?;
    found(
        d,
        d.arg(0)?,
        "a body may have any size, and any client may fill the disk with it",
        "say the largest that is meant, in the location where it is",
    )
}

/// A limit whose key is a value that clients choose limits nothing.
pub(super) fn key_of_the_client<'a>(_: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    (d.name.is("limit_req_zone") || d.name.is("limit_conn_zone")).then_some(())?;
    let key = d.arg(0)?;
    let name = variable_with_prefix(
        key.str()?,
        &["http_", "arg_", "cookie_", "proxy_add_x_forwarded_for"],
    )?;
    found(
        d,
        key,
        format!(
            "a client that sends another ${name} each time is never limited, and fills the zone"
        ),
        "limit by $binary_remote_addr; behind a proxy, with set_real_ip_from and real_ip_header",
    )
}

/// Port 443 without TLS.
pub(super) fn listen_without_ssl<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let server = scope.block().filter(|block| block.name.is("server") && d.name.is("listen"))?;
    let to = text(d.arg(0));
    let tls = d.args.iter().any(|word| word.is("ssl") || word.is("quic"));
    let certified = !scope.holding("ssl_certificate").is_empty();
    let old = server.block().iter().any(|d| d.name.is("ssl") && text(d.arg(0)) == "on");
    ((to == "443" || to.ends_with(":443")) && !tls && !old && scope.around("http").is_some())
        .then_some(())?;
    let more = if certified { ", though there is a certificate" } else { "" };
    found(
        d,
        d.arg(0)?,
        format!("port 443 is spoken to without TLS{more}"),
        format!("listen {to} ssl;"),
    )
}

/// Obsolete versions of TLS. RFC 8996.
pub(super) fn old_tls<'a>(_: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    (d.name.lossy().ends_with("ssl_protocols")).then_some(())?;
    let old = d.args.iter().find(|word| {
        word.str().is_some_and(|text| ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1"].contains(&text))
    })?;
    found(
        d,
        old,
        format!("{} is broken, or not spoken any more (RFC 8996)", old.lossy()),
        "ssl_protocols TLSv1.2 TLSv1.3; which is the default",
    )
}

/// `valid_referers none` accepts requests without the field.
pub(super) fn referer_none<'a>(_: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let none =
        d.args.iter().find(|word| word.is("none")).filter(|_| d.name.is("valid_referers"))?;
    found(
        d,
        none,
        "a request without a Referer is let in, and any page may leave it out",
        "take none away if this is meant as a protection",
    )
}

/// Any client may set its own address.
pub(super) fn trusts_every_client<'a>(_: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let who = d.arg(0).filter(|_| d.name.is("set_real_ip_from"))?;
    matches!(text(Some(who)), "0.0.0.0/0" | "::/0").then_some(())?;
    found(
        d,
        who,
        "any client may claim any address, and so evade limits, access rules and logs",
        "name the addresses of your proxies",
    )
}

/// The dashboard, status or API is open to all clients.
pub(super) fn open_panel<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    weir_conf::open_panel(scope, d)
}

/// `allow` has no effect without `deny`.
pub(super) fn allow_without_deny<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    (d.name.is("allow") && text(d.arg(0)) != "all").then_some(())?;
    let own: Vec<_> = scope.inner().iter().filter(|d| d.name.is("allow")).collect();
    // Reported once per block.
    std::ptr::eq(*own.first()?, d).then_some(())?;
    let denies = scope.inner().iter().any(|d| d.name.is("deny"));
    (!denies).then_some(())?;
    found(
        d,
        &d.name,
        "nothing is denied here, so every client may come",
        "add behind it: deny all;",
    )
}

/// `return` answers before `deny` is checked. An error status is no problem.
pub(super) fn return_before_access<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let in_location = scope.block().is_some_and(|block| block.name.is("location"));
    let says_no = text(d.arg(0)).starts_with(['4', '5']);
    (d.name.is("return") && in_location && !says_no).then_some(())?;
    let guards = ["deny", "auth_basic", "auth_request"].map(|name| scope.holding(name));
    let guard = guards.iter().flatten().find(|guard| text(guard.arg(0)) != "off")?;
    found(
        d,
        &d.name,
        format!(
            "\"return\" answers before \"{}\" in line {} is asked: every client gets it",
            guard.name.lossy(),
            guard.end.line
        ),
        "put what is to be protected into a file, or behind proxy_pass",
    )
}

/// A regular expression for the origin of a request that other sites can match.
pub(super) fn origin_pattern<'a>(_: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    d.name.is("if").then_some(())?;
    let of = text(d.arg(0)).trim_start_matches('(');
    (matches!(of, "$http_origin" | "$http_referer") && text(d.arg(1)).contains('~'))
        .then_some(())?;
    let word = d.arg(2)?;
    let pattern = word.str()?.trim_end_matches(')').trim_start_matches('(');
    let starts = pattern.starts_with('^');
    let ends = pattern.ends_with(['$', '/', '*', '+']);
    let why = match (starts, ends) {
        (false, _) => "it may stand anywhere: http://evil.example/?your.site fits",
        (_, false) => "more may follow: http://your.site.evil.example fits",
        _ => return None,
    };
    found(
        d,
        word,
        format!("other sites fit this pattern: {why}"),
        "begin it with ^https?:// and end it with (/|$)",
    )
}

/// `worker_rlimit_nofile` is too small for `worker_connections`.
pub(super) fn few_files<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let number = |d: &Directive| text(d.arg(0)).parse::<u64>().ok();
    let files = number(d).filter(|_| d.name.is("worker_rlimit_nofile"))?;
    let connections = scope.anywhere("worker_connections").first().and_then(|d| number(d))?;
    let passes = scope.anywhere("proxy_pass").len() + scope.anywhere("fastcgi_pass").len();
    let wanted = connections.saturating_mul(2);
    (passes > 0 && files < wanted).then_some(())?;
    found(
        d,
        d.arg(0)?,
        format!(
            "a worker may open {files} files, and {connections} connections to clients need as many again to servers"
        ),
        format!("worker_rlimit_nofile {};", wanted.saturating_add(1024)),
    )
}
