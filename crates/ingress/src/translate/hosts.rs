//! Collects the rules of all Ingresses by host: the namespace that owns the host, and its paths.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::IngressTLS;

use super::files::{Certificate, Certificates, InUse};
use super::rules::{
    HostRule, Match, NoRoutes, PathRule, RouteKey, Routes, Target, keys, open_key, root,
    service_and_port,
};
use super::sources::Source;
use super::work::Work;
use crate::report::Severity;

/// A path of a host.
#[derive(Debug, PartialEq)]
pub(super) struct Route {
    pub(super) source: Source,
    target: Arc<Target>,
    pub(super) canary: Option<Box<CanaryRoute>>,
}

impl Deref for Route {
    type Target = Target;

    fn deref(&self) -> &Target {
        &self.target
    }
}

/// The upstream for some of the requests for a path.
#[derive(Debug, PartialEq)]
pub(super) struct CanaryRoute {
    pub(super) source: Source,
    pub(super) service: String,
    pub(super) port: String,
}

/// A host. An empty name stands for all hosts without rules.
#[derive(Debug, PartialEq)]
pub(super) struct Host {
    pub(super) name: Arc<str>,
    pub(super) owner: Source,
    pub(super) sources: Vec<Source>,
    pub(super) routes: BTreeMap<RouteKey, Route>,
    pub(super) certificate: Option<Certificate>,
    /// Names for which ACME requests a certificate, if no Secret has one.
    pub(super) acme_names: Vec<String>,
    /// Whether an Ingress of the host has `tls`, even if there is no certificate.
    pub(super) has_tls: bool,
    pub(super) aliases: Vec<String>,
}

impl Host {
    /// Whether an Ingress has paths on this host.
    fn is_of(&self, source: &Source) -> bool {
        self.sources.iter().any(|other| other.id == source.id)
    }

    /// The route that serves a path, if no path is a pattern.
    pub(super) fn route_of(&self, path: &str) -> Option<&Route> {
        let is_pattern = |route: &Route| route.source.options.makes_pattern(&route.rule);
        if self.routes.values().any(is_pattern) {
            return None;
        }
        let exact = self.routes.get(&(path.into(), Match::Exact));
        let begin = |(other, kind): &RouteKey| *kind == Match::Bytes && path.starts_with(&**other);
        let prefixes = self.routes.iter().filter(|(key, _)| begin(key));
        exact.or_else(|| Some(prefixes.max_by_key(|(key, _)| key.0.len())?.1))
    }

    /// Its name and its aliases.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.name).chain(self.aliases.iter().map(String::as_str))
    }
}

/// Collects all hosts, by name.
pub(super) fn gather(
    work: &mut Work<'_>,
    certificates: &mut Certificates,
    sources: &[Source],
) -> BTreeMap<Arc<str>, Box<Host>> {
    let mut hosts: BTreeMap<Arc<str>, Box<Host>> = BTreeMap::new();
    let is_canary = |source: &&Source| source.options.canary.is_some();
    for source in sources.iter().filter(|source| !is_canary(source)) {
        for rule in &source.rules {
            let Some(host) = claim(work, &mut hosts, source, rule) else { continue };
            rule.paths.iter().for_each(|path| add_path(work, host, source, path));
            if let Some(path) = &rule.fallback
                && !host.routes.contains_key(&root())
            {
                add_path(work, host, source, path);
            }
        }
    }
    for source in sources.iter().filter(is_canary) {
        add_canaries(work, &mut hosts, source);
    }
    let mut aliases = BTreeSet::new();
    for source in sources.iter().filter(|source| !is_canary(source)) {
        add_certificates(work, certificates, &mut hosts, source);
        add_aliases(work, &mut aliases, &mut hosts, source);
    }
    hosts
}

/// The host of a rule, if the Ingress may have paths there. The oldest Ingress of a host claims it
/// for its namespace.
fn claim<'h>(
    work: &mut Work<'_>,
    hosts: &'h mut BTreeMap<Arc<str>, Box<Host>>,
    source: &Source,
    rule: &HostRule,
) -> Option<&'h mut Host> {
    let name = &rule.host;
    if !rule.is_host {
        work.say(
            &source.id,
            Severity::Error,
            "InvalidHost",
            name,
            "it is no host name; its rule is left out",
        );
        return None;
    }
    let host = hosts.entry(name.clone()).or_insert_with(|| {
        Box::new(Host {
            name: name.clone(),
            owner: source.clone(),
            sources: Vec::new(),
            routes: BTreeMap::new(),
            certificate: None,
            acme_names: Vec::new(),
            has_tls: false,
            aliases: Vec::new(),
        })
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

fn add_path(work: &mut Work<'_>, host: &mut Host, source: &Source, path: &PathRule) {
    let about = || format!("{}{}", host.name, path.path);
    let Routes { keys, target } = match &path.routes {
        Ok(routes) => routes,
        Err(NoRoutes { reason, message }) => {
            work.say(&source.id, Severity::Error, reason, &about(), message);
            return;
        }
    };
    for (n, key) in keys.iter().enumerate() {
        let replaces = match host.routes.get(key) {
            // An exact path takes precedence over the exact part of a prefix.
            Some(other) if n == 1 && *other.rule == *key.0 => false,
            Some(other) if path.exact && *other.rule != *key.0 => true,
            Some(other) if other.source.id == source.id && n == 1 => false,
            Some(other) => {
                let message = format!(
                    "{} is older and has the same path; this one is left out",
                    other.source.id
                );
                work.say(&source.id, Severity::Error, "PathTaken", &about(), &message);
                false
            }
            None => true,
        };
        if replaces {
            let (source, target) = (source.clone(), target.clone());
            host.routes.insert(key.clone(), Route { source, target, canary: None });
        }
    }
}

/// Adds a canary to paths of other Ingresses of its namespace.
fn add_canaries(work: &mut Work<'_>, hosts: &mut BTreeMap<Arc<str>, Box<Host>>, source: &Source) {
    for rule in source.ingress.spec.iter().flat_map(|s| s.rules.as_deref().unwrap_or_default()) {
        let name = rule.host.as_deref().unwrap_or_default();
        for path in rule.http.iter().flat_map(|http| &http.paths) {
            let text = path.path.as_deref().unwrap_or("/");
            let Some((service, port)) = service_and_port(&path.backend) else { continue };
            let mut found = false;
            let open = open_key(text);
            let is_open = |host: &&mut Box<Host>| {
                path.path_type == "Prefix" && host.routes.get(&open).is_some_and(|r| r.is_open)
            };
            let keys = match hosts.get_mut(name).filter(is_open) {
                Some(_) => vec![open.clone()],
                None => keys(text, &path.path_type),
            };
            for key in keys {
                let route = hosts.get_mut(name).and_then(|host| host.routes.get_mut(&key));
                let Some(route) = route else { continue };
                if route.source.id.namespace == source.id.namespace && route.canary.is_none() {
                    let (source, service, port) = (source.clone(), service.clone(), port.clone());
                    route.canary = Some(Box::new(CanaryRoute { source, service, port }));
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

/// Adds the certificates that an Ingress names. As in ingress-nginx, a host gets the certificate of
/// the entry that lists it, or else the first of the Ingress's certificates that is for the host.
fn add_certificates(
    work: &mut Work<'_>,
    certificates: &mut Certificates,
    hosts: &mut BTreeMap<Arc<str>, Box<Host>>,
    source: &Source,
) {
    let tls = source.ingress.spec.as_ref().and_then(|spec| spec.tls.as_deref()).unwrap_or_default();
    // One entry is enough: all hosts of the Ingress have TLS.
    for rule in source.rules.iter().filter(|_| !tls.is_empty()) {
        let host = hosts.get_mut(&rule.host);
        if let Some(host) = host.filter(|host| host.is_of(source)) {
            host.has_tls = true;
        }
    }
    let mut named = Vec::new();
    for entry in tls {
        let Some(secret) = entry.secret_name.as_deref().filter(|name| !name.is_empty()) else {
            request_certificates(work, hosts, source, entry);
            continue;
        };
        let InUse { certificate, wrong } = certificates.of(work, &source.id, secret);
        if let Some(why) = wrong {
            work.say(&source.id, Severity::Error, "InvalidCertificate", secret, &why);
        }
        let Some(certificate) = certificate else { continue };
        for name in entry.hosts.as_deref().unwrap_or_default() {
            let Some(host) = hosts.get_mut(name.as_str()) else { continue };
            if !host.is_of(source) || host.certificate.is_some() {
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
        named.push(certificate);
    }
    add_unlisted(work, &named, hosts, (source, tls));
}

/// Gives the hosts that no entry lists a certificate of those that the Ingress names.
fn add_unlisted(
    work: &mut Work<'_>,
    named: &[Certificate],
    hosts: &mut BTreeMap<Arc<str>, Box<Host>>,
    (source, tls): (&Source, &[IngressTLS]),
) {
    let listed: BTreeSet<&str> =
        tls.iter().flat_map(|entry| entry.hosts.iter().flatten()).map(String::as_str).collect();
    for name in source.rules.iter().map(|rule| &rule.host).filter(|name| !name.is_empty()) {
        let own = hosts.get_mut(name).filter(|host| host.is_of(source));
        let Some(host) = own.filter(|host| host.certificate.is_none()) else { continue };
        if listed.contains(&**name) {
            continue;
        }
        host.certificate = named.iter().find(|one| one.covers(name)).cloned();
        if host.certificate.is_none() && !named.is_empty() {
            let message = "no certificate under tls is for this host; it has the default one";
            work.say(&source.id, Severity::Note, "DefaultCertificate", name, message);
        }
    }
}

/// Requests certificates by ACME for hosts without a Secret, if there is an issuer. Aliases that
/// the entry names are included.
fn request_certificates(
    work: &mut Work<'_>,
    hosts: &mut BTreeMap<Arc<str>, Box<Host>>,
    source: &Source,
    entry: &IngressTLS,
) {
    if work.settings.acme_issuer.is_none() {
        return;
    }
    let names = entry.hosts.as_deref().unwrap_or_default();
    for name in names {
        let host = hosts.get_mut(name.as_str());
        let own = host.filter(|host| host.is_of(source) && host.acme_names.is_empty());
        let Some(host) = own else { continue };
        match work.settings.unprovable(name) {
            Some(why) => {
                work.say(&source.id, Severity::Error, "NoCertificate", name, why);
            }
            None => {
                let aliases = source.options.aliases.iter().filter(|alias| names.contains(alias));
                let known = aliases.filter(|alias| work.settings.unprovable(alias).is_none());
                host.acme_names = std::iter::once(name).chain(known).cloned().collect();
            }
        }
    }
}

fn add_aliases(
    work: &mut Work<'_>,
    given: &mut BTreeSet<String>,
    hosts: &mut BTreeMap<Arc<str>, Box<Host>>,
    source: &Source,
) {
    if source.options.aliases.is_empty() {
        return;
    }
    let rules = source.ingress.spec.iter().flat_map(|s| s.rules.as_deref().unwrap_or_default());
    let names: BTreeSet<&str> = rules.filter_map(|rule| rule.host.as_deref()).collect();
    let is_own = |name: &&&str| {
        let host = hosts.get(**name).filter(|host| !host.name.is_empty());
        host.is_some_and(|host| host.is_of(source))
    };
    let own = names.iter().find(is_own).copied();
    for alias in &source.options.aliases {
        let taken = hosts.contains_key(alias.as_str()) || given.contains(alias);
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
