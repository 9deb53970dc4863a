//! Annotations that have no effect without another one.

use super::Reader;

/// Names or prefixes of annotations, and the annotations of which they need one, as in
/// ingress-nginx.
const NEEDS: &[(&[&str], &[&str])] = &[
    (
        &[
            "auth-always-set-cookie",
            "auth-cache-",
            "auth-keepalive",
            "auth-method",
            "auth-proxy-set-headers",
            "auth-request-redirect",
            "auth-response-headers",
            "auth-signin",
            "auth-snippet",
        ],
        &["auth-url"],
    ),
    (&["auth-realm", "auth-secret"], &["auth-type"]),
    (
        &[
            "auth-tls-error-page",
            "auth-tls-pass-certificate-to-upstream",
            "auth-tls-verify-client",
            "auth-tls-verify-depth",
        ],
        &["auth-tls-secret"],
    ),
    (&["canary-"], &["canary"]),
    (&["cors-"], &["enable-cors"]),
    (&["disable-proxy-intercept-errors"], &["custom-http-errors"]),
    (&["fastcgi-"], &["backend-protocol"]),
    (&["limit-burst-multiplier"], &["limit-rps", "limit-rpm"]),
    (&["mirror-"], &["mirror-target"]),
    (&["opentelemetry-"], &["enable-opentelemetry"]),
    (&["permanent-redirect-code"], &["permanent-redirect"]),
    (&["proxy-redirect-to"], &["proxy-redirect-from"]),
    (&["proxy-ssl-verify-depth"], &["proxy-ssl-secret"]),
    (&["session-cookie-"], &["affinity"]),
    (&["temporal-redirect-code"], &["temporal-redirect"]),
    (&["x-forwarded-prefix"], &["rewrite-target"]),
];

/// Reports annotations of an Ingress that have no effect, since it lacks the one that they need.
pub(super) fn tell(r: &Reader<'_>) {
    for (beginnings, needed) in NEEDS {
        if needed.iter().any(|name| r.text(name).is_some()) {
            continue;
        }
        let needs = needed.first().copied().unwrap_or_default();
        for name in r.names().filter(|name| !needed.contains(name)) {
            if beginnings.iter().any(|beginning| name.starts_with(beginning)) {
                r.ineffective(name, needs);
            }
        }
    }
}
