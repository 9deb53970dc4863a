//! `auth-url` and its related settings, of an Ingress or of the controller's ConfigMap;
//! `auth-tls-*`.

use std::borrow::Cow;

use super::Reader;
use super::options::{ClientCertificates, URL_SIGNS};
use super::values::{self, Url};

/// An authentication service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthRequest {
    /// The service. Its host may be the rule's.
    pub url: Url,
    /// The method of requests to it, if not the client's.
    pub method: Option<String>,
    /// Headers of its answer that the upstream gets.
    pub headers: Vec<String>,
    /// Where clients that the service refuses are redirected.
    pub signin: Option<String>,
    /// Whether its cookies are set whatever the status of the answer.
    pub always_cookie: bool,
    /// The value of `X-Auth-Request-Redirect`.
    pub redirect: Option<String>,
    /// The ConfigMap with headers for the service, as the annotation names it.
    pub set_headers: Option<String>,
    /// Directives for the request to the service, unread.
    pub snippet: Option<String>,
    /// Whether these are the administrator's settings.
    pub global: bool,
    /// The cache key of its answers, and the words of each `proxy_cache_valid`.
    pub cache: Option<(String, Vec<Vec<String>>)>,
    /// `keepalive`, `keepalive_requests` and the seconds of `keepalive_timeout` for connections to
    /// it.
    pub keepalive: Option<[u64; 3]>,
}

/// The names of the annotations or keys that describe one service.
struct Names {
    url: &'static str,
    method: &'static str,
    headers: &'static str,
    parameter: &'static str,
    signin: &'static str,
    always_cookie: &'static str,
    redirect: &'static str,
    snippet: &'static str,
    cache_key: &'static str,
    cache_duration: &'static str,
}

const OWN: Names = Names {
    url: "auth-url",
    method: "auth-method",
    headers: "auth-response-headers",
    parameter: "auth-signin-redirect-param",
    signin: "auth-signin",
    always_cookie: "auth-always-set-cookie",
    redirect: "auth-request-redirect",
    snippet: "auth-snippet",
    cache_key: "auth-cache-key",
    cache_duration: "auth-cache-duration",
};

const GLOBAL: Names = Names {
    url: "global-auth-url",
    method: "global-auth-method",
    headers: "global-auth-response-headers",
    parameter: "global-auth-signin-redirect-param",
    signin: "global-auth-signin",
    always_cookie: "global-auth-always-set-cookie",
    redirect: "global-auth-request-redirect",
    snippet: "global-auth-snippet",
    cache_key: "global-auth-cache-key",
    cache_duration: "global-auth-cache-duration",
};

/// The keys of the ConfigMap that are read here.
pub const GLOBAL_KEYS: &[&str] = &[
    GLOBAL.url,
    GLOBAL.method,
    GLOBAL.headers,
    GLOBAL.parameter,
    GLOBAL.signin,
    GLOBAL.always_cookie,
    GLOBAL.redirect,
    GLOBAL.snippet,
    GLOBAL.cache_key,
    GLOBAL.cache_duration,
];

impl AuthRequest {
    /// Whether an Ingress, or the administrator for it, names an authentication service.
    pub(super) fn is_wanted(r: &Reader<'_>) -> bool {
        r.text(OWN.url).is_some() || is_global(r)
    }

    pub(super) fn read(r: &Reader<'_>, loopback: bool) -> Option<AuthRequest> {
        // The Ingress's own settings are read in any case, so that their errors are reported.
        let own = read(r, &OWN, loopback, false);
        match r.text(OWN.url).is_none() && is_global(r) {
            true => read(r, &GLOBAL, loopback, true),
            false => own,
        }
    }

    /// The annotation or key that names the service.
    pub fn name(&self) -> &'static str {
        if self.global { GLOBAL.url } else { OWN.url }
    }

    /// This service as it is asked for a rule's host.
    pub fn of_rule(&self, host: &str, loopback: bool) -> Result<Cow<'_, AuthRequest>, String> {
        match self.url.of_rule(host, loopback) {
            None => Ok(Cow::Borrowed(self)),
            Some(url) => url.map(|url| Cow::Owned(AuthRequest { url, ..self.clone() })),
        }
    }
}

fn is_global(r: &Reader<'_>) -> bool {
    r.flag("enable-global-auth") != Some(false) && r.text(GLOBAL.url).is_some()
}

fn read(r: &Reader<'_>, names: &Names, loopback: bool, global: bool) -> Option<AuthRequest> {
    let url = r.read(names.url, |text| values::url_at_host(text, loopback || global));
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let method = r.choice(names.method, &methods).map(str::to_owned);
    let headers = r.read(names.headers, |text| {
        let names: Vec<String> =
            text.split(',').map(|name| name.trim().to_owned()).filter(|n| !n.is_empty()).collect();
        match names.iter().find(|name| !values::is_free_header(name)) {
            None => Ok(names),
            Some(name) => Err(format!("\"{name}\" is no name of a header that weir takes")),
        }
    });
    let parameter = r.plain(names.parameter, "-_.~");
    let signin = r.template(names.signin, "-._~/:,?&=%+").map(|url| {
        let parameter = parameter.unwrap_or_else(|| "rd".to_owned());
        let back = "$pass_access_scheme://$http_host$escaped_request_uri";
        match url.split_once('?') {
            None => format!("{url}?{parameter}={back}"),
            Some((_, query))
                if query.split('&').any(|p| p.starts_with(&format!("{parameter}="))) =>
            {
                url
            }
            Some(_) => format!("{url}&{parameter}={back}"),
        }
    });
    let always_cookie = r.flag(names.always_cookie).unwrap_or(false);
    let redirect = r.plain(names.redirect, URL_SIGNS);
    let set_headers = r.plain("auth-proxy-set-headers", "-./").filter(|_| !global);
    let snippet = match global {
        true => r.of_administrator(names.snippet),
        false => r.text(names.snippet),
    };
    let cache = cache(r, names);
    let keepalive = keepalive(r).filter(|_| !global);
    // With a part of these headers, clients could send the others themselves.
    let refused = |name, missing: bool| !global && missing && r.text(name).is_some();
    if refused(names.headers, headers.is_none()) || refused(names.method, method.is_none()) {
        return None;
    }
    Some(AuthRequest {
        url: url?,
        method,
        headers: headers.unwrap_or_default(),
        signin,
        always_cookie,
        redirect,
        set_headers,
        snippet: snippet.map(str::to_owned),
        global,
        cache,
        keepalive,
    })
}

fn cache(r: &Reader<'_>, names: &Names) -> Option<(String, Vec<Vec<String>>)> {
    let key = r.template(names.cache_key, "-._~/:|,=");
    let valid = r.read(names.cache_duration, |text| {
        let lists = text.split(',').map(str::trim).filter(|list| !list.is_empty());
        let lists: Vec<Vec<String>> =
            lists.map(|list| list.split_whitespace().map(str::to_owned).collect()).collect();
        let status = |word: &String| {
            word == "any" || word.parse().is_ok_and(|code: u64| (100..=599).contains(&code))
        };
        let good = |list: &Vec<String>| match list.split_last() {
            Some((time, codes)) => {
                let digits = time.trim_end_matches(|c: char| "smhd".contains(c));
                !digits.is_empty()
                    && time.len() - digits.len() <= 1
                    && digits.len() <= 9
                    && digits.bytes().all(|b| b.is_ascii_digit())
                    && codes.iter().all(status)
            }
            None => false,
        };
        match !lists.is_empty() && lists.iter().all(good) {
            true => Ok(lists),
            false => Err("it must be statuses and a time, as in \"200 401 5m\"".to_owned()),
        }
    });
    let usual = || vec![["200", "202", "401", "5m"].map(str::to_owned).to_vec()];
    key.map(|key| (key, valid.unwrap_or_else(usual)))
}

fn keepalive(r: &Reader<'_>) -> Option<[u64; 3]> {
    let connections = r.read("auth-keepalive", |text| {
        let number = text.parse::<i64>().map_err(|_| "it must be a number".to_owned())?;
        Ok(u64::try_from(number).unwrap_or(0).min(10_000))
    });
    let requests = r.number("auth-keepalive-requests", 1, 1_000_000_000).unwrap_or(1000);
    let seconds = r.number("auth-keepalive-timeout", 1, 86_400).unwrap_or(60);
    connections.filter(|count| *count > 0).map(|count| [count, requests, seconds])
}

impl ClientCertificates {
    /// Reads the annotations. The name is that of an annotation that restricts access and cannot be
    /// obeyed, if there is one.
    pub(super) fn read(r: &Reader<'_>) -> (Option<ClientCertificates>, Option<&'static str>) {
        let verifies = ["on", "off", "optional", "optional_no_ca"];
        let verify = r.choice("auth-tls-verify-client", &verifies);
        let subject = r.read("auth-tls-match-cn", |text| match text.starts_with("CN=") {
            true => values::pattern(text).map(|()| text.to_owned()),
            false => Err("it must begin with CN=".to_owned()),
        });
        let secret = r.plain("auth-tls-secret", "-./");
        let depth = r.number("auth-tls-verify-depth", 1, 32).unwrap_or(1);
        let error_page = r.plain("auth-tls-error-page", "-._/:@");
        let pass = r.flag("auth-tls-pass-certificate-to-upstream").unwrap_or(false);
        let wrong = [
            ("auth-tls-verify-client", verify.is_none()),
            ("auth-tls-match-cn", subject.is_none()),
            ("auth-tls-secret", secret.is_none()),
        ];
        let mut wrong = wrong.iter().filter(|(name, none)| *none && r.text(name).is_some());
        let wrong = wrong.next().map(|(name, _)| *name);
        // Without a Secret, no client is asked for a certificate.
        let alone = secret.is_none() && (verify == Some("on") || subject.is_some());
        let verify = verify.unwrap_or("on");
        let read = |secret| ClientCertificates { secret, verify, depth, error_page, pass, subject };
        (secret.map(read), wrong.or(alone.then_some("auth-tls-secret")))
    }
}
