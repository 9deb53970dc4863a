//! The controller's ConfigMap: settings for all hosts. A key that is the name of an annotation is
//! the annotation's default instead.

use std::collections::BTreeMap;
use std::slice;

use weir_conf::Directive;

use super::lines::{header_line, line};
use super::location_variables::{OF_LOCATIONS, defaults, names};
use super::logs::FORMAT;
use super::owners::{Owners, key_owner};
use super::work::Work;
use crate::annotations::{self, values};
use crate::report::{ObjectId, Severity};

/// How a key's value becomes arguments of a directive.
#[derive(Clone, Copy)]
enum Value {
    /// `true` or `false`.
    Flag,
    /// A number, to which this unit may be appended.
    Number(&'static str),
    Size,
    /// Words of letters, digits and these characters, separated by spaces or commas.
    Words(&'static str),
    /// A number and a size.
    Pair,
}

/// Keys that set a directive.
const SET: &[(&str, &str, Value)] = &[
    ("brotli-level", "brotli_comp_level", Value::Number("")),
    ("brotli-min-length", "brotli_min_length", Value::Size),
    ("brotli-types", "brotli_types", Value::Words("-+./*")),
    ("client-body-buffer-size", "client_body_buffer_size", Value::Size),
    ("client-body-timeout", "client_body_timeout", Value::Number("s")),
    ("client-header-buffer-size", "client_header_buffer_size", Value::Size),
    ("client-header-timeout", "client_header_timeout", Value::Number("s")),
    ("default-type", "default_type", Value::Words("-+./")),
    ("enable-brotli", "brotli", Value::Flag),
    ("grpc-buffer-size-kb", "grpc_buffer_size", Value::Number("k")),
    ("gzip-disable", "gzip_disable", Value::Words("-_.*^$")),
    ("gzip-level", "gzip_comp_level", Value::Number("")),
    ("gzip-min-length", "gzip_min_length", Value::Size),
    ("gzip-types", "gzip_types", Value::Words("-+./*")),
    ("hide-headers", "proxy_hide_header", Value::Words("-_")),
    ("http2-max-concurrent-streams", "http2_max_concurrent_streams", Value::Number("")),
    ("ignore-invalid-headers", "ignore_invalid_headers", Value::Flag),
    ("enable-ocsp", "ssl_stapling", Value::Flag),
    ("enable-underscores-in-headers", "underscores_in_headers", Value::Flag),
    ("keep-alive", "keepalive_timeout", Value::Number("s")),
    ("keep-alive-requests", "keepalive_requests", Value::Number("")),
    ("large-client-header-buffers", "large_client_header_buffers", Value::Pair),
    ("limit-conn-status-code", "limit_conn_status", Value::Number("")),
    ("limit-req-status-code", "limit_req_status", Value::Number("")),
    ("server-tokens", "server_tokens", Value::Flag),
    ("ssl-buffer-size", "ssl_buffer_size", Value::Size),
    ("ssl-ciphers", "ssl_ciphers", Value::Words(":!+-@=_.")),
    ("ssl-ecdh-curve", "ssl_ecdh_curve", Value::Words(":-_")),
    ("ssl-protocols", "ssl_protocols", Value::Words(".")),
    ("ssl-session-tickets", "ssl_session_tickets", Value::Flag),
    ("ssl-session-timeout", "ssl_session_timeout", Value::Words("")),
    ("use-gzip", "gzip", Value::Flag),
];

/// Keys that are read one by one.
const OTHER: &[&str] = &[
    "annotation-value-word-blocklist",
    "annotations-risk-level",
    "access-log-params",
    "access-log-path",
    "add-headers",
    "allow-backend-server-header",
    "block-cidrs",
    "block-referers",
    "block-user-agents",
    "compute-full-forwarded-for",
    "disable-access-log",
    "disable-http-access-log",
    "disable-ipv6",
    "disable-ipv6-dns",
    "disable-stream-access-log",
    "enable-access-log-for-default-backend",
    "enable-real-ip",
    "enable-syslog",
    "error-log-level",
    "forwarded-for-header",
    "generate-request-id",
    "hsts",
    "hsts-include-subdomains",
    "hsts-max-age",
    "hsts-preload",
    "global-allowed-response-headers",
    "http-access-log-path",
    "http-redirect-code",
    "http-snippet",
    "limit-conn-zone-variable",
    "location-snippet",
    "log-format-escape-json",
    "log-format-escape-none",
    "log-format-stream",
    "log-format-upstream",
    "main-snippet",
    "no-auth-locations",
    "no-tls-redirect-locations",
    "otel-max-export-batch-size",
    "otel-sampler",
    "otel-sampler-parent-based",
    "otel-sampler-ratio",
    "otel-schedule-delay-millis",
    "otel-service-name",
    "otlp-collector-host",
    "otlp-collector-port",
    "proxy-add-original-uri-header",
    "proxy-real-ip-cidr",
    "proxy-set-headers",
    "proxy-stream-next-upstream",
    "proxy-stream-next-upstream-timeout",
    "proxy-stream-next-upstream-tries",
    "proxy-stream-responses",
    "proxy-stream-timeout",
    "retry-non-idempotent",
    "server-snippet",
    "skip-access-log-urls",
    "ssl-reject-handshake",
    "ssl-session-cache",
    "ssl-session-cache-size",
    "ssl-session-ticket-key",
    "stream-access-log-path",
    "strict-validate-path-type",
    "stream-snippet",
    "syslog-host",
    "syslog-port",
    "upstream-keepalive-connections",
    "upstream-keepalive-requests",
    "upstream-keepalive-time",
    "upstream-keepalive-timeout",
    "use-forwarded-headers",
    "use-http2",
    "use-http3",
    "use-proxy-protocol",
    "worker-processes",
];

/// Keys that weir does not need, and why.
const NEEDLESS: &[(&str, &str)] = &[
    ("allow-snippet-annotations", "the command line has the list of allowed directives"),
    ("enable-aio-write", "no event loop waits for a file"),
    ("enable-serial-reloads", "running workers take changes, there are no reloads"),
    ("enable-multi-accept", "`accept_balance` says how connections are taken"),
    (
        "error-log-path",
        "errors go to standard error, unless the file that weir starts with says otherwise",
    ),
    ("forwarded-for-proxy-protocol-header", "weir-ingress has a name of its own for this header"),
    ("http2-max-field-size", "large-client-header-buffers counts for HTTP/2, too"),
    ("http2-max-header-size", "large-client-header-buffers counts for HTTP/2, too"),
    ("http2-max-requests", "keep-alive-requests counts for HTTP/2, too"),
    ("lua-shared-dicts", "nothing here is kept in dictionaries of Lua"),
    ("map-hash-bucket-size", "tables grow as they must"),
    ("max-worker-connections", "the file that weir starts with says so"),
    ("max-worker-open-files", "the file that weir starts with says so"),
    ("nginx-status-ipv4-whitelist", "figures have a port of their own"),
    ("nginx-status-ipv6-whitelist", "figures have a port of their own"),
    ("otel-max-queuesize", "spans without room are counted and dropped"),
    ("proxy-headers-hash-bucket-size", "tables grow as they must"),
    ("proxy-headers-hash-max-size", "tables grow as they must"),
    ("proxy-ssl-location-only", "each location has what its Ingress says of TLS to servers behind"),
    ("reuse-port", "workers share the connections of a port"),
    ("proxy-protocol-header-timeout", "client-header-timeout counts"),
    ("server-name-hash-bucket-size", "tables grow as they must"),
    ("server-name-hash-max-size", "tables grow as they must"),
    ("ssl-dh-param", "no cipher of weir needs it"),
    ("variables-hash-bucket-size", "tables grow as they must"),
    ("variables-hash-max-size", "tables grow as they must"),
    ("worker-cpu-affinity", "the file that weir starts with says so"),
    ("worker-shutdown-timeout", "the file that weir starts with says so"),
];

/// Keys that weir does not obey, and why. A value that turns the setting off is only a note.
const UNBUILT: &[(&str, &str)] = &[
    (
        "allow-cross-namespace-resources",
        "Secrets and ConfigMaps of other namespaces than the Ingress's are never taken",
    ),
    ("bind-address", "--http and --https of weir-ingress say where weir listens"),
    ("debug-connections", "weir has no logs of single connections"),
    ("enable-owasp-modsecurity-crs", "weir has no web application firewall"),
    ("geoip2-autoreload-in-minutes", "http-snippet may have `geoip2` with `auto_reload`"),
    ("opentelemetry-config", "otlp-collector-host and the otel-* keys say it"),
    ("use-geoip", "weir reads no databases of that format; http-snippet may have `geoip2`"),
    ("use-geoip2", "weir-ingress fetches no databases; http-snippet may have `geoip2` with a file"),
];

/// The settings of the ConfigMap for all hosts.
#[derive(Default)]
pub(super) struct Global {
    /// Directives outside of blocks.
    pub(super) main: Vec<Directive>,
    /// Directives of each server of Ingresses.
    pub(super) server: Vec<Directive>,
    /// Directives of each location of Ingresses.
    pub(super) location: Vec<Directive>,
    /// Directives of `http` that are added to all others.
    pub(super) http_snippet: Vec<Directive>,
    /// Directives of `stream`, with the administrator's servers there.
    pub(super) stream: Vec<Directive>,
    /// Directives of `http` that replace the defaults.
    pub(super) http: Vec<Directive>,
    /// Maps that replace the defaults, by the variable that they set.
    pub(super) maps: BTreeMap<&'static str, Directive>,
    /// The value of `Strict-Transport-Security`.
    pub(super) hsts: String,
    /// Whether `listen` has `proxy_protocol`.
    pub(super) proxy_protocol: bool,
    /// Whether HTTP/3 is served at the ports of TLS.
    pub(super) http3: bool,
    /// Whether there is a collector of traces.
    pub(super) traces: bool,
    /// Variables of ingress-nginx about locations that the ConfigMap's texts name.
    pub(super) used_variables: Vec<&'static str>,
    /// The keys that asked for directives outside of servers.
    pub(super) owners: Owners,
    /// Further headers for upstreams.
    pub(super) headers: Vec<(String, String)>,
}

impl Work<'_> {
    /// Reads the ConfigMap. Findings report wrong and unknown keys.
    pub(super) fn global(&mut self) -> Global {
        let data = self.settings.defaults.clone();
        let mut global = Global::default();
        for (key, value) in &data {
            match self.key(key, value) {
                Ok(mut made) => {
                    global.owners.mark(&key_owner(key), &mut made);
                    global.http.extend(made);
                }
                Err((severity, why)) => self.about_map(key, severity, &why),
            }
        }
        let flag = |key: &str, default: bool| match data.get(key).map(|v| v.trim()) {
            Some("true") => true,
            Some("false") => false,
            _ => default,
        };
        global.hsts = hsts(&data, &flag);
        global.proxy_protocol = flag("use-proxy-protocol", false);
        self.http3(&flag, &mut global);
        self.clients(&data, &flag, &mut global);
        self.logs(&data, &flag, &mut global);
        self.skipped(&data, &mut global);
        self.parts_of_requests(&data, &flag, &mut global);
        self.sessions(&data, &flag, &mut global.http);
        self.blocks(&data, &mut global);
        self.traces(&data, &flag, &mut global);
        self.snippets(&data, &mut global);
        if let Some(count) = data.get("worker-processes").filter(|n| values::of(n, "")) {
            global.main.push(line("worker_processes", [count.as_str()]));
        }
        if data.get("server-tokens").is_some_and(|v| v.trim() == "false") {
            global.http.push(line("more_clear_headers", ["Server"]));
        }
        if !global.hsts.is_empty() {
            // If an answer had two of these headers, a browser would take the first, which is the
            // upstream's.
            // Gateways set none, and pass the upstream's on.
            let hidden = global.http.iter().filter(|d| d.name.is("proxy_hide_header")).cloned();
            global.server.extend(hidden);
            global.server.push(line("proxy_hide_header", ["Strict-Transport-Security"]));
        }
        for (key, name) in [("add-headers", "more_set_headers"), ("proxy-set-headers", "")] {
            let Some(map) = data.get(key) else { continue };
            let headers = self.global_headers(key, map);
            match name {
                "" => global.headers.extend(headers),
                name => global
                    .http
                    .extend(headers.iter().map(|(k, v)| header_line(name, &format!("{k}: {v}")))),
            }
        }
        let is_logged = global.http.iter().any(|d| d.name.is("log_format"));
        let format = if is_logged { FORMAT } else { "" }.to_owned();
        let headers = global.headers.iter().map(|(_, value)| value);
        let texts = data.values().chain(headers).chain([&format]);
        let is_named = |name: &&str| texts.clone().any(|text| names(text, name));
        global.used_variables = OF_LOCATIONS.into_iter().filter(is_named).collect();
        let defaults = defaults(texts);
        global.http.extend(defaults);
        self.without_endless_words(&mut global);
        global
    }

    /// Leaves out directives with a word that is too long for a configuration, since they would
    /// make the whole of it fail.
    fn without_endless_words(&mut self, global: &mut Global) {
        let Global { main, server, location, http_snippet, stream, http, owners, .. } = global;
        for (list, key) in [
            (main, "main-snippet"),
            (server, "server-snippet"),
            (location, "location-snippet"),
            (http_snippet, "http-snippet"),
            (stream, "stream-snippet"),
            (http, ""),
        ] {
            for left_out in
                list.extract_if(.., |d| weir_conf::print_at(slice::from_ref(d), 2).is_err())
            {
                let key = owners.of(&left_out).map_or(key, |owner| owner.name.as_str());
                self.about_map(key, Severity::Error, "it has a word that is too long");
            }
        }
    }

    /// HTTP/3, with the `Alt-Svc` header that offers it.
    fn http3(&mut self, flag: &dyn Fn(&str, bool) -> bool, global: &mut Global) {
        if !flag("use-http3", false) {
            return;
        }
        let versions = global.http.iter().find(|d| d.name.is("ssl_protocols"));
        if versions.is_some_and(|d| !d.args.iter().any(|word| word.is("TLSv1.3"))) {
            let why = "it needs TLSv1.3 in ssl-protocols; there is no HTTP/3";
            self.about_map("use-http3", Severity::Warning, why);
            return;
        }
        global.http3 = true;
        // Clients know the port of the Service.
        let port = self.settings.https_port;
        let offer = format!("h3=\":{port}\"; ma=86400");
        let rows = vec![line("on", [offer.as_str()]), line("default", [""])];
        global.http.push(line("map", ["$https", "$alt_svc"]).with_block(rows));
    }

    pub(super) fn about_map(&mut self, key: &str, severity: Severity, why: &str) {
        let reason = match severity {
            Severity::Note => "NeedlessKey",
            // Findings with this reason keep their lines, which end in a caret.
            _ if key.ends_with("-snippet") => "InvalidSnippet",
            _ => "InvalidKey",
        };
        let name = self.settings.config_map.clone();
        let (namespace, name) = name.unwrap_or((String::new(), "controller".to_owned()));
        let id = ObjectId { kind: "ConfigMap", namespace, name };
        self.say(&id, severity, reason, key, why);
    }

    fn key(&self, key: &str, value: &str) -> Result<Vec<Directive>, (Severity, String)> {
        if let Some((_, why)) = NEEDLESS.iter().find(|(name, _)| *name == key) {
            return Err((Severity::Note, (*why).to_owned()));
        }
        if let Some((_, why)) = UNBUILT.iter().find(|(name, _)| *name == key) {
            return Err(unbuilt(value, why));
        }
        if let Some((_, name, kind)) = SET.iter().find(|(name, ..)| *name == key) {
            let words = words(*kind, value.trim()).map_err(|why| (Severity::Warning, why))?;
            return Ok(match *name {
                // One directive for each header.
                "proxy_hide_header" => words.iter().map(|w| line(name, [w.as_str()])).collect(),
                name => vec![line(name, words.iter().map(String::as_str))],
            });
        }
        if OTHER.contains(&key) || annotations::GLOBAL_KEYS.contains(&key) {
            return Ok(Vec::new());
        }
        match annotations::state(key) {
            Some(annotations::State::Unbuilt(why)) => {
                return Err(unbuilt(value, why));
            }
            Some(_) => return Ok(Vec::new()),
            None => {}
        }
        Err((Severity::Warning, "weir-ingress does not know this key; it has no effect".to_owned()))
    }

    /// The address of the client, if a load balancer is in front.
    fn clients(
        &mut self,
        data: &BTreeMap<String, String>,
        flag: &dyn Fn(&str, bool) -> bool,
        global: &mut Global,
    ) {
        let forwarded = flag("use-forwarded-headers", false);
        let real = forwarded || flag("enable-real-ip", false) || global.proxy_protocol;
        if real {
            let all = "0.0.0.0/0,::/0".to_owned();
            let text = data.get("proxy-real-ip-cidr").unwrap_or(&all);
            let Some(networks) = values::networks(text) else {
                let why = "it must be a list of networks";
                self.about_map("proxy-real-ip-cidr", Severity::Error, why);
                return;
            };
            let header = data.get("forwarded-for-header").map_or("X-Forwarded-For", |h| h.trim());
            let header = if values::is_header(header) { header } else { "X-Forwarded-For" };
            let header = match (forwarded, global.proxy_protocol) {
                (true, true) => Self::behind_proxies(header, &networks, global),
                (false, true) => "proxy_protocol".to_owned(),
                _ => header.to_owned(),
            };
            global.http.push(line("real_ip_header", [header.as_str()]));
            global.http.push(line("real_ip_recursive", ["on"]));
            global.http.extend(
                networks.iter().map(|network| line("set_real_ip_from", [network.as_str()])),
            );
        }
        let mut map = |from: &str, to: &'static str, rows: &[(&str, &str)]| {
            let rows = rows.iter().map(|(key, value)| line(key, [*value])).collect();
            global.maps.insert(to, line("map", [from, to]).with_block(rows));
        };
        if forwarded {
            let scheme = [
                ("default", "$scheme"),
                ("~^[A-Za-z][A-Za-z0-9+.-]{0,31}$", "$http_x_forwarded_proto"),
            ];
            map("$http_x_forwarded_proto", "$pass_access_scheme", &scheme);
            let host = [("default", "$http_host"), ("", "$host")];
            map("$http_host", "$own_http_host", &host);
            // The first of several hosts is the one that the client asked for.
            let host = [
                ("default", "$own_http_host"),
                ("~^(?<forwarded_host>[A-Za-z0-9._:\\[\\]-]+)", "$forwarded_host"),
            ];
            map("$http_x_forwarded_host", "$best_http_host", &host);
            map(
                "$best_http_host",
                "$redirect_host",
                &[
                    ("default", "$host"),
                    ("~^(?<redirect_name>[A-Za-z0-9._-]+)(:[0-9]+)?$", "$redirect_name"),
                ],
            );
            let port = [("default", "$pass_own_port"), ("~^[0-9]{1,5}$", "$http_x_forwarded_port")];
            map("$http_x_forwarded_port", "$pass_server_port", &port);
        }
        if global.proxy_protocol {
            // The port that the client connected to, if the load balancer sends it.
            map(
                "$proxy_protocol_server_port",
                "$pass_own_port",
                &[("default", "$proxy_protocol_server_port"), ("", "$public_port")],
            );
            if !forwarded {
                let scheme = [("default", "$scheme"), ("443", "https")];
                map("$pass_server_port", "$pass_access_scheme", &scheme);
            }
        }
        if flag("compute-full-forwarded-for", false) {
            map(
                "$remote_addr",
                "$full_x_forwarded_for",
                &[("default", "$proxy_add_x_forwarded_for")],
            );
        }
    }

    /// The value for `real_ip_header` if a load balancer sends its client's address by the PROXY
    /// protocol. If that client is one of `networks`, it is a proxy itself, and the address that it
    /// forwards counts. The value is no header, so no client can send it.
    fn behind_proxies(header: &str, networks: &[String], global: &mut Global) -> String {
        let mut rows = vec![line("default", ["0"])];
        rows.extend(networks.iter().map(|network| line(network, ["1"])));
        let geo = line("geo", ["$proxy_protocol_addr", "$connected_proxy"]).with_block(rows);
        let forwarded = format!("$http_{}", header.to_ascii_lowercase().replace('-', "_"));
        let map = |from: &str, to: &str, rows: [(&str, &str); 2]| {
            let rows = rows.map(|(key, value)| line(key, [value]));
            line("map", [from, to]).with_block(rows.into())
        };
        let own = "$proxy_protocol_addr";
        let said = map(&forwarded, "$said_by_proxy", [("default", &forwarded), ("", own)]);
        let rows = [("default", own), ("1", "$said_by_proxy")];
        let chosen = map("$connected_proxy", "$connected_for", rows);
        global.http.extend([geo, said, chosen]);
        "value=$connected_for".to_owned()
    }

    /// The headers of a ConfigMap that the administrator names: namespace and name.
    fn global_headers(&mut self, key: &str, map: &str) -> Vec<(String, String)> {
        let found = map.trim().split_once('/').and_then(|(n, m)| self.index.config_map(n, m));
        let Some(headers) = found.and_then(|map| map.data.as_ref()) else {
            self.about_map(key, Severity::Warning, "there is no such ConfigMap with data");
            return Vec::new();
        };
        let good = |(name, value): &(&String, &String)| {
            values::is_header(name)
                && value.len() <= values::LONGEST
                && !value.contains(char::is_control)
        };
        let taken = headers.iter().filter(good);
        taken.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

fn unbuilt(value: &str, why: &str) -> (Severity, String) {
    let off = matches!(value.trim(), "" | "0" | "false");
    let severity = if off { Severity::Note } else { Severity::Warning };
    (severity, format!("not built into weir-ingress: {why}"))
}

fn words(kind: Value, text: &str) -> Result<Vec<String>, String> {
    let number = |text: &str| text.parse::<u64>().ok().filter(|n| *n <= 1 << 40);
    match kind {
        Value::Flag => match text {
            "true" | "on" => Ok(vec!["on".to_owned()]),
            "false" | "off" => Ok(vec!["off".to_owned()]),
            _ => Err("it must be \"true\" or \"false\"".to_owned()),
        },
        Value::Number(unit) => match number(text.strip_suffix(unit).unwrap_or(text)) {
            Some(number) => Ok(vec![format!("{number}{unit}")]),
            None => Err("it must be a number".to_owned()),
        },
        Value::Size => match values::size(text) {
            Some(size) => Ok(vec![size.to_string()]),
            None => Err("it must be a size".to_owned()),
        },
        Value::Words(signs) => {
            let list: Vec<String> =
                text.split([' ', ',']).filter(|w| !w.is_empty()).map(str::to_owned).collect();
            match !list.is_empty() && list.iter().all(|word| values::of(word, signs)) {
                true => Ok(list),
                false => Err("it has characters that are not allowed here".to_owned()),
            }
        }
        Value::Pair => {
            let list: Vec<&str> = text.split_whitespace().collect();
            match list.as_slice() {
                [count, size] if number(count).is_some() && values::size(size).is_some() => {
                    Ok(vec![(*count).to_owned(), (*size).to_owned()])
                }
                _ => Err("it must be a number and a size".to_owned()),
            }
        }
    }
}

fn hsts(data: &BTreeMap<String, String>, flag: &dyn Fn(&str, bool) -> bool) -> String {
    if !flag("hsts", true) {
        return String::new();
    }
    let age = data.get("hsts-max-age").and_then(|age| age.trim().parse::<u64>().ok());
    let mut text = format!("max-age={}", age.unwrap_or(31_536_000));
    if flag("hsts-include-subdomains", true) {
        text.push_str("; includeSubDomains");
    }
    if flag("hsts-preload", false) {
        text.push_str("; preload");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_sets_a_directive_that_there_is() {
        for (key, directive, _) in SET {
            assert!(weir_conf::all_known().any(|known| known.name == *directive), "{key}");
        }
    }

    /// A key is named by itself or by its prefix, such as `hsts*`.
    #[test]
    fn the_page_names_each_key() {
        let page = include_str!("../../../../docs/kubernetes.md");
        let (_, keys) = page.split_once("\n## The ConfigMap\n").unwrap();
        let (keys, _) = keys.split_once("\n## ").unwrap();
        let named: Vec<&str> = keys.split('`').skip(1).step_by(2).collect();
        let is_named = |key: &str| {
            let begins = |name: &&str| name.strip_suffix('*').is_some_and(|a| key.starts_with(a));
            named.contains(&key) || named.iter().any(begins)
        };
        for key in SET.iter().map(|(key, ..)| key).chain(OTHER) {
            assert!(is_named(key), "docs/kubernetes.md does not name {key}");
        }
    }

    #[test]
    fn values_are_read_as_what_they_are() {
        assert_eq!(words(Value::Flag, "true"), Ok(vec!["on".to_owned()]));
        assert_eq!(words(Value::Number("s"), "75"), Ok(vec!["75s".to_owned()]));
        assert_eq!(words(Value::Number("s"), "75s"), Ok(vec!["75s".to_owned()]));
        assert!(words(Value::Number("s"), "75; return 200").is_err());
        assert!(words(Value::Words("./"), "a/b;").is_err());
        assert_eq!(words(Value::Pair, "4 8k"), Ok(vec!["4".to_owned(), "8k".to_owned()]));
    }
}
