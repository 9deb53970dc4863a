//! The upstream of a location: rewriting, headers, TLS, and the answers to errors.

use weir_conf::Directive;

use super::access::certificate_headers;
use super::files::InUse;
use super::hosts::{Host, Route};
use super::lines::line;
use super::location::HeaderMap;
use super::made::{Made, headers};
use super::sources::Source;
use super::work::Work;
use crate::annotations::Protocol;
use crate::report::Severity;

/// The headers that tell a default backend about an error.
fn of_error(route: &Route, code: &str) -> Vec<(&'static str, String)> {
    let id = &route.source.id;
    let (service, port) = route.backend.clone().unwrap_or_default();
    vec![
        ("X-Code", code.to_owned()),
        ("X-Format", "$http_accept".to_owned()),
        ("X-Original-URI", "$request_uri".to_owned()),
        ("X-Namespace", id.namespace.clone()),
        ("X-Ingress-Name", id.name.clone()),
        ("X-Service-Name", service),
        ("X-Service-Port", port),
        ("X-Request-ID", "$req_id".to_owned()),
    ]
}

/// Statuses whose answers the default backend gives.
pub(super) fn errors(work: &mut Work<'_>, route: &Route, key: &str, made: &mut Made) {
    let source = &route.source;
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
        let mut list = vec![line("internal", []), line("proxy_intercept_errors", ["off"])];
        let headers = of_error(route, &code);
        list.extend(headers.iter().map(|(name, value)| line("proxy_set_header", [*name, value])));
        for (name, value) in [("X-Forwarded-For", "$remote_addr"), ("Host", "$best_http_host")] {
            list.push(line("proxy_set_header", [name, value]));
        }
        list.push(line("rewrite", ["(.*)", "/", "break"]));
        list.push(line("proxy_pass", [format!("http://{group}").as_str()]));
        made.beside.push(line("location", [name.as_str()]).with_block(list));
    }
}

/// The directives that rewrite the path, set headers and pass the request on.
pub(super) fn pass(
    work: &mut Work<'_>,
    host: &Host,
    (route, key): (&Route, &str),
    made: &mut Made,
    mut extra: Vec<(String, String)>,
    snippet: Vec<Directive>,
) {
    let source = &route.source;
    let o = &source.options;
    let bound = bound(work, host, route);
    let group = route.backend.clone().and_then(|(service, port)| {
        let of = bound.as_ref().unwrap_or(source);
        work.group(&source.id, Some(of), &source.id.namespace, &service, &port)
    });
    let none = group.is_none();
    let group = group.or_else(|| {
        let name = o.default_backend.as_ref()?;
        work.group(&source.id, None, &source.id.namespace, name, &String::new())
    });
    if none && group.is_some() {
        extra.extend(of_error(route, "503").into_iter().map(|(n, v)| (n.to_owned(), v)));
    }
    let Some(group) = group else {
        made.inside.push(line("return", ["503"]));
        return;
    };
    let group = work.with_canary(route, group, key, made);
    if let Some(target) = o.rewrite.as_ref().filter(|target| **target != route.rule) {
        let pattern = format!("(?i){}", route.rule);
        if crate::annotations::values::pattern(&pattern).is_ok() {
            made.inside.push(line("rewrite", [pattern.as_str(), target, "break"]));
        }
        extra.extend(o.prefix.clone().map(|prefix| ("X-Forwarded-Prefix".to_owned(), prefix)));
    }
    extra.extend(o.vhost.clone().map(|vhost| ("Host".to_owned(), vhost)));
    extra.extend(o.connection.clone().map(|value| ("Connection".to_owned(), value)));
    let certificate = certificate_headers(host).into_iter();
    extra.extend(certificate.map(|(name, variable)| (name.to_owned(), variable.to_owned())));
    let (set, directive, scheme) = match o.protocol {
        Protocol::Http => ("proxy", "proxy_pass", "http://"),
        Protocol::Https => ("proxy", "proxy_pass", "https://"),
        Protocol::Auto => ("proxy", "proxy_pass", "$scheme://"),
        Protocol::Grpc => ("grpc", "grpc_pass", "grpc://"),
        Protocol::Grpcs => ("grpc", "grpc_pass", "grpcs://"),
        Protocol::Fcgi => ("fastcgi", "fastcgi_pass", ""),
    };
    let name = format!("{set}_set_header");
    // A `proxy_set_header` in the location ends the inheritance of the outer ones, so they are
    // repeated.
    let sets = snippet.iter().any(|d| d.name.is(&name));
    if (sets || !extra.is_empty()) && set != "fastcgi" {
        for (header, value) in &work.base.headers {
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
        let (reason, annotation) = ("NoProxyCertificates", "proxy-ssl-secret");
        made.inside.push(work.refuse(&source.id, reason, annotation, &why));
    }
    if set == "fastcgi" {
        match fastcgi(work, source) {
            Ok(params) => made.inside.extend(params),
            Err(why) => {
                let (reason, annotation) = ("NoConfigMap", "fastcgi-params-configmap");
                made.inside.push(work.refuse(&source.id, reason, annotation, &why));
            }
        }
    }
    made.inside.extend(snippet);
    made.inside.push(line(directive, [format!("{scheme}{group}").as_str()]));
    let late = ("proxy_redirect", vec!["default".to_owned()]);
    if o.simple.contains(&late) && set == "proxy" && !group.contains('$') {
        made.inside.push(line("proxy_redirect", ["default"]));
    }
}

/// The Ingress with its cookie completed for this rule, if it binds clients by cookies.
fn bound(work: &mut Work<'_>, host: &Host, route: &Route) -> Option<Source> {
    let source = &route.source;
    let mut affinity = source.options.affinity.clone()?;
    if source.options.regex && affinity.path.is_none() {
        affinity.path = Some("/".to_owned());
        let what = "the path is a pattern, which no cookie can have; the cookie is for all paths: session-cookie-path says another one";
        work.say(&source.id, Severity::Warning, "NoCookiePath", "session-cookie-path", what);
    }
    // Plain HTTP is only redirected, so the cookie can be secure.
    let secure = "secure".to_owned();
    if host.has_tls && source.options.ssl_redirect && !affinity.words.contains(&secure) {
        affinity.words.push(secure);
    }
    Some(source.bound(affinity, &route.rule))
}

/// The parameters of FastCGI: the usual ones, and those of a ConfigMap, which take precedence.
fn fastcgi(work: &mut Work<'_>, source: &Source) -> Result<Vec<Directive>, String> {
    let HeaderMap { good: own, wrong } = match &source.options.fastcgi_params {
        Some(name) => work.map_of_headers(source, name)?,
        None => HeaderMap::default(),
    };
    for name in wrong {
        let text = format!("the parameter \"{name}\" or its value is wrong; it is not sent");
        let annotation = "fastcgi-params-configmap";
        work.say(&source.id, Severity::Warning, "InvalidHeader", annotation, &text);
    }
    let usual = [
        ("QUERY_STRING", "$query_string"),
        ("REQUEST_METHOD", "$request_method"),
        ("CONTENT_TYPE", "$content_type"),
        ("CONTENT_LENGTH", "$content_length"),
        ("SCRIPT_NAME", "$fastcgi_script_name"),
        ("REQUEST_URI", "$request_uri"),
        ("DOCUMENT_URI", "$document_uri"),
        ("DOCUMENT_ROOT", "$document_root"),
        ("SERVER_PROTOCOL", "$server_protocol"),
        ("REQUEST_SCHEME", "$scheme"),
        ("GATEWAY_INTERFACE", "CGI/1.1"),
        ("SERVER_SOFTWARE", "nginx/$nginx_version"),
        ("REMOTE_ADDR", "$remote_addr"),
        ("REMOTE_PORT", "$remote_port"),
        ("SERVER_ADDR", "$server_addr"),
        ("SERVER_PORT", "$public_port"),
        ("SERVER_NAME", "$server_name"),
        ("REDIRECT_STATUS", "200"),
    ];
    let usual = usual.iter().filter(|(name, _)| !own.iter().any(|(other, _)| other == name));
    let mut list: Vec<Directive> =
        usual.map(|(name, value)| line("fastcgi_param", [*name, *value])).collect();
    list.push(line("fastcgi_param", ["HTTPS", "$https", "if_not_empty"]));
    list.extend(own.iter().map(|(n, v)| line("fastcgi_param", [n.as_str(), v])));
    let index = source.options.fastcgi_index.as_ref();
    list.extend(index.map(|index| line("fastcgi_index", [index.as_str()])));
    Ok(list)
}

fn proxy_tls(
    work: &mut Work<'_>,
    route: &Route,
    set: &str,
    list: &mut Vec<Directive>,
) -> Result<(), String> {
    let source = &route.source;
    let tls = &source.options.proxy_tls;
    if set == "fastcgi" {
        return Ok(());
    }
    if let Some(secret) = &tls.secret {
        let data = work.secret(&source.id, secret)?;
        // Authorities are those of the present Secret alone: one of before may have been removed.
        let authorities = work.authorities(data)?;
        list.push(line(&format!("{set}_ssl_trusted_certificate"), [authorities.as_str()]));
        if data.contains_key("tls.crt") {
            let (namespace, name) = source.id.named(secret);
            let InUse { certificate, wrong } = work.certificate_in_use(namespace, name, data);
            let Some(certificate) = certificate else { return Err(wrong.unwrap_or_default()) };
            if let Some(why) = wrong {
                let about = "proxy-ssl-secret";
                work.say(&source.id, Severity::Error, "InvalidCertificate", about, &why);
            }
            for name in ["certificate", "certificate_key"] {
                list.push(line(&format!("{set}_ssl_{name}"), [certificate.path.as_str()]));
            }
        }
    }
    let passes = matches!(source.options.protocol, Protocol::Https | Protocol::Grpcs);
    let checks = tls.words.iter().any(|(name, words)| *name == "verify" && words[..] == ["on"]);
    if passes && checks && tls.secret.is_none() {
        let what = "without proxy-ssl-secret, certificates of servers behind are not verified";
        work.say(&source.id, Severity::Warning, "NoAuthorities", "proxy-ssl-verify", what);
    }
    for (name, words) in &tls.words {
        // weir refuses a configuration with verification but no authorities.
        if tls.secret.is_some() || !matches!(*name, "verify" | "verify_depth") {
            list.push(line(&format!("{set}_ssl_{name}"), words.iter().map(String::as_str)));
        }
    }
    Ok(())
}
