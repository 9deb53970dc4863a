//! The risk of annotations: `annotations-risk-level` in the ConfigMap, with ingress-nginx's levels.

/// The levels, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Risk {
    /// A choice of a few words, or a number.
    Low,
    /// Names, lists and addresses.
    Medium,
    /// Variables, patterns and targets of requests.
    High,
    /// Directives.
    Critical,
}

const CRITICAL: &[&str] = &[
    "auth-snippet",
    "configuration-snippet",
    "modsecurity-snippet",
    "server-snippet",
    "stream-snippet",
];

const HIGH: &[&str] = &[
    "auth-signin",
    "auth-tls-error-page",
    "auth-tls-match-cn",
    "auth-url",
    "mirror-host",
    "mirror-target",
    "modsecurity-transaction-id",
    "proxy-ssl-name",
    "server-alias",
    "upstream-hash-by",
];

const MEDIUM: &[&str] = &[
    "affinity-mode",
    "allowlist-source-range",
    "app-root",
    "auth-cache-duration",
    "auth-cache-key",
    "auth-proxy-set-headers",
    "auth-realm",
    "auth-request-redirect",
    "auth-response-headers",
    "auth-secret",
    "auth-signin-redirect-param",
    "auth-tls-secret",
    "auth-tls-verify-client",
    "canary-by-cookie",
    "canary-by-header",
    "canary-by-header-pattern",
    "canary-by-header-value",
    "cors-allow-headers",
    "cors-allow-methods",
    "cors-allow-origin",
    "cors-expose-headers",
    "custom-headers",
    "denylist-source-range",
    "fastcgi-index",
    "fastcgi-params-configmap",
    "force-ssl-redirect",
    "opentelemetry-operation-name",
    "permanent-redirect",
    "preserve-trailing-slash",
    "proxy-body-size",
    "proxy-cookie-domain",
    "proxy-cookie-path",
    "proxy-next-upstream",
    "proxy-redirect-from",
    "proxy-redirect-to",
    "proxy-ssl-ciphers",
    "proxy-ssl-secret",
    "rewrite-target",
    "session-cookie-domain",
    "session-cookie-expires",
    "session-cookie-max-age",
    "session-cookie-name",
    "session-cookie-path",
    "temporal-redirect",
    "whitelist-source-range",
    "x-forwarded-prefix",
];

impl Risk {
    /// The level of an annotation, by its name without the prefix.
    pub fn of(name: &str) -> Risk {
        [(CRITICAL, Risk::Critical), (HIGH, Risk::High), (MEDIUM, Risk::Medium)]
            .into_iter()
            .find_map(|(list, risk)| list.contains(&name).then_some(risk))
            .unwrap_or(Risk::Low)
    }

    /// A level by its word.
    pub fn level(word: &str) -> Option<Risk> {
        match word.trim() {
            "Low" => Some(Risk::Low),
            "Medium" => Some(Risk::Medium),
            "High" => Some(Risk::High),
            "Critical" => Some(Risk::Critical),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotations::state;

    #[test]
    fn each_name_is_one_that_there_is() {
        for name in [CRITICAL, HIGH, MEDIUM].concat() {
            assert!(state(name).is_some(), "{name}");
        }
        assert!(Risk::of("affinity") < Risk::of("auth-url"));
        assert_eq!(Risk::level("Medium"), Some(Risk::Medium));
    }
}
