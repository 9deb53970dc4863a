//! Access to a location: CORS, authentication, limits and headers of answers.

use weir_conf::Directive;

use super::hosts::{Host, Route};
use super::keys::limit_key;
use super::lines::{digest, header_line, line, subrequest_name, when};
use super::location::HeaderMap;
use super::made::Made;
use super::sources::Source;
use super::work::Work;
use crate::annotations::values::{self, Url};
use crate::annotations::{AuthRequest, Options};
use crate::report::Severity;

pub(super) fn cors(route: &Route, list: &mut Vec<Directive>) {
    let Some(cors) = &route.source.options.cors else { return };
    let set = |value: &str| line("set", ["$cors", value]);
    let origin = match &cors.origins {
        None => {
            list.push(set("true"));
            "*"
        }
        Some(pattern) => {
            list.push(set(""));
            list.push(when("$http_origin", "~*", pattern, vec![set("true")]));
            "$http_origin"
        }
    };
    list.push(when("$request_method", "=", "OPTIONS", vec![set("${cors}options")]));
    let mut answer =
        vec![header_line("more_set_headers", &format!("Access-Control-Allow-Origin: {origin}"))];
    answer.extend(
        cors.headers
            .iter()
            .map(|(name, value)| header_line("more_set_headers", &format!("{name}: {value}"))),
    );
    list.push(when("$cors", "=", "true", answer.clone()));
    answer.push(line("return", ["204"]));
    list.push(when("$cors", "=", "trueoptions", answer));
}

pub(super) fn basic(
    work: &mut Work<'_>,
    route: &Route,
    list: &mut Vec<Directive>,
    extra: &mut Vec<(String, String)>,
) -> Result<(), String> {
    let source = &route.source;
    let Some(basic) = &source.options.basic else { return Ok(()) };
    let data = work.secret(&source.id, &basic.secret)?;
    let text = match basic.map {
        false => data.get("auth").ok_or("the Secret has no key \"auth\"")?.0.clone(),
        true => {
            let lines =
                data.iter().map(|(user, hash)| [user.as_bytes(), b":", &hash.0, b"\n"].concat());
            lines.collect::<Vec<_>>().concat()
        }
    };
    let file = work.file("auth", text);
    list.push(line("auth_basic", [basic.realm.as_str()]));
    list.push(line("auth_basic_user_file", [file.as_str()]));
    extra.push(("Authorization".to_owned(), String::new()));
    Ok(())
}

/// The headers of a ConfigMap for the authentication service. Without one of them, clients could
/// send it themselves.
pub(super) fn service_headers(
    work: &mut Work<'_>,
    source: &Source,
    auth: &AuthRequest,
) -> Result<Vec<Directive>, String> {
    let Some(name) = &auth.set_headers else { return Ok(Vec::new()) };
    let HeaderMap { good, wrong } = work.map_of_headers(source, name)?;
    if let Some(header) = wrong.first() {
        return Err(format!("the header \"{header}\" or its value is wrong"));
    }
    Ok(good.iter().map(|(name, value)| line("proxy_set_header", [name.as_str(), value])).collect())
}

/// The directives that cache answers of the authentication service for a location.
pub(super) fn cached(
    work: &mut Work<'_>,
    source: &Source,
    auth: &AuthRequest,
    key: &str,
) -> Vec<Directive> {
    let Some((by, valid)) = &auth.cache else { return Vec::new() };
    let dir = work.settings.state.with_file_name("auth-cache").display().to_string();
    let words = [
        dir.as_str(),
        "levels=1:2",
        "keys_zone=auth_cache:10m",
        "max_size=128m",
        "inactive=30m",
        "use_temp_path=off",
    ];
    work.share(&source.id, "auth cache".to_owned(), vec![line("proxy_cache_path", words)]);
    let mut list = vec![
        line("proxy_buffering", ["on"]),
        line("proxy_cache", ["auth_cache"]),
        line("proxy_cache_key", [format!("{key} {by}").as_str()]),
        line("proxy_ignore_headers", ["Set-Cookie"]),
    ];
    list.extend(valid.iter().map(|w| line("proxy_cache_valid", w.iter().map(String::as_str))));
    list
}

/// The URL of the authentication service, or of a group of it with connections kept alive. As in
/// ingress-nginx, there is none of these if clients may use HTTP/2.
pub(super) fn target(
    work: &mut Work<'_>,
    source: &Source,
    auth: &AuthRequest,
    key: &str,
) -> (Vec<Directive>, String) {
    let http2 = work.settings.defaults.get("use-http2").is_none_or(|text| text.trim() != "false");
    let Some([connections, requests, seconds]) = auth.keepalive.filter(|_| !http2) else {
        return resolved(work, source, (auth.name(), "$auth_host"), &auth.url);
    };
    let group = format!("auth_{key}");
    let port = auth.url.port.unwrap_or(if auth.url.scheme == "https" { 443 } else { 80 });
    let one = |name: &str, word: String| line(name, [word.as_str()]);
    let host = work.settings.whole_name(&auth.url.host);
    let server = format!("{host}:{port}");
    let mut words = vec![server.as_str()];
    words.extend(is_resolved_per_request(work, &auth.url).then_some("resolve"));
    let block = vec![
        super::zones::zone(&group, 1),
        line("server", words),
        one("keepalive", connections.to_string()),
        one("keepalive_requests", requests.to_string()),
        one("keepalive_timeout", format!("{seconds}s")),
    ];
    let made = line("upstream", [group.as_str()]).with_block(block);
    work.share(&source.id, format!("upstream {group}"), vec![made]);
    (Vec::new(), format!("{}://{group}{}", auth.url.scheme, auth.url.rest))
}

/// The directives for requests to the authentication service that other annotations of the
/// location ask for. As in ingress-nginx, its answers have the buffers of the location's: they may
/// be large, since they set cookies.
pub(super) fn of_location(options: &Options, auth: &AuthRequest, sent: &mut Vec<Directive>) {
    // Sizes limit each other, so those of a snippet and of annotations do not mix.
    let sizes = ["proxy_buffer_size", "proxy_buffers", "proxy_busy_buffers_size"];
    let has = |name: &str| sent.iter().any(|directive| directive.name.is(name));
    let with_sizes = !sizes.iter().any(|name| has(name));
    let wanted = |name: &str| match name {
        "proxy_buffering" => auth.cache.is_none() && !has(name),
        "proxy_http_version" => !has(name),
        name => with_sizes && sizes.contains(&name),
    };
    let own = options.simple.iter().filter(|(name, _)| wanted(name));
    let own: Vec<Directive> =
        own.map(|(name, words)| line(name, words.iter().map(String::as_str))).collect();
    sent.extend(own);
}

/// The headers about a client's certificate, if the host asks for one. Without them, clients could
/// send them.
pub(super) fn certificate_headers(host: &Host) -> Vec<(&'static str, &'static str)> {
    let mut all = host.sources.iter();
    let found = all.find_map(|source| source.options.client_certificates.as_ref());
    let Some(certificates) = found else { return Vec::new() };
    let mut list = vec![
        ("ssl-client-verify", "$ssl_client_verify"),
        ("ssl-client-subject-dn", "$ssl_client_s_dn"),
        ("ssl-client-issuer-dn", "$ssl_client_i_dn"),
    ];
    list.extend(certificates.pass.then_some(("ssl-client-cert", "$ssl_client_escaped_cert")));
    list
}

/// What an authentication service of a location is asked with.
pub(super) struct AuthParts<'a> {
    pub(super) auth: &'a AuthRequest,
    pub(super) target: &'a str,
    pub(super) key: &'a str,
    /// Directives for answers over TLS.
    pub(super) of_tls: Vec<Directive>,
    /// Directives for answers to other origins.
    pub(super) cors: Vec<Directive>,
    /// Further directives for the request.
    pub(super) sent: Vec<Directive>,
}

pub(super) fn auth_request(
    parts: AuthParts<'_>,
    made: &mut Made,
    extra: &mut Vec<(String, String)>,
) {
    let AuthParts { auth, target, key, of_tls, cors, sent } = parts;
    let at = subrequest_name("external-auth", key);
    let redirect = auth.redirect.as_deref().unwrap_or("$request_uri");
    let mut ask = vec![
        line("internal", []),
        line("access_log", ["off"]),
        line("proxy_pass_request_body", ["off"]),
    ];
    ask.extend(auth.method.as_ref().map(|method| line("proxy_method", [method.as_str()])));
    let headers = [
        ("Content-Length", ""),
        ("X-Forwarded-Proto", ""),
        ("X-Request-ID", "$req_id"),
        ("Host", &auth.url.host),
        ("X-Original-URL", "$scheme://$http_host$request_uri"),
        ("X-Original-Method", "$request_method"),
        ("X-Sent-From", "nginx-ingress-controller"),
        ("X-Real-IP", "$remote_addr"),
        ("X-Forwarded-For", "$full_x_forwarded_for"),
        ("X-Auth-Request-Redirect", redirect),
    ];
    let of_method = [("X-Original-URI", "$request_uri"), ("X-Scheme", "$pass_access_scheme")];
    let of_method = of_method.into_iter().filter(|_| auth.method.is_some());
    let headers = headers.into_iter().chain(of_method);
    ask.extend(headers.map(|(name, value)| line("proxy_set_header", [name, value])));
    ask.extend(sent);
    ask.push(line("proxy_ssl_server_name", ["on"]));
    ask.push(line("proxy_ssl_name", [auth.url.host.as_str()]));
    ask.push(line("proxy_pass", [target]));
    made.beside.push(line("location", ["=", &at]).with_block(ask));
    made.inside.push(line("auth_request", [at.as_str()]));
    made.inside.push(line("auth_request_set", ["$auth_cookie", "$upstream_http_set_cookie"]));
    let mut cookie = vec!["Set-Cookie", "$auth_cookie"];
    cookie.extend(auth.always_cookie.then_some("always"));
    made.inside.push(line("add_header", cookie));
    made.inside.extend(of_tls);
    for (n, name) in auth.headers.iter().enumerate() {
        let variable = format!("$auth_header_{n}");
        let answer = format!("$upstream_http_{}", name.to_lowercase().replace('-', "_"));
        made.inside.push(line("auth_request_set", [variable.as_str(), &answer]));
        extra.push((name.clone(), variable));
    }
    if let Some(signin) = &auth.signin {
        let name = format!("@signin-{key}");
        made.inside.push(line("error_page", ["401", "=", &name]));
        let mut escape = line("set_by_lua_block", ["$escaped_request_uri"]);
        escape.body =
            weir_conf::DirectiveBody::Raw(b" return ngx.escape_uri(ngx.var.request_uri) ".to_vec());
        let cookie = line("add_header", ["Set-Cookie", "$auth_cookie"]);
        let mut inside = vec![line("internal", []), escape, cookie];
        inside.extend(cors);
        inside.push(line("return", ["302", signin]));
        made.beside.push(line("location", [name.as_str()]).with_block(inside));
    }
}

pub(super) fn limits(work: &mut Work<'_>, source: &Source, list: &mut Vec<Directive>) {
    let (id, limits) = (&source.id, &source.options.limits);
    let key = digest(id.to_string().as_bytes());
    let by = limit_key(work.settings).to_owned();
    let variable = match limits.free.is_empty() {
        true => by,
        false => {
            let (free, limit) = (format!("$free_{key}"), format!("$limit_{key}"));
            let mut rows = vec![line("default", ["0"])];
            rows.extend(limits.free.iter().map(|network| line(network, ["1"])));
            let geo = line("geo", ["$remote_addr", &free]).with_block(rows);
            let rows = vec![line("0", [by.as_str()]), line("1", [""])];
            let map = line("map", [free.as_str(), &limit]).with_block(rows);
            work.share(id, format!("limit {key}"), vec![geo, map]);
            limit
        }
    };
    if let Some(count) = limits.connections {
        let zone = format!("conn_{key}");
        let words = [variable.as_str(), &format!("zone={zone}:5m")];
        work.share(id, format!("zone {zone}"), vec![line("limit_conn_zone", words)]);
        list.push(line("limit_conn", [zone.as_str(), &count.to_string()]));
    }
    for (count, unit) in [(limits.second, "s"), (limits.minute, "m")] {
        let Some(count) = count else { continue };
        let zone = format!("req_{unit}_{key}");
        let words = [variable.clone(), format!("zone={zone}:5m"), format!("rate={count}r/{unit}")];
        let made = line("limit_req_zone", words.iter().map(String::as_str));
        work.share(id, format!("zone {zone}"), vec![made]);
        let burst = format!("burst={}", count.saturating_mul(limits.burst).min(1_000_000_000));
        list.push(line("limit_req", [format!("zone={zone}").as_str(), &burst, "nodelay"]));
    }
    for (value, name) in [(limits.rate_after, "limit_rate_after"), (limits.rate, "limit_rate")] {
        list.extend(value.map(|kilobytes| line(name, [format!("{kilobytes}k").as_str()])));
    }
}

/// Whether weir's resolver looks the host up while requests are served. A name without a dot is not
/// looked up: the system resolves it once, when the configuration is read.
fn is_resolved_per_request(work: &Work<'_>, url: &Url) -> bool {
    !url.has_address() && url.host.contains('.') && work.settings.resolves()
}

/// A URL for requests, and the directive that sets the variable in it. With a variable, weir
/// resolves the name while requests are served, and follows changes of its addresses.
pub(super) fn resolved(
    work: &mut Work<'_>,
    source: &Source,
    (about, variable): (&str, &str),
    url: &Url,
) -> (Vec<Directive>, String) {
    let port = url.port.map(|port| format!(":{port}")).unwrap_or_default();
    let with = |host: &str| format!("{}://{host}{port}{}", url.scheme, url.rest);
    if is_resolved_per_request(work, url) {
        let host = work.settings.whole_name(&url.host);
        return (vec![line("set", [variable, &host])], with(variable));
    }
    if !url.has_address() && url.rest.contains('$') {
        let what = match work.settings.resolves() {
            true => {
                "it has variables and a name without a dot, which name servers do not complete: its requests fail"
            }
            false => "it has a name and variables, and no resolver is set: its requests fail",
        };
        work.say(&source.id, Severity::Error, "NoResolver", about, what);
    }
    (Vec::new(), with(&url.host))
}

/// The directives for the headers of a ConfigMap in answers. A dollar in them does not begin a
/// variable.
pub(super) fn custom_headers(
    work: &mut Work<'_>,
    source: &Source,
    name: &str,
) -> Result<Vec<Directive>, String> {
    let id = &source.id;
    let data = work.own_config_map(id, name)?;
    let listed: Vec<&str> = work.settings.list("global-allowed-response-headers").collect();
    let allowed = |name: &str| {
        listed.is_empty() || listed.iter().any(|other| other.eq_ignore_ascii_case(name))
    };
    let mut list = Vec::new();
    let mut dollar = false;
    for (header, value) in data {
        let good = values::is_free_header(header)
            && value.len() <= values::LONGEST
            && !value.contains(char::is_control)
            && allowed(header);
        if !good {
            let what = format!("the header \"{header}\" or its value is not allowed");
            work.say(id, Severity::Warning, "InvalidHeader", "custom-headers", &what);
            continue;
        }
        dollar |= value.contains('$');
        let value = value.replace('$', "${literal_dollar}");
        list.push(header_line("more_set_headers", &format!("{header}: {value}")));
    }
    if dollar {
        let rows = vec![line("default", ["$"])];
        let made = line("geo", ["$literal_dollar"]).with_block(rows);
        work.share(id, "literal dollar".to_owned(), vec![made]);
    }
    Ok(list)
}
