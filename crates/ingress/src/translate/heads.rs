//! Directives around the servers: outside of blocks, and at the head of each block.

use std::collections::BTreeMap;

use weir_conf::Directive;

use super::global::Global;
use super::lines::line;
use super::made::headers;
use crate::settings::Settings;

/// The directives outside of blocks, and those at the head of each block.
pub(super) struct Heads {
    pub(super) main: Vec<Directive>,
    pub(super) http: Vec<Directive>,
    pub(super) stream: Vec<Directive>,
}

/// Makes the heads. `sessions` says whether the `stream` block has servers beside the
/// administrator's.
pub(super) fn heads(settings: &Settings, global: Global, sessions: bool) -> Heads {
    let own = &settings.base;
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
    let mut made = base(maps, &hsts, &headers, settings);
    made.retain(|made| !says(&wanted, made));
    made.extend(wanted);
    http.extend(made.into_iter().filter(|made| !says(&said, made)));
    http.extend(http_snippet);
    http.extend(super::zones::keepers());
    let rest = |d: &&Directive| !d.name.is("http") && !d.name.is("stream");
    let mut main: Vec<Directive> = own.iter().filter(rest).cloned().collect();
    let events = line("events", []).with_block(vec![line("worker_connections", ["16384"])]);
    let mut defaults = vec![line("error_log", ["stderr", "notice"])];
    let processes = line("worker_processes", ["1"]);
    if !says(&first, &processes) && !says(&main, &processes) {
        // One process with several loops compiles and keeps each configuration once.
        defaults.extend([processes, line("worker_threads", ["auto"])]);
    }
    let defaults = defaults.into_iter().filter(|made| !says(&first, made));
    let rest: Vec<Directive> = first.iter().cloned().chain(defaults).chain([events]).collect();
    for made in rest {
        if !says(&main, &made) {
            main.push(made);
        }
    }
    stream.extend(sessions_of);
    let resolver = settings.resolver_words();
    if sessions && !resolver.is_empty() && !stream.iter().any(|d| d.name.is("resolver")) {
        stream.push(line("resolver", resolver));
    }
    Heads { main, http, stream }
}

/// Whether `own` already has the directive, with whatever value.
fn says(own: &[Directive], made: &Directive) -> bool {
    let variable = |d: &Directive| d.arg(1).map(|word| word.bytes.clone());
    own.iter().any(|d| {
        d.name.bytes == made.name.bytes && (!made.name.is("map") || variable(d) == variable(made))
    })
}

/// The directives that all servers share, with ingress-nginx's defaults.
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
    // Clients know the ports of the Service, not the listening ports.
    let public = settings.public_ports().into_iter();
    let mut public: Vec<Directive> =
        public.map(|(own, known)| line(&own, [known.to_string().as_str()])).collect();
    public.insert(0, line("default", ["$server_port"]));
    let mut list = vec![
        line("map", ["$server_port", "$public_port"]).with_block(public),
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
        map("$scheme", "$pass_own_port", &[("default", "$public_port")]),
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
    let mut again = vec!["error", "timeout"];
    if settings.flag("retry-non-idempotent") {
        again.push("non_idempotent");
    }
    list.push(line("proxy_next_upstream", again));
    let resolver = settings.resolver_words();
    if !resolver.is_empty() {
        list.push(line("resolver", resolver));
    }
    for name in ["proxy_set_header", "grpc_set_header"] {
        let said = |d: &Directive| own.iter().any(|(n, _)| is_header(d, n));
        list.extend(headers(name).into_iter().filter(|d| !said(d)));
        list.extend(own.iter().map(|(header, value)| line(name, [header.as_str(), value])));
    }
    list
}

/// The types of answers that are compressed, beside `text/html`.
const COMPRESSED: &str = "application/atom+xml application/javascript application/json application/rss+xml application/vnd.ms-fontobject application/x-font-ttf application/x-javascript application/x-web-app-manifest+json application/xhtml+xml application/xml application/xml+rss font/opentype image/svg+xml image/x-icon text/css text/javascript text/plain text/x-component";

fn is_header(directive: &Directive, name: &str) -> bool {
    directive.arg(0).is_some_and(|word| word.lossy().eq_ignore_ascii_case(name))
}
