//! Rules to hosts: which namespace owns a host, and what each of its paths does.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::networking::v1::IngressBackend;

use super::files::{Certificate, Certificates};
use super::sources::Source;
use super::work::Work;
use crate::annotations::values;
use crate::report::Severity;

/// How a path is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    Exact,
    /// Begins with it, byte by byte.
    Bytes,
}

/// A path of a host.
#[derive(Debug, PartialEq)]
pub(super) struct Route {
    pub(super) source: Source,
    /// The path of the rule, as it was written.
    pub(super) rule: String,
    /// Service and port; `None`: the default backend.
    pub(super) backend: Option<(String, String)>,
    pub(super) canary: Option<CanaryRoute>,
}

/// Servers for some of the requests for a path.
#[derive(Debug, PartialEq)]
pub(super) struct CanaryRoute {
    pub(super) source: Source,
    pub(super) service: String,
    pub(super) port: String,
}

/// A host; an empty name is any other host.
#[derive(Debug, PartialEq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) owner: Source,
    pub(super) sources: Vec<Source>,
    pub(super) routes: BTreeMap<(String, Match), Route>,
    pub(super) certificate: Option<Certificate>,
    /// An Ingress says that the host has TLS, whether there is a certificate or not.
    pub(super) secured: bool,
    pub(super) aliases: Vec<String>,
}

/// All hosts by name.
pub(super) fn gather(
    work: &mut Work<'_>,
    certificates: &mut Certificates,
    sources: &[Source],
) -> BTreeMap<String, Host> {
    let mut hosts: BTreeMap<String, Host> = BTreeMap::new();
    let is_canary = |source: &&Source| source.options.canary.is_some();
    for source in sources.iter().filter(|source| !is_canary(source)) {
        let Some(spec) = &source.ingress.spec else { continue };
        for rule in spec.rules.as_deref().unwrap_or_default() {
            let name = rule.host.clone().unwrap_or_default();
            let Some(host) = claim(work, &mut hosts, source, &name) else { continue };
            for path in rule.http.iter().flat_map(|http| &http.paths) {
                let text = path.path.clone().unwrap_or_else(|| "/".to_owned());
                add(work, host, source, &text, &path.path_type, Some(&path.backend));
            }
            if let Some(backend) = &spec.default_backend
                && !host.routes.contains_key(&("/".to_owned(), Match::Bytes))
            {
                add(work, host, source, "/", "Prefix", Some(backend));
            }
        }
        if let Some(backend) = &spec.default_backend
            && spec.rules.as_ref().is_none_or(Vec::is_empty)
            && !work.settings.no_catch_all
            && let Some(host) = claim(work, &mut hosts, source, "")
        {
            add(work, host, source, "/", "Prefix", Some(backend));
        }
    }
    for source in sources.iter().filter(is_canary) {
        canaries(work, &mut hosts, source);
    }
    let mut aliases = BTreeSet::new();
    for source in sources.iter().filter(|source| !is_canary(source)) {
        secure(work, certificates, &mut hosts, source);
        rename(work, &mut aliases, &mut hosts, source);
    }
    hosts
}

/// The host, if this Ingress may have paths there. The oldest Ingress that names a host gives it to its namespace.
fn claim<'h>(
    work: &mut Work<'_>,
    hosts: &'h mut BTreeMap<String, Host>,
    source: &Source,
    name: &str,
) -> Option<&'h mut Host> {
    if !name.is_empty() && !values::is_host(name, true) {
        work.say(
            &source.id,
            Severity::Error,
            "InvalidHost",
            name,
            "it is no host name; its rule is left out",
        );
        return None;
    }
    let host = hosts.entry(name.to_owned()).or_insert_with(|| Host {
        name: name.to_owned(),
        owner: source.clone(),
        sources: Vec::new(),
        routes: BTreeMap::new(),
        certificate: None,
        secured: false,
        aliases: Vec::new(),
    });
    if host.owner.id.namespace != source.id.namespace && !work.settings.shared_hosts {
        let message = format!(
            "the host belongs to {}, of another namespace and older; the rule is left out",
            host.owner.id
        );
        work.say(&source.id, Severity::Error, "HostTaken", name, &message);
        return None;
    }
    if !host.sources.iter().any(|other| other.id == source.id) {
        host.sources.push(source.clone());
    }
    Some(host)
}

fn add(
    work: &mut Work<'_>,
    host: &mut Host,
    source: &Source,
    path: &str,
    kind: &str,
    backend: Option<&IngressBackend>,
) {
    let about = format!("{}{path}", host.name);
    let bad =
        !path.starts_with('/') || path.len() > values::LONGEST || path.contains(char::is_control);
    if bad {
        work.say(
            &source.id,
            Severity::Error,
            "InvalidPath",
            &about,
            "a path begins with a slash and has no control characters; it is left out",
        );
        return;
    }
    let plain = |path: &str| values::of(path, "/-._~:%");
    if work.settings.flag("strict-validate-path-type")
        && matches!(kind, "Exact" | "Prefix")
        && !plain(path)
    {
        let why = "it has characters that only a path of the type ImplementationSpecific may have";
        let why = format!("{why}; the path is left out");
        work.say(&source.id, Severity::Error, "InvalidPath", &about, &why);
        return;
    }
    let Some(backend) = backend.and_then(service_and_port) else {
        work.say(
            &source.id,
            Severity::Error,
            "NoService",
            &about,
            "only Services can be servers behind; the path is left out",
        );
        return;
    };
    let backend = Some(backend);
    let keys = keys(path, kind);
    let explicit = kind == "Exact";
    for (n, key) in keys.into_iter().enumerate() {
        let (rule, backend) = (path.to_owned(), backend.clone());
        let route = Route { source: source.clone(), rule, backend, canary: None };
        match host.routes.get(&key) {
            // An exact path stands before the end of a prefix.
            Some(other) if n == 1 && other.rule == key.0 => {}
            Some(other) if explicit && other.rule != key.0 => drop(host.routes.insert(key, route)),
            Some(other) if other.source.id == source.id && n == 1 => {}
            Some(other) => {
                let message = format!(
                    "{} is older and has the same path; this one is left out",
                    other.source.id
                );
                work.say(&source.id, Severity::Error, "PathTaken", &about, &message);
            }
            None => drop(host.routes.insert(key, route)),
        }
    }
}

fn service_and_port(backend: &IngressBackend) -> Option<(String, String)> {
    let service = backend.service.as_ref()?;
    let port = service.port.as_ref();
    let port = port.and_then(|p| p.name.clone().or(p.number.map(|n| n.to_string())));
    Some((service.name.clone(), port.unwrap_or_default()))
}

/// How requests are compared with a path.
fn keys(path: &str, kind: &str) -> Vec<(String, Match)> {
    match kind {
        "Exact" => vec![(path.to_owned(), Match::Exact)],
        "Prefix" => match path.trim_end_matches('/') {
            "" => vec![("/".to_owned(), Match::Bytes)],
            // Prefixes end where an element of the path ends.
            stem => vec![(format!("{stem}/"), Match::Bytes), (stem.to_owned(), Match::Exact)],
        },
        _ => vec![(path.to_owned(), Match::Bytes)],
    }
}

/// Adds a canary to the paths that another Ingress of its namespace has.
fn canaries(work: &mut Work<'_>, hosts: &mut BTreeMap<String, Host>, source: &Source) {
    for rule in source.ingress.spec.iter().flat_map(|s| s.rules.as_deref().unwrap_or_default()) {
        let name = rule.host.as_deref().unwrap_or_default();
        for path in rule.http.iter().flat_map(|http| &http.paths) {
            let text = path.path.as_deref().unwrap_or("/");
            let Some((service, port)) = service_and_port(&path.backend) else { continue };
            let mut found = false;
            for key in keys(text, &path.path_type) {
                let route = hosts.get_mut(name).and_then(|host| host.routes.get_mut(&key));
                let Some(route) = route else { continue };
                if route.source.id.namespace == source.id.namespace && route.canary.is_none() {
                    let (source, service, port) = (source.clone(), service.clone(), port.clone());
                    route.canary = Some(CanaryRoute { source, service, port });
                    found = true;
                }
            }
            if !found {
                let about = format!("{name}{text}");
                let message = "no other Ingress of the namespace has this path, or it has a canary already; it is left out";
                work.say(&source.id, Severity::Error, "CanaryAlone", &about, message);
            }
        }
    }
}

fn secure(
    work: &mut Work<'_>,
    certificates: &mut Certificates,
    hosts: &mut BTreeMap<String, Host>,
    source: &Source,
) {
    let tls = source.ingress.spec.iter().flat_map(|spec| spec.tls.as_deref().unwrap_or_default());
    for entry in tls {
        for name in entry.hosts.as_deref().unwrap_or_default() {
            let host = hosts.get_mut(name);
            if let Some(host) = host.filter(|h| h.sources.iter().any(|s| s.id == source.id)) {
                host.secured = true;
            }
        }
        let Some(secret) = entry.secret_name.as_deref().filter(|name| !name.is_empty()) else {
            continue;
        };
        let certificate = match certificates.of(work, &source.id, secret) {
            Ok(certificate) => certificate,
            Err(why) => {
                work.say(&source.id, Severity::Error, "InvalidCertificate", secret, &why);
                continue;
            }
        };
        for name in entry.hosts.as_deref().unwrap_or_default() {
            let Some(host) = hosts.get_mut(name) else { continue };
            let mine = host.sources.iter().any(|other| other.id == source.id);
            if !mine || host.certificate.is_some() {
                continue;
            }
            if !certificate.covers(name) {
                let message =
                    format!("the certificate of {secret} is not for this host; it is not used");
                work.say(&source.id, Severity::Error, "InvalidCertificate", name, &message);
                continue;
            }
            host.certificate = Some(certificate.clone());
        }
    }
}

fn rename(
    work: &mut Work<'_>,
    given: &mut BTreeSet<String>,
    hosts: &mut BTreeMap<String, Host>,
    source: &Source,
) {
    if source.options.aliases.is_empty() {
        return;
    }
    let rules = source.ingress.spec.iter().flat_map(|s| s.rules.as_deref().unwrap_or_default());
    let names: BTreeSet<&str> = rules.filter_map(|rule| rule.host.as_deref()).collect();
    let is_own = |name: &&&str| {
        let host = hosts.get(**name).filter(|host| !host.name.is_empty());
        host.is_some_and(|host| host.sources.iter().any(|other| other.id == source.id))
    };
    let own = names.iter().find(is_own).copied();
    for alias in &source.options.aliases {
        let taken = hosts.contains_key(alias) || given.contains(alias);
        match own.and_then(|name| hosts.get_mut(name)) {
            Some(host) if !taken => {
                host.aliases.push(alias.clone());
                given.insert(alias.clone());
            }
            _ => work.say(
                &source.id,
                Severity::Warning,
                "AliasTaken",
                alias,
                "another host has this name, or the Ingress has none; the alias is left out",
            ),
        }
    }
}
