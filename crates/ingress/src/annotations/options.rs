//! The settings that the annotations of an Ingress ask for.

use super::values::{self, Url};
use super::{AuthRequest, Canary, Reader, buffers};

/// The protocol of the upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP.
    #[default]
    Http,
    /// HTTP over TLS.
    Https,
    /// HTTP or HTTPS, as the client uses.
    Auto,
    /// gRPC.
    Grpc,
    /// gRPC over TLS.
    Grpcs,
    /// FastCGI.
    Fcgi,
}

/// A cookie that binds a client to an upstream server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The arguments of `sticky`, without the path.
    pub words: Vec<String>,
    /// The path of the cookie, if it is not the rule's.
    pub path: Option<String>,
    /// Whether the cookie binds clients to a canary.
    pub canary: bool,
}

/// `auth-type: basic`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasicAuth {
    /// The Secret, as the annotation names it.
    pub secret: String,
    /// Whether the keys of the Secret are the users (`auth-map`).
    pub map: bool,
    /// The realm that users see.
    pub realm: String,
}

/// `auth-tls-*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// The Secret, as the annotation names it.
    pub secret: String,
    /// `ssl_verify_client`.
    pub verify: &'static str,
    /// `ssl_verify_depth`.
    pub depth: u64,
    /// Where clients without a valid certificate are sent.
    pub error_page: Option<String>,
    /// Whether the upstream gets the certificate.
    pub pass: bool,
    /// A pattern that the subject must match.
    pub subject: Option<String>,
}

/// `cors-*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// A pattern for origins; `None` allows all.
    pub origins: Option<String>,
    /// Headers of the answer beside `Access-Control-Allow-Origin`.
    pub headers: Vec<(&'static str, String)>,
}

/// `limit-*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Connections of an address at the same time.
    pub connections: Option<u64>,
    /// Requests of an address in a second.
    pub second: Option<u64>,
    /// Requests of an address in a minute.
    pub minute: Option<u64>,
    /// The burst, as a multiple of the rate.
    pub burst: u64,
    /// Networks that are not limited.
    pub free: Vec<String>,
    /// `limit_rate`, in kilobytes.
    pub rate: Option<u64>,
    /// `limit_rate_after`, in kilobytes.
    pub rate_after: Option<u64>,
}

/// `mirror-*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Where copies go.
    pub url: Url,
    /// The `Host` of the copies.
    pub host: String,
    /// Whether copies have the request's body.
    pub body: bool,
}

/// `proxy-ssl-*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyTls {
    /// The Secret, as the annotation names it.
    pub secret: Option<String>,
    /// Directives without the prefix `proxy_ssl_`, and their arguments.
    pub words: Vec<(&'static str, Vec<String>)>,
}

/// `enable-opentelemetry`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Whether a request continues its client's trace.
    pub trusts_clients: bool,
    /// The name of spans.
    pub name: Option<String>,
}

/// The settings of an Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The protocol of the upstream.
    pub protocol: Protocol,
    /// The path for the upstream.
    pub rewrite: Option<String>,
    /// Whether paths are patterns.
    pub regex: bool,
    /// Where `/` is redirected.
    pub app_root: Option<String>,
    /// A redirect in place of an upstream: status and URL.
    pub redirect: Option<(u64, String)>,
    /// Whether redirects lack the host.
    pub relative_redirects: bool,
    /// Whether redirects name the port.
    pub redirect_port: bool,
    /// Whether HTTP is redirected to HTTPS if the host has TLS.
    pub ssl_redirect: bool,
    /// Whether HTTP is redirected to HTTPS in any case.
    pub force_ssl_redirect: bool,
    /// Whether redirects to HTTPS keep the trailing slash.
    pub keep_slash: bool,
    /// Whether the upstream terminates the host's TLS.
    pub passthrough: bool,
    /// Whether the other one of `example.com` and `www.example.com` is redirected here.
    pub from_to_www: bool,
    /// Further names of the hosts.
    pub aliases: Vec<String>,
    /// Networks that are allowed.
    pub allow: Vec<String>,
    /// Networks that are denied.
    pub deny: Vec<String>,
    /// `satisfy`: `any` or `all`.
    pub satisfy: Option<&'static str>,
    /// The authentication service.
    pub auth_request: Option<AuthRequest>,
    /// Basic authentication.
    pub basic: Option<BasicAuth>,
    /// Client certificates.
    pub client_certificates: Option<ClientCertificates>,
    /// An annotation that restricts access and cannot be obeyed. All requests are refused then.
    pub closed: Option<&'static str>,
    /// Cross-origin requests.
    pub cors: Option<Cors>,
    /// Limits.
    pub limits: Limits,
    /// Mirrored requests.
    pub mirror: Option<Mirror>,
    /// TLS to the upstream.
    pub proxy_tls: ProxyTls,
    /// Statuses whose answers the default backend gives.
    pub errors: Vec<u64>,
    /// Whether the upstream's own errors are passed on.
    pub keep_errors: bool,
    /// The Service for errors, and for paths without an upstream server.
    pub default_backend: Option<String>,
    /// Whether the Service's cluster IP is used in place of its pods.
    pub service_upstream: bool,
    /// The cookie that binds clients to servers.
    pub affinity: Option<Affinity>,
    /// The balancing directive of the upstream.
    pub balance: Option<Vec<String>>,
    /// The `Host` for the upstream.
    pub vhost: Option<String>,
    /// `X-Forwarded-Prefix`.
    pub prefix: Option<String>,
    /// `Connection` for the upstream.
    pub connection: Option<String>,
    /// Directives that an annotation sets directly: name and arguments.
    pub simple: Vec<(&'static str, Vec<String>)>,
    /// The rules of a canary, if the Ingress is one.
    pub canary: Option<Canary>,
    /// TLS directives of the host: name and argument.
    pub tls: Vec<(&'static str, String)>,
    /// `fastcgi_index`.
    pub fastcgi_index: Option<String>,
    /// The ConfigMap with parameters of FastCGI, as the annotation names it.
    pub fastcgi_params: Option<String>,
    /// Whether clients with the main Ingress's cookie stay with a canary that answered them.
    pub sticky_canary: bool,
    /// The ConfigMap with headers of answers, as the annotation names it.
    pub custom_headers: Option<String>,
    /// Tracing, if it is on.
    pub trace: Option<Trace>,
    /// Directives for locations, unread.
    pub location_snippet: Option<String>,
    /// Directives for servers, unread.
    pub server_snippet: Option<String>,
}

/// The longest time, in seconds.
const LONGEST_TIME: u64 = 7 * 24 * 3600;

pub(super) const URL_SIGNS: &str = "-._~/:,?&=%+#@";

impl Options {
    /// Reads all annotations.
    pub fn read(r: &Reader<'_>, loopback: bool) -> Options {
        let mut o = Options::default();
        routes(r, &mut o);
        access(r, &mut o, loopback);
        servers(r, &mut o);
        simple(r, &mut o);
        o.cors = cors(r);
        o.limits = limits(r);
        o.mirror = mirror(r, loopback);
        o.canary = Canary::read(r);
        o.fastcgi_index = r.plain("fastcgi-index", "-._");
        o.fastcgi_params = r.plain("fastcgi-params-configmap", "-./");
        let behavior = r.choice("affinity-canary-behavior", &["sticky", "legacy"]);
        o.sticky_canary = behavior != Some("legacy");
        o.custom_headers = r.plain("custom-headers", "-./");
        o.trace = trace(r);
        o.location_snippet = r.text("configuration-snippet").map(str::to_owned);
        o.server_snippet = r.text("server-snippet").map(str::to_owned);
        super::needs::tell(r);
        o
    }

    /// Whether a path of the Ingress is a pattern, as in ingress-nginx.
    pub fn makes_pattern(&self, path: &str) -> bool {
        self.regex || self.rewrite.as_ref().is_some_and(|target| target != path)
    }
}

fn trace(r: &Reader<'_>) -> Option<Trace> {
    let trusts_clients = r.flag("opentelemetry-trust-incoming-span").unwrap_or(true);
    let name = r.plain("opentelemetry-operation-name", "-_");
    r.flag("enable-opentelemetry").unwrap_or(false).then_some(Trace { trusts_clients, name })
}

fn routes(r: &Reader<'_>, o: &mut Options) {
    let path = |name| r.template(name, "-._~/:");
    o.rewrite = path("rewrite-target");
    o.regex = r.flag("use-regex").unwrap_or(false);
    o.app_root = path("app-root").filter(|root| {
        let good = root.starts_with('/');
        if !good {
            r.wrong("app-root", "it must begin with a slash");
        }
        good
    });
    // Versions of ingress-nginx that did not validate annotations took `https://new.test$request_uri`.
    let url = |name| r.template(name, URL_SIGNS);
    let code = |name, default| r.number(name, 300, 308).unwrap_or(default);
    let (moved, found) = (url("permanent-redirect"), url("temporal-redirect"));
    let (moved_code, found_code) =
        (code("permanent-redirect-code", 301), code("temporal-redirect-code", 302));
    o.redirect = found.map(|to| (found_code, to)).or(moved.map(|to| (moved_code, to)));
    o.relative_redirects = r.flag("relative-redirects").unwrap_or(false);
    o.redirect_port = r.flag("use-port-in-redirects").unwrap_or(false);
    o.ssl_redirect = r.flag("ssl-redirect").unwrap_or(true);
    o.force_ssl_redirect = r.flag("force-ssl-redirect").unwrap_or(false);
    o.keep_slash = r.flag("preserve-trailing-slash").unwrap_or(false);
    o.passthrough = r.flag("ssl-passthrough").unwrap_or(false);
    o.from_to_www = r.flag("from-to-www-redirect").unwrap_or(false);
    let names = r.read("server-alias", |text| {
        let names = text.split(',').map(|name| name.trim().to_lowercase());
        let names = names.filter(|name| !name.is_empty());
        let (good, wrong): (Vec<_>, Vec<_>) = names.partition(|name| values::is_host(name, true));
        if let Some(name) = wrong.first() {
            let why = "is no host name, and patterns are not taken; it is left out";
            r.wrong("server-alias", format!("\"{name}\" {why}"));
        }
        Ok(good)
    });
    o.aliases = names.unwrap_or_default();
    o.vhost = r.template("upstream-vhost", "-._~:/");
    o.prefix = path("x-forwarded-prefix");
    o.connection = r.choice("connection-proxy-header", &["close", "keep-alive"]).map(str::to_owned);
}

fn wrong_networks() -> String {
    "it must be a list of networks, as in 10.0.0.0/8,192.0.2.1".to_owned()
}

/// Reads what restricts access. If a value is wrong, all requests are refused: the owner meant to
/// keep some clients out.
fn access(r: &Reader<'_>, o: &mut Options, loopback: bool) {
    let mut close = |wrong: bool, name: &'static str| {
        if wrong {
            o.closed = o.closed.or(Some(name));
        }
    };
    let networks = |text: &str| values::networks(text).ok_or_else(wrong_networks);
    let mut lists = ["allowlist-source-range", "denylist-source-range"].map(|name| {
        // No limit of length: lists may be long, and each network becomes a word of its own.
        let list = r.text(name).map(networks);
        if let Some(Err(why)) = &list {
            r.wrong(name, why);
            close(true, name);
        }
        list.and_then(Result::ok).unwrap_or_default()
    });
    let [allow, deny] = &mut lists;
    o.allow = std::mem::take(allow);
    o.deny = std::mem::take(deny);
    o.satisfy = r.choice("satisfy", &["any", "all"]);
    o.auth_request = AuthRequest::read(r, loopback);
    let wanted = AuthRequest::is_wanted(r);
    close(wanted && o.auth_request.is_none(), "auth-url");
    let kind = r.choice("auth-type", &["basic", "digest"]);
    let realm =
        r.plain("auth-realm", "-._~/: ").unwrap_or_else(|| "Authentication Required".to_owned());
    let map = r.choice("auth-secret-type", &["auth-file", "auth-map"]) == Some("auth-map");
    let secret = r.plain("auth-secret", "-./");
    match (kind, secret) {
        (Some("basic"), Some(secret)) => o.basic = Some(BasicAuth { secret, map, realm }),
        (Some(_), Some(_)) => {
            let why = "digest authentication is not built; nobody is let in. Use basic, or a service (auth-url)";
            r.wrong("auth-type", why);
            close(true, "auth-type");
        }
        (Some(_), None) => {
            r.wrong("auth-secret", "the authentication names no Secret; nobody is let in");
            close(true, "auth-secret");
        }
        (None, _) => close(r.text("auth-type").is_some(), "auth-type"),
    }
    let (certificates, wrong) = ClientCertificates::read(r);
    close(wrong.is_some(), wrong.unwrap_or_default());
    o.client_certificates = certificates;
}

fn servers(r: &Reader<'_>, o: &mut Options) {
    let protocols = ["HTTP", "HTTPS", "AUTO_HTTP", "GRPC", "GRPCS", "FCGI"];
    o.protocol = match r.choice("backend-protocol", &protocols) {
        Some("HTTPS") => Protocol::Https,
        Some("AUTO_HTTP") => Protocol::Auto,
        Some("GRPC") => Protocol::Grpc,
        Some("GRPCS") => Protocol::Grpcs,
        Some("FCGI") => Protocol::Fcgi,
        _ => Protocol::Http,
    };
    o.service_upstream = r.flag("service-upstream").unwrap_or(false);
    let hash = r.template("upstream-hash-by", "-_.:/|,");
    let balance = r.choice("load-balance", &["round_robin", "ewma", "least_conn", "ip_hash"]);
    o.balance = match (hash, balance) {
        (Some(key), _) => Some(vec!["hash".to_owned(), key, "consistent".to_owned()]),
        (None, Some("least_conn")) => Some(vec!["least_conn".to_owned()]),
        (None, Some("ewma")) => Some(vec!["least_time".to_owned(), "header".to_owned()]),
        (None, Some("ip_hash")) => Some(vec!["ip_hash".to_owned()]),
        (None, _) => None,
    };
    o.affinity = affinity(r);
    o.default_backend = r.read("default-backend", |text| match values::is_label(text) {
        true => Ok(text.to_owned()),
        false => Err("it is no name of a Service".to_owned()),
    });
    let errors = r.read("custom-http-errors", |text| {
        let codes = text.split(',').map(str::trim).filter(|code| !code.is_empty());
        let codes: Option<Vec<u64>> = codes
            .map(|code| code.parse().ok().filter(|c| (400..=599).contains(c) && *c != 499))
            .collect();
        codes.ok_or("it must be a list of statuses from 400 to 599, without 499".to_owned())
    });
    o.errors = errors.unwrap_or_default();
    o.errors.sort_unstable();
    o.errors.dedup();
    o.keep_errors = r.flag("disable-proxy-intercept-errors").unwrap_or(false);
    o.proxy_tls.secret = r.plain("proxy-ssl-secret", "-./");
    let flags = ["on", "off"];
    let mut set = |name, words: Option<Vec<String>>| {
        o.proxy_tls.words.extend(words.map(|words| (name, words)));
    };
    set("verify", r.choice("proxy-ssl-verify", &flags).map(|v| vec![v.to_owned()]));
    set("server_name", r.choice("proxy-ssl-server-name", &flags).map(|v| vec![v.to_owned()]));
    set("verify_depth", r.number("proxy-ssl-verify-depth", 1, 32).map(|n| vec![n.to_string()]));
    set("name", r.template("proxy-ssl-name", "-._").map(|name| vec![name]));
    let protocols = r.read("proxy-ssl-protocols", |text| {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let known = words.iter().all(|w| w == "TLSv1.2" || w == "TLSv1.3");
        known.then_some(words).ok_or("it must be TLSv1.2 and TLSv1.3, or one of them".to_owned())
    });
    set("protocols", protocols);
    set("ciphers", r.plain("proxy-ssl-ciphers", CIPHERS).map(|list| vec![list]));
    let prefer = r.flag("ssl-prefer-server-ciphers").map(|on| if on { "on" } else { "off" });
    o.tls.extend(r.plain("ssl-ciphers", CIPHERS).map(|list| ("ssl_ciphers", list)));
    o.tls.extend(prefer.map(|word| ("ssl_prefer_server_ciphers", word.to_owned())));
}

/// The characters of a list of ciphers beside letters and digits.
const CIPHERS: &str = ":!+-@=_.";

fn affinity(r: &Reader<'_>) -> Option<Affinity> {
    let kind = r.choice("affinity", &["cookie"]);
    let name = r.plain("session-cookie-name", "-_.~").unwrap_or_else(|| "INGRESSCOOKIE".to_owned());
    let mut words = vec!["cookie".to_owned(), name];
    let longest = 10 * 365 * 24 * 3600;
    let age = r.number("session-cookie-max-age", 0, longest);
    let expires = r.number("session-cookie-expires", 0, longest);
    words.extend(age.or(expires).filter(|&s| s > 0).map(|seconds| format!("expires={seconds}s")));
    words.extend(r.plain("session-cookie-domain", "-.").map(|domain| format!("domain={domain}")));
    let path = r.plain("session-cookie-path", "-._~/");
    let site = r.choice("session-cookie-samesite", &["none", "lax", "strict"]);
    words.extend(site.map(|site| format!("samesite={site}")));
    words.extend(r.flag("session-cookie-secure").filter(|on| *on).map(|_| "secure".to_owned()));
    words.push("httponly".to_owned());
    kind.map(|_| Affinity { words, path, canary: false })
}

fn simple(r: &Reader<'_>, o: &mut Options) {
    let mut set = |name, word: Option<String>| o.simple.extend(word.map(|word| (name, vec![word])));
    let seconds = |name| r.number(name, 1, LONGEST_TIME).map(|s| format!("{s}s"));
    set("proxy_connect_timeout", seconds("proxy-connect-timeout"));
    set("proxy_send_timeout", seconds("proxy-send-timeout"));
    set("proxy_read_timeout", seconds("proxy-read-timeout"));
    let flags = ["on", "off"];
    set("proxy_buffering", r.choice("proxy-buffering", &flags).map(str::to_owned));
    set("proxy_request_buffering", r.choice("proxy-request-buffering", &flags).map(str::to_owned));
    set("proxy_http_version", r.choice("proxy-http-version", &["1.0", "1.1"]).map(str::to_owned));
    set("client_max_body_size", r.size("proxy-body-size", 0, u64::MAX >> 1));
    // ingress-nginx does not take a letter for bytes in this size.
    let bytes = r.text("client-body-buffer-size").is_some_and(|t| t.trim().ends_with(['b', 'B']));
    if bytes {
        r.wrong("client-body-buffer-size", "it must be a size");
    } else {
        set("client_body_buffer_size", r.size("client-body-buffer-size", 1, 64 << 20));
    }
    set("proxy_max_temp_file_size", r.size("proxy-max-temp-file-size", 0, u64::MAX >> 1));
    let tries = r.number("proxy-next-upstream-tries", 0, 1_000_000).map(|n| n.to_string());
    set("proxy_next_upstream_tries", tries);
    let time =
        r.number("proxy-next-upstream-timeout", 0, 4 * LONGEST_TIME).map(|s| format!("{s}s"));
    set("proxy_next_upstream_timeout", time);
    if r.flag("enable-access-log") == Some(false) {
        set("access_log", Some("off".to_owned()));
    }
    if r.flag("enable-rewrite-log") == Some(true) {
        set("rewrite_log", Some("on".to_owned()));
    }
    buffers::read(r, o);
    buffers::check_files(r, o);
    let next = r.read("proxy-next-upstream", |text| {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let known = words.iter().all(|word| NEXT.contains(&word.as_str()));
        known.then_some(words).ok_or_else(|| format!("it must have words of {}", NEXT.join(", ")))
    });
    let again = r.of_administrator("retry-non-idempotent").is_some_and(|t| t.trim() == "true");
    o.simple.extend(next.map(|mut words| {
        if again && !words.iter().any(|word| word == "non_idempotent" || word == "off") {
            words.push("non_idempotent".to_owned());
        }
        ("proxy_next_upstream", words)
    }));
    let (from, to) =
        (r.plain("proxy-redirect-from", URL_SIGNS), r.plain("proxy-redirect-to", URL_SIGNS));
    let from = from.filter(|from| {
        let read = from.strip_prefix('~').map_or(Ok(()), values::pattern);
        read.map_err(|why| r.wrong("proxy-redirect-from", why)).is_ok()
    });
    let redirect = match (from.as_deref(), to) {
        (Some("off" | "default"), _) => from.map(|from| vec![from]),
        (Some(from), Some(to)) if to != "off" => Some(vec![from.to_owned(), to]),
        _ => None,
    };
    o.simple.extend(redirect.map(|words| ("proxy_redirect", words)));
    let domain = r.plain("proxy-cookie-domain", "-._~ ");
    o.simple.extend(pair(r, "proxy-cookie-domain", domain).map(|w| ("proxy_cookie_domain", w)));
    let path = r.plain("proxy-cookie-path", "-._~/ ");
    o.simple.extend(pair(r, "proxy-cookie-path", path).map(|w| ("proxy_cookie_path", w)));
}

const NEXT: &[&str] = &[
    "error",
    "timeout",
    "invalid_header",
    "http_500",
    "http_502",
    "http_503",
    "http_504",
    "http_403",
    "http_404",
    "http_429",
    "non_idempotent",
    "off",
];

/// `off`, or two words: what is replaced, and by what.
fn pair(r: &Reader<'_>, name: &'static str, text: Option<String>) -> Option<Vec<String>> {
    let words: Vec<String> = text?.split_whitespace().map(str::to_owned).collect();
    let good = words.len() == 2 && !words.iter().any(|w| w.starts_with('~'))
        || words.len() == 1 && words.first().is_some_and(|word| word == "off");
    if !good {
        r.wrong(name, "it must be \"off\" or two words");
    }
    good.then_some(words)
}

fn cors(r: &Reader<'_>) -> Option<Cors> {
    let on = r.flag("enable-cors").unwrap_or(false);
    let origins = r.read("cors-allow-origin", |text| {
        let list = text.split(',').map(str::trim).filter(|origin| !origin.is_empty());
        let (good, wrong): (Vec<_>, Vec<_>) = list.map(origin_pattern).partition(Result::is_ok);
        let patterns: Vec<String> = good.into_iter().flatten().collect();
        let any = patterns.iter().any(|p| p == "*");
        let first = wrong.into_iter().find_map(Result::err).filter(|_| !any);
        if patterns.is_empty() {
            return Err(first.unwrap_or_else(|| "it names no origin".to_owned()));
        }
        if let Some(why) = first {
            r.wrong("cors-allow-origin", format!("{why}; it is left out"));
        }
        Ok(if any { None } else { Some(format!("^({})$", patterns.join("|"))) })
    });
    if on && r.text("cors-allow-origin").is_some() && origins.is_none() {
        return None;
    }
    let list = |name, signs: &str, default: &str| {
        r.plain(name, signs).unwrap_or_else(|| default.to_owned())
    };
    let mut headers = Vec::new();
    if r.flag("cors-allow-credentials").unwrap_or(true) {
        headers.push(("Access-Control-Allow-Credentials", "true".to_owned()));
    }
    let methods = "GET, PUT, POST, DELETE, PATCH, OPTIONS";
    headers.push(("Access-Control-Allow-Methods", list("cors-allow-methods", ", ", methods)));
    let allowed = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";
    headers.push(("Access-Control-Allow-Headers", list("cors-allow-headers", "-_, ", allowed)));
    let exposed = r.plain("cors-expose-headers", "-_,* ");
    headers.extend(exposed.map(|names| ("Access-Control-Expose-Headers", names)));
    let age = r.number("cors-max-age", 0, u64::from(u32::MAX)).unwrap_or(1_728_000);
    headers.push(("Access-Control-Max-Age", age.to_string()));
    on.then_some(Cors { origins: origins.flatten(), headers })
}

/// Whether `cors-allow-origin` may name this origin.
pub fn is_origin(origin: &str) -> bool {
    origin_pattern(origin).is_ok()
}

/// A pattern for an origin, in which `*.` stands for one label.
fn origin_pattern(origin: &str) -> Result<String, String> {
    if origin == "*" || origin == "null" {
        return Ok(origin.to_owned());
    }
    let wrong = || format!("\"{origin}\" is no origin, as https://a.example or * is");
    let (scheme, rest) = origin.split_once("://").ok_or_else(wrong)?;
    let name = rest.strip_prefix("*.");
    let host = name.unwrap_or(rest);
    if scheme.is_empty() || !values::of(scheme, "+-") || host.is_empty() || !values::of(host, "-.:")
    {
        return Err(wrong());
    }
    let quote = |text: &str| text.replace('.', "\\.").replace('+', "\\+");
    let label = if name.is_some() { "[A-Za-z0-9\\-]+\\." } else { "" };
    Ok(format!("{}://{label}{}", quote(scheme), quote(host)))
}

fn limits(r: &Reader<'_>) -> Limits {
    let limit = |name| r.number(name, 0, 1_000_000).filter(|&n| n > 0);
    Limits {
        connections: r.number("limit-connections", 0, 65_535).filter(|&n| n > 0),
        second: limit("limit-rps"),
        minute: limit("limit-rpm"),
        burst: r.number("limit-burst-multiplier", 1, 1000).unwrap_or(5),
        free: r
            .read("limit-allowlist", |text| values::networks(text).ok_or_else(wrong_networks))
            .unwrap_or_default(),
        rate: limit("limit-rate"),
        rate_after: limit("limit-rate-after"),
    }
}

fn mirror(r: &Reader<'_>, loopback: bool) -> Option<Mirror> {
    let url = r.read("mirror-target", |text| values::url(text, loopback));
    let host = r.plain("mirror-host", "-._:");
    let body = r.choice("mirror-request-body", &["on", "off"]) != Some("off");
    url.map(|url| Mirror { host: host.unwrap_or_else(|| url.host.clone()), url, body })
}
