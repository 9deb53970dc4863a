//! One path of a host.

use weir_conf::Directive;

use super::hosts::{Host, Route};
use super::snippet::Place;
use super::{Source, Work, digest, line, when};
use crate::annotations::{AuthRequest, Protocol, values};
use crate::report::Severity;

/// A location's directives, and those that stand beside it.
#[derive(Default)]
pub(super) struct Made {
    pub(super) inside: Vec<Directive>,
    pub(super) beside: Vec<Directive>,
}

/// The headers that servers behind get.
pub(crate) fn headers(directive: &str) -> Vec<Directive> {
    let list = [
        ("Host", "$best_http_host"),
        ("Upgrade", "$http_upgrade"),
        ("Connection", "$connection_upgrade"),
        ("X-Request-ID", "$req_id"),
        ("X-Real-IP", "$remote_addr"),
        ("X-Forwarded-For", "$full_x_forwarded_for"),
        ("X-Forwarded-Host", "$best_http_host"),
        ("X-Forwarded-Port", "$pass_server_port"),
        ("X-Forwarded-Proto", "$pass_access_scheme"),
        ("X-Forwarded-Scheme", "$pass_access_scheme"),
        ("X-Scheme", "$pass_access_scheme"),
        ("X-Original-Forwarded-For", "$http_x_forwarded_for"),
        ("X-Original-Forwarded-Host", "$http_x_forwarded_host"),
        ("Proxy", ""),
    ];
    let grpc = directive == "grpc_set_header";
    let kept = list.iter().filter(|(name, _)| !grpc || !matches!(*name, "Upgrade" | "Connection"));
    kept.map(|(name, value)| line(directive, [*name, *value])).collect()
}

/// Where ACME clients prove names.
const CHALLENGE: &str = "/.well-known/acme-challenge";

/// The location of a route.
pub(super) fn location(
    work: &mut Work<'_>,
    host: &Host<'_>,
    route: &Route<'_>,
    path: &str,
    tls: bool,
) -> Made {
    let source = route.source;
    let o = &source.options;
    let mut made = Made::default();
    let key = digest(format!("{}\n{}\n{path}", source.id, host.name).as_bytes());
    // An ACME client proves a name over plain HTTP.
    let challenge = path.starts_with(CHALLENGE);
    let exempt = work.settings.list("no-tls-redirect-locations").any(|at| path.starts_with(at));
    let plain = challenge || exempt;
    if o.force_ssl_redirect || o.ssl_redirect && tls && host.secured && !plain {
        made.inside.push(https(work, o.keep_slash));
    }
    if let Some(name) = o.closed {
        work.say(
            &source.id,
            Severity::Error,
            "AccessClosed",
            name,
            "it restricts access and cannot be obeyed: answers are 503",
        );
        made.inside.push(line("return", ["503"]));
        return made;
    }
    made.inside.extend(o.deny.iter().map(|network| line("deny", [network.as_str()])));
    made.inside.extend(o.allow.iter().map(|network| line("allow", [network.as_str()])));
    if !o.allow.is_empty() {
        made.inside.push(line("deny", ["all"]));
    }
    if let Some(name) = &o.custom_headers {
        let list = work.map_of_headers(source, "custom-headers", name);
        made.inside.extend(
            list.iter().map(|(name, value)| {
                line("more_set_headers", [format!("{name}: {value}").as_str()])
            }),
        );
    }
    cors(route, &mut made.inside);
    let mut extra = Vec::new();
    let free = work.settings.defaults.get("no-auth-locations").map_or(CHALLENGE, String::as_str);
    let free = free.split(',').map(str::trim).any(|at| !at.is_empty() && path.starts_with(at));
    if free {
        // No password and no service is asked.
    } else if let Err(why) = basic(work, route, &mut made.inside, &mut extra) {
        work.say(
            &source.id,
            Severity::Error,
            "AccessClosed",
            "auth-secret",
            &format!("{why}: answers are 503"),
        );
        made.inside = vec![line("return", ["503"])];
        return made;
    }
    if let Some(auth) = o.auth_request.as_ref().filter(|_| !free) {
        let mut sent = service_headers(work, source, auth);
        sent.extend(match &auth.snippet {
            Some(text) if auth.global => work.fragment("global-auth-snippet", text),
            text => work.snippet(source, "auth-snippet", text.as_ref(), Place::Location),
        });
        sent.extend(cached(work, source, auth, &key));
        let target = target(work, source, auth, &key);
        auth_request((auth, &target), &key, tls, &mut made, &mut extra, sent);
    }
    made.inside.extend(o.satisfy.map(|all| line("satisfy", [all])));
    limits(work, source, &mut made.inside);
    made.inside
        .extend(o.simple.iter().map(|(name, words)| line(name, words.iter().map(String::as_str))));
    for (on, name, word) in [
        (o.relative_redirects, "absolute_redirect", "off"),
        (o.redirect_port, "port_in_redirect", "on"),
    ] {
        made.inside.extend(on.then(|| line(name, [word])));
    }
    if let Some(mirror) = &o.mirror {
        let at = format!("/_mirror-{key}");
        made.inside.push(line("mirror", [at.as_str()]));
        made.inside.push(line("mirror_request_body", [if mirror.body { "on" } else { "off" }]));
        let target = address(&mirror.url);
        made.beside.push(line("location", ["=", &at]).with_block(vec![
            line("internal", []),
            line("proxy_set_header", ["Host", &mirror.host]),
            line("proxy_pass", [target.as_str()]),
        ]));
    }
    let text = o.location_snippet.as_ref();
    let snippet = work.snippet(source, "configuration-snippet", text, Place::Location);
    if let Some((code, to)) = &o.redirect {
        made.inside.extend(snippet);
        made.inside.push(line("return", [code.to_string().as_str(), to]));
        return made;
    }
    errors(work, route, &key, &mut made);
    pass(work, host, (route, &key), &mut made, extra, snippet);
    made
}

/// The redirect to https.
fn https(work: &Work<'_>, keep_slash: bool) -> Directive {
    let port = match work.settings.https_port {
        443 => String::new(),
        port => format!(":{port}"),
    };
    let uri = if keep_slash { "$request_uri" } else { "$uri_without_slash" };
    let forwarded = work.settings.flag("use-forwarded-headers");
    let host = if forwarded { "$redirect_host" } else { "$host" };
    let to = format!("https://{host}{port}{uri}");
    when("$pass_access_scheme", "=", "http", vec![line("return", ["308", &to])])
}

fn cors(route: &Route<'_>, list: &mut Vec<Directive>) {
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
        vec![line("more_set_headers", [format!("Access-Control-Allow-Origin: {origin}").as_str()])];
    answer.extend(
        cors.headers
            .iter()
            .map(|(name, value)| line("more_set_headers", [format!("{name}: {value}").as_str()])),
    );
    list.push(when("$cors", "=", "true", answer.clone()));
    answer.push(line("return", ["204"]));
    list.push(when("$cors", "=", "trueoptions", answer));
}

fn basic(
    work: &mut Work<'_>,
    route: &Route<'_>,
    list: &mut Vec<Directive>,
    extra: &mut Vec<(String, String)>,
) -> Result<(), String> {
    let source = route.source;
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

fn address(url: &crate::annotations::values::Url) -> String {
    let port = url.port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}{}", url.scheme, url.host, url.rest)
}

/// Headers for the authentication service, of a ConfigMap.
fn service_headers(work: &mut Work<'_>, source: &Source<'_>, auth: &AuthRequest) -> Vec<Directive> {
    let Some(name) = &auth.set_headers else { return Vec::new() };
    work.map_of_headers(source, "auth-proxy-set-headers", name)
        .iter()
        .map(|(name, value)| line("proxy_set_header", [name.as_str(), value]))
        .collect()
}

impl Work<'_> {
    /// Headers that a ConfigMap of the Ingress's own namespace has; those that cannot be sent are said.
    fn map_of_headers(
        &mut self,
        source: &Source<'_>,
        annotation: &'static str,
        name: &str,
    ) -> Vec<(String, String)> {
        let id = &source.id;
        let (namespace, name) = name.split_once('/').unwrap_or((&id.namespace, name));
        let found = match namespace == id.namespace {
            true => self.index.config_map(namespace, name),
            false => None,
        };
        let Some(data) = found.and_then(|map| map.data.as_ref()) else {
            let message = "the namespace has no such ConfigMap with data; its headers are not sent";
            self.say(id, Severity::Warning, "NoConfigMap", annotation, message);
            return Vec::new();
        };
        let good = |(name, value): &(&String, &String)| {
            values::is_header(name)
                && value.len() <= values::LONGEST
                && !value.contains(char::is_control)
                && values::template(value).is_ok()
        };
        let (taken, wrong): (Vec<_>, Vec<_>) = data.iter().partition(good);
        for (header, _) in wrong {
            let message = format!("the header \"{header}\" or its value is wrong; it is not sent");
            self.say(id, Severity::Warning, "InvalidHeader", annotation, &message);
        }
        taken.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// Answers of the service that are kept for a location.
fn cached(
    work: &mut Work<'_>,
    source: &Source<'_>,
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

/// The service's address, or a group of it whose connections are kept. With HTTP/2 clients, ingress-nginx keeps none.
fn target(work: &mut Work<'_>, source: &Source<'_>, auth: &AuthRequest, key: &str) -> String {
    let http2 = work.settings.defaults.get("use-http2").is_none_or(|text| text.trim() != "false");
    let Some([connections, requests, seconds]) = auth.kept.filter(|_| !http2) else {
        return address(&auth.url);
    };
    let group = format!("auth_{key}");
    let port = auth.url.port.unwrap_or(if auth.url.scheme == "https" { 443 } else { 80 });
    let one = |name: &str, word: String| line(name, [word.as_str()]);
    let block = vec![
        one("server", format!("{}:{port}", auth.url.host)),
        one("keepalive", connections.to_string()),
        one("keepalive_requests", requests.to_string()),
        one("keepalive_timeout", format!("{seconds}s")),
    ];
    let made = line("upstream", [group.as_str()]).with_block(block);
    work.share(&source.id, format!("upstream {group}"), vec![made]);
    format!("{}://{group}{}", auth.url.scheme, auth.url.rest)
}

fn auth_request(
    (auth, target): (&AuthRequest, &str),
    key: &str,
    tls: bool,
    made: &mut Made,
    extra: &mut Vec<(String, String)>,
    sent: Vec<Directive>,
) {
    let at = format!("/_external-auth-{key}");
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
        ("X-Forwarded-For", "$remote_addr"),
        ("X-Auth-Request-Redirect", redirect),
    ];
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
    if tls {
        made.inside
            .push(line("add_header", ["Strict-Transport-Security", "$strict_transport", "always"]));
    }
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
        made.beside.push(line("location", [name.as_str()]).with_block(vec![
            line("internal", []),
            escape,
            line("add_header", ["Set-Cookie", "$auth_cookie"]),
            line("return", ["302", signin]),
        ]));
    }
}

fn limits(work: &mut Work<'_>, source: &Source<'_>, list: &mut Vec<Directive>) {
    let (id, limits) = (&source.id, &source.options.limits);
    let key = digest(id.to_string().as_bytes());
    let variable = match limits.free.is_empty() {
        true => "$binary_remote_addr".to_owned(),
        false => {
            let (free, limit) = (format!("$free_{key}"), format!("$limit_{key}"));
            let mut rows = vec![line("default", ["0"])];
            rows.extend(limits.free.iter().map(|network| line(network, ["1"])));
            let geo = line("geo", ["$remote_addr", &free]).with_block(rows);
            let rows = vec![line("0", ["$binary_remote_addr"]), line("1", [""])];
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

/// Statuses that the default backend answers.
fn errors(work: &mut Work<'_>, route: &Route<'_>, key: &str, made: &mut Made) {
    let source = route.source;
    let o = &source.options;
    if o.errors.is_empty() {
        return;
    }
    let own = o.default_backend.clone().map(|name| (source.id.namespace.clone(), name));
    let backend = own.or(work.settings.default_backend.clone());
    let group = backend.and_then(|(namespace, name)| {
        work.group(&source.id, None, &namespace, &name, &String::new())
    });
    let Some(group) = group else {
        work.say(
            &source.id,
            Severity::Warning,
            "NoDefaultBackend",
            "custom-http-errors",
            "no backend can answer errors; they stay as they are",
        );
        return;
    };
    made.inside.extend((!o.keep_errors).then(|| line("proxy_intercept_errors", ["on"])));
    for code in &o.errors {
        let (name, code) = (format!("@errors-{code}-{key}"), code.to_string());
        made.inside.push(line("error_page", [code.as_str(), "=", &name]));
        let service = route.backend.as_ref().map_or("", |(service, _)| service.as_str());
        let headers = [
            ("X-Code", code.as_str()),
            ("X-Format", "$http_accept"),
            ("X-Original-URI", "$request_uri"),
            ("X-Namespace", &source.id.namespace),
            ("X-Ingress-Name", &source.id.name),
            ("X-Service-Name", service),
            ("X-Request-ID", "$req_id"),
            ("X-Forwarded-For", "$remote_addr"),
            ("Host", "$best_http_host"),
        ];
        let mut list = vec![line("internal", []), line("proxy_intercept_errors", ["off"])];
        list.extend(headers.map(|(name, value)| line("proxy_set_header", [name, value])));
        list.push(line("rewrite", ["(.*)", "/", "break"]));
        list.push(line("proxy_pass", [format!("http://{group}").as_str()]));
        made.beside.push(line("location", [name.as_str()]).with_block(list));
    }
}

/// Rewriting, headers and the server behind.
fn pass(
    work: &mut Work<'_>,
    host: &Host<'_>,
    (route, key): (&Route<'_>, &str),
    made: &mut Made,
    mut extra: Vec<(String, String)>,
    snippet: Vec<Directive>,
) {
    let source = route.source;
    let o = &source.options;
    let group = route.backend.clone().and_then(|(service, port)| {
        work.group(&source.id, Some(source), &source.id.namespace, &service, &port)
    });
    let group = group.or_else(|| {
        let name = o.default_backend.as_ref()?;
        work.group(&source.id, None, &source.id.namespace, name, &String::new())
    });
    let Some(group) = group else {
        made.inside.push(line("return", ["503"]));
        return;
    };
    let group = work.with_canary(route, group, key);
    if let Some(target) = o.rewrite.as_ref().filter(|target| **target != route.rule) {
        let pattern = format!("(?i){}", route.rule);
        if crate::annotations::values::pattern(&pattern).is_ok() {
            made.inside.push(line("rewrite", [pattern.as_str(), target, "break"]));
        }
        extra.extend(o.prefix.clone().map(|prefix| ("X-Forwarded-Prefix".to_owned(), prefix)));
    }
    extra.extend(o.vhost.clone().map(|vhost| ("Host".to_owned(), vhost)));
    extra.extend(o.connection.clone().map(|value| ("Connection".to_owned(), value)));
    if let Some(certificates) =
        host.sources.iter().find_map(|s| s.options.client_certificates.as_ref())
    {
        let mut add =
            |name: &str, variable: &str| extra.push((name.to_owned(), variable.to_owned()));
        add("ssl-client-verify", "$ssl_client_verify");
        add("ssl-client-subject-dn", "$ssl_client_s_dn");
        add("ssl-client-issuer-dn", "$ssl_client_i_dn");
        if certificates.pass {
            add("ssl-client-cert", "$ssl_client_escaped_cert");
        }
    }
    let (set, directive, scheme) = match o.protocol {
        Protocol::Http => ("proxy", "proxy_pass", "http://"),
        Protocol::Https => ("proxy", "proxy_pass", "https://"),
        Protocol::Auto => ("proxy", "proxy_pass", "$scheme://"),
        Protocol::Grpc => ("grpc", "grpc_pass", "grpc://"),
        Protocol::Grpcs => ("grpc", "grpc_pass", "grpcs://"),
        Protocol::Fcgi => ("fastcgi", "fastcgi_pass", ""),
    };
    let name = format!("{set}_set_header");
    // A header of the snippet's own must not end the list that the location has from above.
    let sets = snippet.iter().any(|d| d.name.is(&name));
    if (sets || !extra.is_empty()) && set != "fastcgi" {
        for (header, value) in &work.headers {
            if !extra.iter().any(|(own, _)| own.eq_ignore_ascii_case(header)) {
                extra.push((header.clone(), value.clone()));
            }
        }
        let own = |d: &Directive| {
            extra.iter().any(|(n, _)| d.arg(0).is_some_and(|w| w.lossy().eq_ignore_ascii_case(n)))
        };
        made.inside.extend(headers(&name).into_iter().filter(|d| !own(d)));
        made.inside
            .extend(extra.iter().map(|(header, value)| line(&name, [header.as_str(), value])));
    }
    if let Err(why) = proxy_tls(work, route, set, &mut made.inside) {
        work.say(
            &source.id,
            Severity::Error,
            "NoProxyCertificates",
            "proxy-ssl-secret",
            &format!("{why}: answers are 503"),
        );
        made.inside.push(line("return", ["503"]));
    }
    made.inside.extend(snippet);
    made.inside.push(line(directive, [format!("{scheme}{group}").as_str()]));
}

fn proxy_tls(
    work: &mut Work<'_>,
    route: &Route<'_>,
    set: &str,
    list: &mut Vec<Directive>,
) -> Result<(), String> {
    let source = route.source;
    let tls = &source.options.proxy_tls;
    if set == "fastcgi" {
        return Ok(());
    }
    if let Some(secret) = &tls.secret {
        let data = work.secret(&source.id, secret)?;
        let authorities = work.authorities(data)?;
        list.push(line(&format!("{set}_ssl_trusted_certificate"), [authorities.as_str()]));
        if data.contains_key("tls.crt") {
            let certificate = work.certificate(data)?;
            for name in ["certificate", "certificate_key"] {
                list.push(line(&format!("{set}_ssl_{name}"), [certificate.path.as_str()]));
            }
        }
    }
    for (name, words) in &tls.words {
        // A check without authorities would refuse the whole configuration.
        if tls.secret.is_some() || !matches!(*name, "verify" | "verify_depth") {
            list.push(line(&format!("{set}_ssl_{name}"), words.iter().map(String::as_str)));
        }
    }
    Ok(())
}
