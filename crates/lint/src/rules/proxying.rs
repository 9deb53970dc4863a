//! Rules about upstream servers and caches.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};

use weir_conf::{BlockPath, Directive, Error, Word, uses_variable};

use super::headers::loose_groups;
use super::{found, text, variable_with_prefix};

/// The host of a `..._pass` URL.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = ["/", "$request_uri", "$uri", "$document_uri"];
    let end = path.iter().filter_map(|begin| rest.find(begin)).min();
    rest.get(..end.unwrap_or(rest.len())).unwrap_or_default()
}

const PASSES: [&str; 5] = ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass"];

fn passes(d: &Directive) -> bool {
    PASSES.iter().any(|name| d.name.is(name))
}

/// A host name with variables is resolved per request, which needs `resolver`.
pub(super) fn no_resolver<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    if d.name.is("ssl_stapling") && text(d.arg(0)) == "on" {
        let others = ["resolver", "ssl_stapling_file", "ssl_stapling_responder"];
        others.iter().all(|name| scope.holding(name).is_empty()).then_some(())?;
        return found(
            d,
            &d.name,
            "the name of the authority's responder cannot be looked up: nothing is stapled",
            "add: resolver 127.0.0.53; (or the name server of your network)",
        );
    }
    let host = host(text(d.arg(0).filter(|_| passes(d))));
    // Variables that hold addresses need no resolver.
    let is_variable = host.contains('$')
        && variable_with_prefix(host, &["server_addr", "upstream_addr"]).is_none();
    (is_variable && scope.holding("resolver").is_empty()).then_some(())?;
    let groups = scope.anywhere("upstream");
    let may_be_group = host.starts_with('$') && !groups.is_empty();
    (!may_be_group && !is_mapped_to_addresses(scope, host)).then_some(())?;
    let (when, end) = match is_http(scope) {
        true => ("a request", "502"),
        false => ("a client", "its connection is closed"),
    };
    found(
        d,
        d.arg(0)?,
        format!(
            "the name in \"{host}\" is looked up when {when} comes, and no \"resolver\" is said: {end}"
        ),
        "add: resolver 127.0.0.53; (or the name server of your network)",
    )
}

fn is_http(scope: &BlockPath<'_>) -> bool {
    scope.around("http").is_some()
}

/// A host without its port. An IPv6 address keeps its brackets.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    }
}

fn is_address(host: &str) -> bool {
    let name = without_port(host);
    let v6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    host.starts_with("unix:")
        || name.parse::<Ipv4Addr>().is_ok()
        || v6.is_some_and(|name| name.parse::<Ipv6Addr>().is_ok())
}

/// Whether the host is a variable of a `map` whose values are all addresses.
fn is_mapped_to_addresses(scope: &BlockPath<'_>, url_host: &str) -> bool {
    let name = without_port(url_host);
    let parameters = ["hostnames", "volatile"];
    let is_value = |line: &&Directive| !parameters.iter().any(|name| line.name.is(name));
    let has_addresses = |map: &Directive| {
        let mut values = map.block().iter().filter(is_value);
        values.all(|line| is_address(host(text(line.arg(0)))))
    };
    let maps = scope.anywhere("map");
    let mut own = maps.iter().filter(|map| text(map.arg(1)) == name).peekable();
    own.peek().is_some() && own.all(|map| has_addresses(map))
}

/// The client chooses the upstream server.
pub(super) fn server_of_the_client<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let url = d.arg(0).filter(|_| passes(d))?;
    let host = host(url.str()?);
    let name = variable_with_prefix(host, &["arg_", "http_", "cookie_", "host"])
        .or_else(|| part_of_the_path(scope, host))?;
    found(
        d,
        url,
        format!(
            "the client chooses by ${name} which server is asked, those inside your network included"
        ),
        "choose the server by a map of the values that you know",
    )
}

/// The host, if it is a group of the location's regular expression that matches anything.
fn part_of_the_path<'t>(scope: &BlockPath<'_>, host: &'t str) -> Option<&'t str> {
    let location = scope.around("location")?;
    let pattern = location.arg(1).filter(|_| matches!(text(location.arg(0)), "~" | "~*"))?;
    let name = without_port(host).strip_prefix('$')?;
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    loose_groups(pattern.str()?).iter().any(|group| group == name).then_some(name)
}

/// Several hosts share a cache whose key does not contain the host.
pub(super) fn cache_key_host<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let caches = ["proxy_cache_key", "fastcgi_cache_key", "uwsgi_cache_key", "scgi_cache_key"];
    caches.iter().any(|name| d.name.is(name)).then_some(())?;
    let key: String = d.args.iter().map(|word| word.lossy()).collect();
    let hosts = ["host", "http_host", "server_name", "proxy_host", "ssl_server_name", "request"];
    let has = hosts.iter().any(|name| uses_variable(&key, name))
        || variable_with_prefix(&key, &["site", "vhost", "domain"]).is_some();
    let cache = d.name.str()?.strip_suffix("_key")?;
    (!has && share_a_zone(scope, cache)).then_some(())?;
    found(
        d,
        d.arg(0)?,
        "several servers may store in one cache, and their answers have the same keys",
        "begin the key with $scheme$host",
    )
}

/// Whether two servers store in one cache zone. `cache` is the name of the directive.
fn share_a_zone<'a>(scope: &BlockPath<'a>, cache: &str) -> bool {
    let zones = |list: &'a [Directive]| {
        let zones = BlockPath::new(list).anywhere(cache).into_iter().map(|d| text(d.arg(0)));
        zones.filter(|zone| *zone != "off").collect::<BTreeSet<_>>()
    };
    let servers = scope.anywhere("server").into_iter().map(Directive::block);
    let servers: Vec<_> = servers.filter(|lines| !lines.is_empty()).collect();
    let mut used: Vec<_> = servers.iter().flat_map(|lines| zones(lines)).collect();
    used.sort_unstable();
    let all: Vec<_> = scope.anywhere(cache).into_iter().map(|d| text(d.arg(0))).collect();
    let is_inherited = all.iter().any(|zone| *zone != "off" && !used.contains(zone));
    used.windows(2).any(|pair| pair[0] == pair[1]) || (is_inherited && servers.len() > 1)
}

/// Directives that defeat the rules of `..._cache_rules rfc9111`, and one that has no effect
/// without them.
pub(super) fn defeats_cache_rules<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let (family, name) = d.name.str()?.split_once('_')?;
    ["proxy", "fastcgi", "uwsgi", "scgi"].contains(&family).then_some(())?;
    let rules = scope.holding(&format!("{family}_cache_rules"));
    let by_standard = rules.iter().any(|d| text(d.arg(0)) == "rfc9111");
    let (word, what, remedy) = match name {
        "cache_control_field" if !by_standard && text(d.arg(0)) != "off" => {
            let what = "this field is read by the rules of RFC 9111 alone";
            (d.arg(0)?, what.to_owned(), format!("add: {family}_cache_rules rfc9111;"))
        }
        _ if !by_standard => return None,
        "ignore_headers" => {
            const NEEDED: [&str; 3] = ["Cache-Control", "Expires", "Vary"];
            let needed =
                |word: &&Word| NEEDED.iter().any(|n| text(Some(*word)).eq_ignore_ascii_case(n));
            let word = d.args.iter().find(needed)?;
            let what =
                format!("answers are stored and sent against what their {} says", word.lossy());
            (word, what, "leave it out: the rules of RFC 9111 read it".to_owned())
        }
        "hide_header" => {
            const TOLD: [&str; 6] = ["Age", "Cache-Control", "Date", "ETag", "Expires", "Vary"];
            let told =
                |word: &&Word| TOLD.iter().any(|n| text(Some(*word)).eq_ignore_ascii_case(n));
            let word = d.args.iter().find(told)?;
            let what = format!(
                "caches of clients do not see {}, and keep answers for too long or not at all",
                word.lossy()
            );
            (word, what, "leave it out".to_owned())
        }
        "cache_valid" if d.args.iter().any(|word| word.is("any")) => {
            let what = "errors without a lifetime of their own are stored, too".to_owned();
            (
                d.args.iter().find(|word| word.is("any"))?,
                what,
                "name the statuses that may be stored".to_owned(),
            )
        }
        "cache_key" => {
            let key: String = d.args.iter().map(|word| word.lossy()).collect();
            let has = ["request_uri", "uri", "args", "request", "document_uri"];
            has.iter().all(|name| !uses_variable(&key, name)).then_some(())?;
            let what =
                "the key has no part of the URL: all answers take the place of one".to_owned();
            (d.arg(0)?, what, "end the key with $request_uri".to_owned())
        }
        _ => return None,
    };
    found(d, word, what, remedy)
}

/// `Connection: upgrade` in all requests prevents keep-alive connections to servers.
pub(super) fn connection_upgrade<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let is_connection =
        d.name.is("proxy_set_header") && text(d.arg(0)).eq_ignore_ascii_case("connection");
    let value = d.arg(1).filter(|_| is_connection)?;
    value.str()?.eq_ignore_ascii_case("upgrade").then_some(())?;
    (!scope.block().is_some_and(is_for_websockets)).then_some(())?;
    found(
        d,
        value,
        "ordinary requests ask for an upgrade, too, and their connections to the server are not kept",
        "map $http_upgrade $connection { default upgrade; '' ''; } and: proxy_set_header Connection $connection;",
    )
}

/// Whether the path of a location shows that it serves only WebSockets.
fn is_for_websockets(location: &Directive) -> bool {
    let path = text(location.arg(1).or(location.arg(0))).to_ascii_lowercase();
    path.contains("websocket") || path.trim_end_matches(['/', '$']).ends_with("/ws")
}

/// A new connection to a server per request, although keep-alive is the default.
pub(super) fn no_keepalive<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let (word, why, remedy) = match d.name.str()? {
        "proxy_http_version" if text(d.arg(0)) == "1.0" => {
            (d.arg(0)?, "HTTP/1.0 keeps no connection to a server", "leave it out, or say 1.1")
        }
        "keepalive" if text(d.arg(0)) == "0" => (
            d.arg(0)?,
            "each request opens a connection to a server of this group",
            "leave it out: 32 idle ones are kept by default",
        ),
        "proxy_set_header" if text(d.arg(0)).eq_ignore_ascii_case("connection") => {
            let close = d.arg(1).filter(|value| text(Some(value)).eq_ignore_ascii_case("close"))?;
            (close, "the server closes its connection after each answer", "leave it out")
        }
        "fastcgi_pass" => {
            let on = |d: &&Directive| text(d.arg(0)).eq_ignore_ascii_case("on");
            scope.holding("fastcgi_keep_conn").iter().all(|d| !on(d)).then_some(())?;
            let to = d.arg(0)?;
            let groups = scope.anywhere("upstream");
            let group =
                groups.iter().find(|group| group.arg(0).is_some_and(|n| n.bytes == to.bytes));
            let keeps = |d: &Directive| d.name.is("keepalive") && text(d.arg(0)) != "0";
            group?.block().iter().any(keeps).then_some(())?;
            let why =
                "its group keeps connections, and FastCGI is not told to: each request opens one";
            (to, why, "add: fastcgi_keep_conn on;")
        }
        _ => return None,
    };
    found(d, word, why, remedy)
}

/// The host of a `proxy_pass`, if it is an upstream server: a group, an address or this machine.
/// Another host is an independent site.
fn behind<'t>(scope: &BlockPath<'_>, d: &'t Directive) -> Option<&'t str> {
    let host = host(text(d.arg(0).filter(|_| d.name.is("proxy_pass"))));
    let is_group = scope.anywhere("upstream").iter().any(|group| text(group.arg(0)) == host);
    (is_address(host) || is_group || without_port(host) == "localhost").then_some(host)
}

/// An application receives neither the host name of its request nor the client's address.
pub(super) fn not_forwarded<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let host = behind(scope, d).filter(|_| is_http(scope))?;
    let told: Vec<String> = scope
        .holding("proxy_set_header")
        .iter()
        .map(|d| text(d.arg(0)).to_ascii_lowercase())
        .collect();
    let tells = |names: &[&str]| told.iter().any(|told| names.contains(&told.as_str()));
    let passes_on = scope.holding("proxy_pass_request_headers");
    (passes_on.is_empty()).then_some(())?;
    let (mut what, mut remedy) = (Vec::new(), Vec::new());
    if !tells(&["host"]) {
        what.push(format!("is asked for the host \"{host}\""));
        remedy.push("proxy_set_header Host $host;");
    }
    if !tells(&["x-forwarded-for", "x-real-ip", "forwarded", "x-client-ip"]) {
        what.push("takes this server for its client".to_owned());
        remedy.push("proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;");
    }
    (!what.is_empty()).then_some(())?;
    found(
        d,
        d.arg(0)?,
        format!("the server behind {}", what.join(" and ")),
        format!("add: {}", remedy.join(" ")),
    )
}

/// A `proxy_pass` to the server itself.
pub(super) fn proxy_to_itself<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let (url, server) = (d.arg(0).filter(|_| d.name.is("proxy_pass"))?, scope.around("server")?);
    let url_text = url.str()?;
    let (host, port) = match url_text.split_once("://").filter(|_| is_http(scope)) {
        Some(("https", rest)) => rest.rsplit_once(':').unwrap_or((rest, "443")),
        Some((_, rest)) => rest.rsplit_once(':').unwrap_or((rest, "80")),
        None => url_text.rsplit_once(':').filter(|_| !is_http(scope))?,
    };
    let port: u16 = port.parse().ok()?;
    let is_loopback = |host: &str| ["localhost", "127.0.0.1", "[::1]"].contains(&host);
    // `localhost` stands for both address families.
    let are_same = |a: &str, b: &str| {
        a == b || [a, b].contains(&"localhost") && is_loopback(a) && is_loopback(b)
    };
    let reaches = |listen: &&Directive| {
        let to = text(listen.arg(0));
        let (address, of) = to.rsplit_once(':').unwrap_or(("", to));
        let any = matches!(address, "" | "*" | "0.0.0.0" | "[::]");
        of.parse() == Ok(port) && (are_same(address, host) || any && is_loopback(host))
    };
    let mut listens = server.block().iter().filter(|d| d.name.is("listen"));
    let as_other = scope
        .holding("proxy_set_header")
        .iter()
        .any(|d| text(d.arg(0)).eq_ignore_ascii_case("host"));
    (listens.any(|listen| reaches(&listen)) && !as_other).then_some(())?;
    let what = if is_http(scope) { "request" } else { "connection" };
    found(
        d,
        url,
        format!(
            "this server listens there itself: a {what} goes round until no connection is left"
        ),
        "name the port of the application",
    )
}

/// The response buffer is smaller than the allowed request header.
pub(super) fn small_buffer<'a>(scope: &BlockPath<'a>, d: &'a Directive) -> Option<Error> {
    let kind = PASSES.iter().find(|name| d.name.is(name))?.strip_suffix("_pass")?;
    let large = scope.holding("large_client_header_buffers");
    let size = |word: Option<&weir_conf::Word>| weir_conf::values::size(&word?.bytes);
    let wanted = size(large.first()?.arg(1))?;
    let own = scope.holding(&format!("{kind}_buffer_size"));
    let has = own.first().map_or(Some(4096), |d| size(d.arg(0)))?;
    (wanted > 8192 && has < wanted).then_some(())?;
    found(
        d,
        &d.name,
        format!(
            "fields of {wanted} bytes are let in, and the server's answer may have {has}: one that repeats a cookie or a URL is a 502"
        ),
        format!("add: {kind}_buffer_size {}k;", wanted.div_ceil(1024)),
    )
}
