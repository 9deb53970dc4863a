//! The configuration around the locations: `http`, servers, what all of them share.

use std::collections::BTreeMap;

use weir_conf::Directive;

use super::global::Global;
use super::hosts::{Host, Match, Route};
use super::location;
use super::made::headers;
use super::snippet::Place;
use super::{Work, line, passthrough, when};
use crate::report::Severity;
use crate::settings::Settings;

/// The servers of Ingresses.
pub(super) fn servers(work: &mut Work<'_>, hosts: &BTreeMap<String, Host<'_>>) -> Vec<Directive> {
    let mut servers = Vec::new();
    let any = hosts.get("");
    let default = work.settings.default_certificate.clone().and_then(|(namespace, name)| {
        let data = work.secret_of(&namespace, &name).ok()?;
        work.certificate(data).ok()
    });
    let default = default.map(|certificate| certificate.path).or_else(|| {
        let own = work.settings.own_certificate.clone()?;
        Some(work.file("own", own))
    });
    for host in hosts.values().filter(|host| !host.name.is_empty()) {
        let certificate =
            host.certificate.as_ref().map(|c| c.path.clone()).or_else(|| default.clone());
        let mut server = server(work, host, certificate.as_deref());
        work.owners.mark(&host.owner.id, std::slice::from_mut(&mut server));
        servers.push(server);
        servers.extend(www(work, hosts, host, default.as_deref()));
    }
    // A name that no server has goes to the first one with `default_server`.
    let mut rest = listens(work, false, true);
    rest.extend(listens(work, true, true));
    rest.push(http2(work));
    rest.push(line("server_name", ["_"]));
    match &default {
        Some(certificate) => rest.extend(certificate_lines(certificate)),
        None => rest.push(line("ssl_reject_handshake", ["on"])),
    }
    match any {
        Some(host) => rest.extend(body(work, host, default.is_some())),
        None => {
            let mut nothing = unknown(work);
            let logged = work.settings.defaults.get("enable-access-log-for-default-backend");
            if logged.is_none_or(|text| text.trim() != "true") {
                nothing.insert(0, line("access_log", ["off"]));
            }
            rest.push(line("location", ["/"]).with_block(nothing));
        }
    }
    servers.insert(0, line("server", []).with_block(rest));
    servers
}

/// The whole configuration.
pub(super) fn tree(
    work: &mut Work<'_>,
    global: Global,
    servers: Vec<Directive>,
    sessions: Vec<Directive>,
) -> Vec<Directive> {
    let own = &work.settings.base;
    let of = |name: &str| -> Vec<Directive> {
        own.iter().filter(|d| d.name.is(name)).flat_map(|d| d.block()).cloned().collect()
    };
    let (mut http, mut stream) = (of("http"), of("stream"));
    let said = http.clone();
    let Global {
        http: wanted,
        maps,
        hsts,
        headers,
        main: first,
        stream: sessions_of,
        http_snippet,
        ..
    } = global;
    let mut made = base(maps, &hsts, &headers, work.settings);
    made.retain(|made| !says(&wanted, made));
    made.extend(wanted);
    http.extend(made.into_iter().filter(|made| !says(&said, made)));
    http.extend(http_snippet);
    http.extend(super::zones::keepers());
    http.extend(std::mem::take(&mut work.shared).into_values().flatten());
    http.extend(servers);
    let rest = |d: &&Directive| !d.name.is("http") && !d.name.is("stream");
    let mut main: Vec<Directive> = own.iter().filter(rest).cloned().collect();
    let events = line("events", []).with_block(vec![line("worker_connections", ["16384"])]);
    let mut defaults = vec![line("error_log", ["stderr", "notice"])];
    let processes = line("worker_processes", ["1"]);
    if !says(&first, &processes) && !says(&main, &processes) {
        // A process compiles and keeps each configuration once, for however many loops.
        defaults.extend([processes, line("worker_threads", ["auto"])]);
    }
    let defaults = defaults.into_iter().filter(|made| !says(&first, made));
    let rest: Vec<Directive> = first.iter().cloned().chain(defaults).chain([events]).collect();
    for made in rest {
        if !says(&main, &made) {
            main.push(made);
        }
    }
    main.push(line("http", []).with_block(http));
    stream.extend(sessions_of);
    if !sessions.is_empty() {
        let resolver = &work.settings.resolver;
        if !resolver.is_empty() && !stream.iter().any(|d| d.name.is("resolver")) {
            stream.push(line("resolver", resolver.iter().map(String::as_str)));
        }
        stream.extend(std::mem::take(&mut work.streams).into_values().flatten());
        stream.extend(sessions);
    }
    if !stream.is_empty() {
        main.push(line("stream", []).with_block(stream));
    }
    main
}

/// Whether the administrator has said the same thing in another way.
fn says(own: &[Directive], made: &Directive) -> bool {
    let variable = |d: &Directive| d.arg(1).map(|word| word.bytes.clone());
    own.iter().any(|d| {
        d.name.bytes == made.name.bytes && (!made.name.is("map") || variable(d) == variable(made))
    })
}

/// What all servers share, with the defaults of ingress-nginx.
fn base(
    mut maps: BTreeMap<&'static str, Directive>,
    hsts: &str,
    own: &[(String, String)],
    settings: &Settings,
) -> Vec<Directive> {
    let names = ["$own_http_host", "$redirect_host"];
    let further: Vec<Directive> = names.iter().filter_map(|name| maps.remove(name)).collect();
    let mut map = |from: &str, to: &'static str, rows: &[(&str, &str)]| {
        let rows = rows.iter().map(|(key, value)| line(key, [*value])).collect();
        maps.remove(to).unwrap_or_else(|| line("map", [from, to]).with_block(rows))
    };
    let port = settings.https_port.to_string();
    let mut list = vec![
        map("$http_upgrade", "$connection_upgrade", &[("default", "upgrade"), ("", "")]),
        map(
            "$http_x_request_id",
            "$req_id",
            &[("default", "$http_x_request_id"), ("", "$request_id")],
        ),
        map("$http_host", "$best_http_host", &[("default", "$http_host"), ("", "$host")]),
        map("$scheme", "$pass_access_scheme", &[("default", "$scheme")]),
        map(
            "$request_uri",
            "$uri_without_slash",
            &[("~^(.*)/$", "$1"), ("default", "$request_uri")],
        ),
        map("$https", "$strict_transport", &[("on", hsts), ("default", "")]),
        // Clients know the port of the Service, not the one that is listened for.
        map("$https", "$pass_own_port", &[("on", &port), ("default", "$server_port")]),
        map("$scheme", "$pass_server_port", &[("default", "$pass_own_port")]),
        map("$scheme", "$full_x_forwarded_for", &[("default", "$remote_addr")]),
    ];
    let simple = [
        ("server_tokens", "off"),
        ("client_max_body_size", "1m"),
        ("client_body_buffer_size", "8k"),
        ("proxy_http_version", "1.1"),
        ("proxy_buffering", "off"),
        ("proxy_buffer_size", "4k"),
        ("proxy_connect_timeout", "5s"),
        ("proxy_send_timeout", "60s"),
        ("proxy_read_timeout", "60s"),
        ("proxy_next_upstream_tries", "3"),
        ("proxy_redirect", "off"),
        ("proxy_max_temp_file_size", "1024m"),
        ("limit_req_status", "503"),
        ("limit_conn_status", "503"),
        ("port_in_redirect", "off"),
        ("ssl_protocols", "TLSv1.2 TLSv1.3"),
        ("ssl_session_timeout", "10m"),
        ("ssl_session_tickets", "off"),
        ("gzip_comp_level", "1"),
        ("gzip_min_length", "256"),
        ("gzip_proxied", "any"),
        ("gzip_types", COMPRESSED),
        ("gzip_vary", "on"),
        ("brotli_comp_level", "4"),
        ("brotli_min_length", "20"),
        ("brotli_types", COMPRESSED),
    ];
    list.extend(further);
    list.extend(simple.map(|(name, value)| line(name, value.split(' '))));
    list.push(line("proxy_buffers", ["4", "4k"]));
    list.push(line("proxy_next_upstream", ["error", "timeout"]));
    if !settings.resolver.is_empty() {
        list.push(line("resolver", settings.resolver.iter().map(String::as_str)));
    }
    for name in ["proxy_set_header", "grpc_set_header"] {
        let said = |d: &Directive| own.iter().any(|(n, _)| is_header(d, n));
        list.extend(headers(name).into_iter().filter(|d| !said(d)));
        list.extend(own.iter().map(|(header, value)| line(name, [header.as_str(), value])));
    }
    list
}

/// Kinds of answers that are compressed, if answers are; `text/html` always is.
const COMPRESSED: &str = "application/atom+xml application/javascript application/json application/rss+xml application/vnd.ms-fontobject application/x-font-ttf application/x-javascript application/x-web-app-manifest+json application/xhtml+xml application/xml application/xml+rss font/opentype image/svg+xml image/x-icon text/css text/javascript text/plain text/x-component";

fn is_header(directive: &Directive, name: &str) -> bool {
    directive.arg(0).is_some_and(|word| word.lossy().eq_ignore_ascii_case(name))
}

fn listens(work: &Work<'_>, tls: bool, default: bool) -> Vec<Directive> {
    let behind = passthrough::inner(work.settings);
    let addresses: Vec<&str> = match tls {
        true if passthrough::is_on(work) => vec![&behind],
        true => work.settings.https.iter().map(String::as_str).collect(),
        false => work.settings.http.iter().map(String::as_str).collect(),
    };
    let one = |address: &&str| {
        let mut words = vec![*address];
        words.extend(tls.then_some("ssl"));
        words.extend(default.then_some("default_server"));
        words.extend(work.proxy_protocol.then_some("proxy_protocol"));
        line("listen", words)
    };
    addresses.iter().map(one).collect()
}

/// HTTP/2, over plain HTTP, too: gRPC needs it.
fn http2(work: &Work<'_>) -> Directive {
    let off = work.settings.defaults.get("use-http2").is_some_and(|text| text.trim() == "false");
    line("http2", [if off { "off" } else { "on" }])
}

fn certificate_lines(path: &str) -> [Directive; 2] {
    [line("ssl_certificate", [path]), line("ssl_certificate_key", [path])]
}

/// `*.` of Kubernetes is one label, where nginx's is any number.
fn server_name(name: &str) -> String {
    match name.strip_prefix("*.") {
        Some(rest) => format!("~^[^.]+\\.{}$", rest.replace('.', "\\.")),
        None => name.to_owned(),
    }
}

fn server(work: &mut Work<'_>, host: &Host<'_>, certificate: Option<&str>) -> Directive {
    let mut list = listens(work, false, false);
    if let Some(path) = certificate {
        list.extend(listens(work, true, false));
        list.extend(certificate_lines(path));
    }
    list.push(http2(work));
    let mut names = vec![server_name(&host.name)];
    names.extend(host.aliases.iter().map(|alias| server_name(alias)));
    list.push(line("server_name", names.iter().map(String::as_str)));
    list.extend(body(work, host, certificate.is_some()));
    line("server", []).with_block(list)
}

/// The redirect from the other of `example.com` and `www.example.com`.
fn www(
    work: &Work<'_>,
    hosts: &BTreeMap<String, Host<'_>>,
    host: &Host<'_>,
    default: Option<&str>,
) -> Option<Directive> {
    host.sources.iter().find(|source| source.options.from_to_www)?;
    let other = match host.name.strip_prefix("www.") {
        Some(bare) => bare.to_owned(),
        None => format!("www.{}", host.name),
    };
    let taken = hosts.values().any(|h| h.name == other || h.aliases.contains(&other));
    if taken || host.name.starts_with("*.") {
        return None;
    }
    let mut list = listens(work, false, false);
    let own = host.certificate.as_ref().filter(|c| c.covers(&other)).map(|c| c.path.as_str());
    if let Some(path) = own.or(default) {
        list.extend(listens(work, true, false));
        list.extend(certificate_lines(path));
    }
    list.push(http2(work));
    list.push(line("server_name", [other.as_str()]));
    list.push(line("return", ["308", &format!("$scheme://{}$request_uri", host.name)]));
    Some(line("server", []).with_block(list))
}

/// The inner part of a server.
fn body(work: &mut Work<'_>, host: &Host<'_>, tls: bool) -> Vec<Directive> {
    let mut list = work.server.clone();
    for source in &host.sources {
        let text = source.options.server_snippet.as_ref();
        let mut made = work.snippet(source, "server-snippet", text, Place::Server);
        work.owners.mark(&source.id, &mut made);
        list.extend(made);
    }
    if tls {
        list.push(line("add_header", ["Strict-Transport-Security", "$strict_transport", "always"]));
    }
    for name in ["ssl_ciphers", "ssl_prefer_server_ciphers"] {
        let mut all = host.sources.iter().flat_map(|source| &source.options.tls);
        let first = all.find(|(other, _)| tls && *other == name);
        list.extend(first.map(|(name, word)| line(name, [word.as_str()])));
    }
    client_certificates(work, host, tls, &mut list);
    if let Some(root) = host.sources.iter().find_map(|source| source.options.app_root.as_ref()) {
        let to = format!("$scheme://$http_host{root}");
        list.push(when("$uri", "=", "/", vec![line("return", ["302", &to])]));
    }
    let patterns = host.routes.values().any(|route| {
        let options = &route.source.options;
        options.regex || options.rewrite.as_ref().is_some_and(|target| *target != route.rule)
    });
    let mut routes: Vec<(&(String, Match), &Route<'_>)> = host.routes.iter().collect();
    routes.sort_by(|(a, _), (b, _)| (b.0.len(), &b.0).cmp(&(a.0.len(), &a.0)));
    for ((path, kind), route) in routes {
        let words = match (patterns, kind) {
            (true, _) => {
                let pattern = format!("^{path}");
                if let Err(why) = crate::annotations::values::pattern(&pattern) {
                    work.say(
                        &route.source.id,
                        Severity::Error,
                        "InvalidPath",
                        path,
                        &format!("{why}; the path is left out"),
                    );
                    continue;
                }
                vec!["~*".to_owned(), pattern]
            }
            (false, Match::Exact) => vec!["=".to_owned(), path.clone()],
            (false, Match::Bytes) => vec![path.clone()],
        };
        let made = location::location(work, host, route, path, tls);
        let at = line("location", words.iter().map(String::as_str)).with_block(made.inside);
        let mut made = made.beside;
        made.push(at);
        work.owners.mark(&route.source.id, &mut made);
        list.extend(made);
    }
    if !host.routes.contains_key(&("/".to_owned(), Match::Bytes)) {
        let nothing = unknown(work);
        list.push(line("location", ["/"]).with_block(nothing));
    }
    list
}

/// Client certificates are asked for once for a host: the first Ingress that names them decides.
fn client_certificates(work: &mut Work<'_>, host: &Host<'_>, tls: bool, list: &mut Vec<Directive>) {
    let found = host
        .sources
        .iter()
        .find_map(|source| Some((source, source.options.client_certificates.as_ref()?)));
    let Some((source, wanted)) = found else { return };
    let file = work.secret(&source.id, &wanted.secret).and_then(|data| work.authorities(data));
    match file {
        Ok(file) if tls => {
            list.push(line("ssl_client_certificate", [file.as_str()]));
            list.push(line("ssl_verify_client", [wanted.verify]));
            list.push(line("ssl_verify_depth", [wanted.depth.to_string().as_str()]));
            if let Some(page) = &wanted.error_page {
                list.push(line("error_page", ["495", "496", "=", page]));
            }
            if let Some(subject) = &wanted.subject {
                let refuse = vec![line("return", ["403", "client certificate unauthorized"])];
                list.push(when("$ssl_client_s_dn", "!~", subject, refuse));
            }
        }
        other => {
            let why =
                other.err().unwrap_or_else(|| "the host has no certificate of its own".to_owned());
            work.say(
                &source.id,
                Severity::Error,
                "NoClientCertificates",
                "auth-tls-secret",
                &format!("{why}: answers are 403"),
            );
            list.push(line("return", ["403"]));
        }
    }
}

/// What no rule says: the default backend, or 404.
fn unknown(work: &mut Work<'_>) -> Vec<Directive> {
    let id = crate::report::ObjectId {
        kind: "Settings",
        namespace: String::new(),
        name: "default-backend".to_owned(),
    };
    let backend = work.settings.default_backend.clone();
    let group = backend.and_then(|(namespace, service)| {
        work.group(&id, None, &namespace, &service, &String::new())
    });
    match group {
        Some(group) => vec![line("proxy_pass", [format!("http://{group}").as_str()])],
        None => vec![line("return", ["404"])],
    }
}
