//! The rules of one Ingress, independent of other Ingresses. They are read once for each Ingress.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::{Ingress, IngressBackend, IngressRule};

use crate::annotations::{Options, values};
use crate::settings::Settings;

/// How a path is matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    Exact,
    /// Prefix match, byte by byte.
    Bytes,
}

/// A path and how it is matched.
pub(super) type RouteKey = (Arc<str>, Match);

/// The key of the path `/`, which matches all requests.
pub(super) fn root() -> RouteKey {
    ("/".into(), Match::Bytes)
}

/// A rule for a host. Its parts are shared, so that comparing addresses is enough.
#[derive(Debug)]
pub(super) struct HostRule {
    pub(super) host: Arc<str>,
    pub(super) is_host: bool,
    pub(super) paths: Vec<PathRule>,
    /// The rule for `/`, if the host has no other.
    pub(super) fallback: Option<PathRule>,
}

impl HostRule {
    /// The most locations that it may have.
    pub(super) fn locations(&self) -> usize {
        let paths = self.paths.iter().chain(&self.fallback);
        paths.filter_map(|path| Some(path.routes.as_ref().ok()?.keys.len())).sum()
    }
}

/// A rule for a path.
#[derive(Debug)]
pub(super) struct PathRule {
    pub(super) path: String,
    pub(super) exact: bool,
    pub(super) routes: Result<Routes, NoRoutes>,
}

/// The keys of a path, and its target.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) keys: Vec<RouteKey>,
    pub(super) target: Arc<Target>,
}

/// Why a path has no routes.
#[derive(Debug)]
pub(super) struct NoRoutes {
    pub(super) reason: &'static str,
    pub(super) message: &'static str,
}

/// The target of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The path of the rule, as it was written.
    pub(super) rule: String,
    /// Whether it is a prefix that may end within an element of a path, since it is a pattern.
    pub(super) is_open: bool,
    /// Service and port; `None` stands for the default backend.
    pub(super) backend: Option<(String, String)>,
}

/// Reads the rules of an Ingress.
pub(super) fn read(ingress: &Ingress, options: &Options, settings: &Settings) -> Vec<HostRule> {
    let Some(spec) = &ingress.spec else { return Vec::new() };
    let strict = settings.flag("strict-validate-path-type");
    let fallback = || {
        let backend = spec.default_backend.as_ref();
        backend.map(|backend| path_rule("/", "Prefix", backend, (options, strict)))
    };
    let rules = spec.rules.as_deref().unwrap_or_default();
    if rules.is_empty() {
        let paths: Vec<_> = fallback().filter(|_| !settings.no_catch_all).into_iter().collect();
        let any = HostRule { host: "".into(), is_host: true, paths, fallback: None };
        return if any.paths.is_empty() { Vec::new() } else { vec![any] };
    }
    let rule = |rule: &IngressRule| {
        let host = rule.host.as_deref().unwrap_or_default();
        let paths = rule.http.iter().flat_map(|http| &http.paths).map(|path| {
            let text = path.path.as_deref().unwrap_or("/");
            path_rule(text, &path.path_type, &path.backend, (options, strict))
        });
        HostRule {
            host: host.into(),
            is_host: host.is_empty() || values::is_host(host, true),
            paths: paths.collect(),
            fallback: fallback(),
        }
    };
    rules.iter().map(rule).collect()
}

fn path_rule(
    path: &str,
    kind: &str,
    backend: &IngressBackend,
    (options, strict): (&Options, bool),
) -> PathRule {
    let refused = |reason, message| Err(NoRoutes { reason, message });
    let plain = || values::of(path, "/-._~:%");
    let routes = if !values::is_path(path) {
        let why = "a path begins with a slash and has no control characters; it is left out";
        refused("InvalidPath", why)
    } else if strict && matches!(kind, "Exact" | "Prefix") && !plain() {
        let why = "it has characters that only a path of the type ImplementationSpecific may have; the path is left out";
        refused("InvalidPath", why)
    } else if let Some(backend) = service_and_port(backend) {
        let is_open = kind == "Prefix" && options.makes_pattern(path);
        let target = Target { rule: path.to_owned(), is_open, backend: Some(backend) };
        let keys = if is_open { vec![open_key(path)] } else { keys(path, kind) };
        Ok(Routes { keys, target: Arc::new(target) })
    } else {
        refused("NoService", "only Services can be servers behind; the path is left out")
    };
    PathRule { path: path.to_owned(), exact: kind == "Exact", routes }
}

/// The Service and port that a backend names.
pub(super) fn service_and_port(backend: &IngressBackend) -> Option<(String, String)> {
    let service = backend.service.as_ref()?;
    let port = service.port.as_ref();
    let port = port.and_then(|p| p.name.clone().or(p.number.map(|n| n.to_string())));
    Some((service.name.clone(), port.unwrap_or_default()))
}

/// The key of a prefix that is a pattern.
pub(super) fn open_key(path: &str) -> RouteKey {
    (path.into(), Match::Bytes)
}

/// The keys of a path of this type.
pub(super) fn keys(path: &str, kind: &str) -> Vec<RouteKey> {
    match kind {
        "Exact" => vec![(path.into(), Match::Exact)],
        "Prefix" => match path.trim_end_matches('/') {
            "" => vec![root()],
            // A prefix ends at an element of the path.
            stem => vec![(format!("{stem}/").into(), Match::Bytes), (stem.into(), Match::Exact)],
        },
        _ => vec![(path.into(), Match::Bytes)],
    }
}
