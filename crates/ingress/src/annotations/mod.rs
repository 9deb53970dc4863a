//! The annotations of ingress-nginx: their names, how their values are read, and what they ask for.

mod auth;
mod buffers;
mod canary;
mod needs;
mod options;
mod reader;
mod risk;
pub mod values;

pub use auth::{AuthRequest, GLOBAL_KEYS};
pub use canary::{Canary, Chosen};
pub use options::{
    Affinity, BasicAuth, ClientCertificates, Cors, Limits, Mirror, Options, Protocol, ProxyTls,
    Trace, is_origin,
};
pub use reader::Reader;
pub use risk::Risk;

/// How weir-ingress treats an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// weir obeys it.
    Built,
    /// Another name of an annotation that weir obeys.
    Alias(&'static str),
    /// weir needs no such setting, for this reason.
    Needless(&'static str),
    /// weir does not obey it yet; what that changes.
    Unbuilt(&'static str),
    /// ingress-nginx has removed it in this version.
    Gone(&'static str),
}

use State::{Alias, Built, Gone, Needless, Unbuilt};

/// The prefix of the annotations.
pub const PREFIX: &str = "nginx.ingress.kubernetes.io/";

const KEEPALIVE: &str = "requests to the authentication service have variables of their own";
const FIREWALL: &str = "weir has no web application firewall: requests are not inspected";

/// The annotations of ingress-nginx, also of earlier versions, in the order of their names.
pub const KNOWN: &[(&str, State)] = &[
    ("affinity", Built),
    ("affinity-canary-behavior", Built),
    ("affinity-mode", Needless("a cookie names its server, as in the mode persistent")),
    ("allowlist-source-range", Built),
    ("app-root", Built),
    ("auth-always-set-cookie", Built),
    ("auth-cache-duration", Built),
    ("auth-cache-key", Built),
    ("auth-keepalive", Built),
    ("auth-keepalive-requests", Built),
    ("auth-keepalive-share-vars", Needless(KEEPALIVE)),
    ("auth-keepalive-timeout", Built),
    ("auth-method", Built),
    ("auth-proxy-set-headers", Built),
    ("auth-realm", Built),
    ("auth-request-redirect", Built),
    ("auth-response-headers", Built),
    ("auth-secret", Built),
    ("auth-secret-type", Built),
    ("auth-signin", Built),
    ("auth-signin-redirect-param", Built),
    ("auth-snippet", Built),
    ("auth-tls-error-page", Built),
    ("auth-tls-match-cn", Built),
    ("auth-tls-pass-certificate-to-upstream", Built),
    ("auth-tls-secret", Built),
    ("auth-tls-verify-client", Built),
    ("auth-tls-verify-depth", Built),
    ("auth-type", Built),
    ("auth-url", Built),
    ("backend-protocol", Built),
    ("canary", Built),
    ("canary-by-cookie", Built),
    ("canary-by-header", Built),
    ("canary-by-header-pattern", Built),
    ("canary-by-header-value", Built),
    ("canary-weight", Built),
    ("canary-weight-total", Built),
    ("client-body-buffer-size", Built),
    ("configuration-snippet", Built),
    ("connection-proxy-header", Built),
    ("cors-allow-credentials", Built),
    ("cors-allow-headers", Built),
    ("cors-allow-methods", Built),
    ("cors-allow-origin", Built),
    ("cors-expose-headers", Built),
    ("cors-max-age", Built),
    ("custom-headers", Built),
    ("custom-http-errors", Built),
    ("default-backend", Built),
    ("denylist-source-range", Built),
    ("disable-proxy-intercept-errors", Built),
    ("enable-access-log", Built),
    ("enable-cors", Built),
    ("enable-global-auth", Built),
    ("enable-modsecurity", Unbuilt(FIREWALL)),
    ("enable-opentelemetry", Built),
    ("enable-opentracing", Gone("1.10")),
    ("enable-owasp-core-rules", Unbuilt(FIREWALL)),
    ("enable-rewrite-log", Built),
    ("fastcgi-index", Built),
    ("fastcgi-params-configmap", Built),
    ("force-ssl-redirect", Built),
    ("from-to-www-redirect", Built),
    ("global-rate-limit", Gone("1.12")),
    ("global-rate-limit-ignored-cidrs", Gone("1.12")),
    ("global-rate-limit-key", Gone("1.12")),
    ("global-rate-limit-window", Gone("1.12")),
    ("http2-push-preload", Needless("browsers no longer take pushed answers")),
    ("limit-allowlist", Built),
    ("limit-burst-multiplier", Built),
    ("limit-connections", Built),
    ("limit-rate", Built),
    ("limit-rate-after", Built),
    ("limit-rpm", Built),
    ("limit-rps", Built),
    ("limit-whitelist", Alias("limit-allowlist")),
    ("load-balance", Built),
    ("mirror-host", Built),
    ("mirror-request-body", Built),
    ("mirror-target", Built),
    ("modsecurity-snippet", Unbuilt(FIREWALL)),
    ("modsecurity-transaction-id", Unbuilt(FIREWALL)),
    ("opentelemetry-operation-name", Built),
    ("opentelemetry-trust-incoming-span", Built),
    ("opentracing-operation-name", Gone("1.10")),
    ("opentracing-trust-incoming-span", Gone("1.10")),
    ("permanent-redirect", Built),
    ("permanent-redirect-code", Built),
    ("preserve-trailing-slash", Built),
    ("proxy-body-size", Built),
    ("proxy-buffer-size", Built),
    ("proxy-buffering", Built),
    ("proxy-buffers-number", Built),
    ("proxy-busy-buffers-size", Built),
    ("proxy-connect-timeout", Built),
    ("proxy-cookie-domain", Built),
    ("proxy-cookie-path", Built),
    ("proxy-http-version", Built),
    ("proxy-max-temp-file-size", Built),
    ("proxy-next-upstream", Built),
    ("proxy-next-upstream-timeout", Built),
    ("proxy-next-upstream-tries", Built),
    ("proxy-read-timeout", Built),
    ("proxy-redirect-from", Built),
    ("proxy-redirect-to", Built),
    ("proxy-request-buffering", Built),
    ("proxy-send-timeout", Built),
    ("proxy-ssl-ciphers", Built),
    ("proxy-ssl-name", Built),
    ("proxy-ssl-protocols", Built),
    ("proxy-ssl-secret", Built),
    ("proxy-ssl-server-name", Built),
    ("proxy-ssl-verify", Built),
    ("proxy-ssl-verify-depth", Built),
    ("relative-redirects", Built),
    ("rewrite-target", Built),
    ("satisfy", Built),
    ("server-alias", Built),
    ("server-snippet", Built),
    ("service-upstream", Built),
    (
        "session-cookie-change-on-failure",
        Needless("a client whose server fails gets another cookie"),
    ),
    ("session-cookie-conditional-samesite-none", Unbuilt("SameSite=None goes to all browsers")),
    ("session-cookie-domain", Built),
    ("session-cookie-expires", Built),
    ("session-cookie-max-age", Built),
    ("session-cookie-name", Built),
    ("session-cookie-path", Built),
    ("session-cookie-samesite", Built),
    ("session-cookie-secure", Built),
    ("ssl-ciphers", Built),
    ("ssl-passthrough", Built),
    ("ssl-prefer-server-ciphers", Built),
    ("ssl-redirect", Built),
    ("stream-snippet", Unbuilt("snippets outside of servers and locations are never taken")),
    ("temporal-redirect", Built),
    ("temporal-redirect-code", Built),
    ("upstream-hash-by", Built),
    ("upstream-hash-by-subset", Unbuilt("a key has one server, not a group of them")),
    ("upstream-hash-by-subset-size", Unbuilt("a key has one server, not a group of them")),
    ("upstream-vhost", Built),
    ("use-port-in-redirects", Built),
    ("use-regex", Built),
    ("whitelist-source-range", Alias("allowlist-source-range")),
    ("x-forwarded-prefix", Built),
];

/// The other names of an annotation.
fn aliases(name: &str) -> Vec<&'static str> {
    let of = |(alias, state): &(&'static str, State)| {
        (*state == Alias(name_of(name)?)).then_some(*alias)
    };
    KNOWN.iter().filter_map(of).collect()
}

/// The name of an annotation, as [`KNOWN`] has it.
fn name_of(name: &str) -> Option<&'static str> {
    KNOWN
        .binary_search_by(|(known, _)| known.cmp(&name))
        .ok()
        .and_then(|at| KNOWN.get(at))
        .map(|(name, _)| *name)
}

/// The state of an annotation, by its name without the prefix.
pub fn state(name: &str) -> Option<State> {
    let at = KNOWN.binary_search_by(|(known, _)| known.cmp(&name)).ok()?;
    KNOWN.get(at).map(|(_, state)| *state)
}
