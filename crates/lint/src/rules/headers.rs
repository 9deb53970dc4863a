//! Rules about header fields.

use weir_conf::{BlockPath, Directive, Error, uses_variable};

use super::{found, text, variable_with_prefix};

/// The entries of an outer list that a list in an inner block replaces.
fn replaced_entries<'a>(
    scope: &BlockPath<'a>,
    d: &'a Directive,
    name: &str,
) -> Option<Vec<String>> {
    d.name.is(name).then_some(())?;
    let own = |list: &'a [Directive]| list.iter().filter(|d| d.name.is(name)).collect::<Vec<_>>();
    let mut lists = scope.outwards().map(own);
    let inner = lists.next()?;
    // Reported once per block.
    std::ptr::eq(*inner.first()?, d).then_some(())?;
    let outer = lists.find(|list| !list.is_empty())?;
    let key = |d: &Directive| text(d.arg(0)).to_ascii_lowercase();
    let missing: Vec<String> = outer
        .iter()
        .filter(|outer| !inner.iter().any(|inner| key(inner) == key(outer)))
        .map(|outer| text(outer.arg(0)).to_owned())
        .collect();
    (!missing.is_empty()).then_some(missing)
}

/// `add_header` in an inner block replaces those of outer blocks.
pub(super) fn add_header_lost<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let missing = replaced_entries(scope, d, "add_header")?;
    let inherits = scope.holding("add_header_inherit");
    inherits.iter().all(|d| !d.args.iter().any(|word| word.is("merge"))).then_some(())?;
    found(
        d,
        &d.name,
        format!(
            "in this block, the add_header of {} from outside holds no more",
            missing.join(", ")
        ),
        "repeat them here, or say: add_header_inherit merge;",
    )
}

/// `proxy_set_header` in an inner block replaces those of outer blocks.
pub(super) fn proxy_set_header_lost<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let missing = replaced_entries(scope, d, "proxy_set_header")?;
    found(
        d,
        &d.name,
        format!(
            "in this block, the proxy_set_header of {} from outside holds no more",
            missing.join(", ")
        ),
        "repeat them here, or include one file in both places",
    )
}

/// `$uri` is decoded, so a line break in it begins another field.
pub(super) fn decoded_uri<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let redirects = d.name.is("return") && text(d.arg(0)).starts_with('3')
        || d.name.is("add_header")
        || d.name.is("more_set_headers")
        || d.name.is("more_set_input_headers")
        || d.name.is("rewrite")
            && d.args.iter().any(|word| word.is("permanent") || word.is("redirect"));
    let passed = d.name.is("proxy_pass");
    // `rewrite ^ $request_uri;` sets $uri to the undecoded URI.
    let is_raw = |d: &Directive| d.name.is("rewrite") && text(d.arg(1)) == "$request_uri";
    let is_encoded = passed && scope.outwards().flatten().any(is_raw);
    ((redirects || passed) && !is_encoded).then_some(())?;
    let from = usize::from(!passed);
    let word = d.args.iter().skip(from).find(|word| {
        word.str()
            .is_some_and(|text| uses_variable(text, "uri") || uses_variable(text, "document_uri"))
    })?;
    let with_arguments = "$uri$is_args$args";
    let remedy = match word.str().is_some_and(|text| text.contains(with_arguments)) {
        true => format!("use $request_uri in place of {with_arguments}"),
        false => "use $request_uri, which has the arguments, too".to_owned(),
    };
    found(
        d,
        word,
        "$uri is decoded: \"%0d%0a\" in a path becomes a line end, and a \"?\" the begin of arguments",
        remedy,
    )
}

/// The groups of a regular expression that can match a line break: their numbers and names.
pub(super) fn loose_groups(regex: &str) -> Vec<String> {
    let (mut open, mut loose, mut number) = (Vec::<(Vec<String>, bool)>::new(), Vec::new(), 0);
    let mut rest = regex;
    while let Some(c) = rest.chars().next() {
        let mut step = c.len_utf8();
        match c {
            '\\' => step += rest[step..].chars().next().map_or(0, char::len_utf8),
            '(' => {
                let name = ["(?<", "(?P<", "(?'"].iter().find_map(|begin| {
                    let rest = rest.strip_prefix(begin)?;
                    let end = rest.find(['>', '\''])?;
                    rest.get(..end).filter(|name| !name.starts_with(['=', '!']))
                });
                let mut names = Vec::new();
                if name.is_some() || !rest.starts_with("(?") {
                    number += 1;
                    names.push(number.to_string());
                    names.extend(name.map(str::to_owned));
                }
                open.push((names, false));
            }
            ')' => {
                if let Some((names, is_loose)) = open.pop().filter(|(_, is_loose)| *is_loose) {
                    loose.extend(names);
                    open.last_mut().into_iter().for_each(|outer| outer.1 |= is_loose);
                }
            }
            '[' => {
                let end =
                    rest.get(2..).and_then(|class| class.find(']')).map_or(rest.len(), |at| at + 3);
                let class = rest.get(..end).unwrap_or_default();
                let keeps_out =
                    ["\\s", "\\r", "\\n", "\\x"].iter().any(|part| class.contains(part));
                if class.starts_with("[^") && !keeps_out {
                    open.last_mut().into_iter().for_each(|group| group.1 = true);
                }
                step = end;
            }
            '.' => open.last_mut().into_iter().for_each(|group| group.1 = true),
            _ => {}
        }
        rest = rest.get(step..).unwrap_or_default();
    }
    loose
}

/// A part of a decoded path, which may have a line break, in a redirect or a field.
pub(super) fn decoded_part<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let redirects = d.name.is("return") && text(d.arg(0)).starts_with('3');
    (redirects || d.name.is("add_header")).then_some(())?;
    let location = scope.around("location")?;
    let regex = location.arg(1).filter(|_| matches!(text(location.arg(0)), "~" | "~*"))?;
    let loose = loose_groups(regex.str()?);
    let word = d.arg(1)?;
    let name = loose.iter().find(|name| uses_variable(word.lossy().as_ref(), name))?;
    found(
        d,
        word,
        format!("${name} is a part of the decoded path: \"%0d%0a\" in it becomes a line end"),
        "let its group match what is meant alone, such as [\\w/.-]*",
    )
}

/// `add_header` adds a second Content-Type.
pub(super) fn type_twice<'a>(_: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let is_type = text(d.arg(0)).eq_ignore_ascii_case("content-type");
    (d.name.is("add_header") && is_type).then_some(())?;
    found(
        d,
        d.arg(0)?,
        "the answer gets a second Content-Type beside its own",
        "default_type, with an empty types { } if names have endings",
    )
}

/// A redirect to `$http_host`, which clients choose.
pub(super) fn host_of_the_client<'a>(_: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let tells = d.name.is("return") && text(d.arg(0)).starts_with('3');
    let word = d.arg(1).filter(|_| tells)?;
    uses_variable(word.str()?, "http_host").then_some(())?;
    found(
        d,
        word,
        "$http_host is whatever the client says, and the redirect leads there",
        "use $server_name, or let a default server refuse names that are not yours",
    )
}

/// Browsers ignore HSTS over HTTP.
pub(super) fn hsts_without_tls<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let is_hsts =
        d.name.is("add_header") && text(d.arg(0)).eq_ignore_ascii_case("strict-transport-security");
    let server = scope.around("server").filter(|_| is_hsts)?;
    let listens = || server.block().iter().filter(|d| d.name.is("listen"));
    let is_http = |d: &Directive| text(d.arg(0)) == "80" || text(d.arg(0)).ends_with(":80");
    // On another port, a proxy in front of it may terminate TLS.
    let tls = listens().any(|d| d.args.iter().any(|word| word.is("ssl") || word.is("quic")));
    let plain = !tls && listens().any(is_http);
    (plain && variable_with_prefix(text(d.arg(1)), &[""]).is_none()).then_some(())?;
    found(
        d,
        d.arg(0)?,
        "this server speaks no TLS, and over HTTP clients ignore Strict-Transport-Security",
        "put it into the server with `listen ... ssl`, and let this one redirect there",
    )
}

/// A line break in a field.
pub(super) fn header_of_lines<'a>(_: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let fields = [
        "add_header",
        "add_trailer",
        "proxy_set_header",
        "grpc_set_header",
        "more_set_headers",
        "more_set_input_headers",
    ];
    fields.iter().any(|name| d.name.is(name)).then_some(())?;
    let word = d.args.iter().find(|word| word.bytes.contains(&b'\n'))?;
    found(
        d,
        word,
        "the value has a line end: over HTTP/1.1 what follows may be taken for another field, and HTTP/2 forbids it",
        "write it in one line",
    )
}
