//! A snapshot to a configuration.

mod access;
mod administrator;
mod backend;
mod canary;
mod files;
mod frame;
mod global;
mod hosts;
mod index;
mod lines;
mod location;
mod made;
mod owners;
mod pass;
mod passthrough;
mod servers;
mod sessions;
mod snippet;
mod zones;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use weir_conf::Directive;

use crate::annotations::{Affinity, Options, PREFIX, Reader, Risk, values};
use crate::gateway::status::Statuses;
use crate::report::{Finding, Findings, ObjectId, Severity};
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use index::Index;
pub use owners::Owners;
pub use servers::{DIRECTORY, ServerGroup, ServerWords};

/// What became of a snapshot.
#[derive(Debug, Default)]
pub struct Translation {
    /// The configuration.
    pub tree: Vec<Directive>,
    /// Files that it names, which only the server may read.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// What is to be said about objects.
    pub findings: Vec<Finding>,
    /// The objects that are weir's.
    pub served: Vec<ObjectId>,
    /// What objects of Gateway API are told.
    pub statuses: Statuses,
    /// Which of them asked for which directive.
    pub owners: Owners,
    /// Groups whose servers stand in files, by the names of these.
    pub groups: BTreeMap<String, ServerGroup>,
}

pub(crate) use lines::{digest, line, when};
pub(crate) use made::headers;
pub(crate) use servers::room;
pub(crate) use zones::zone;

/// What all parts of a translation share.
pub(crate) struct Work<'a> {
    pub(crate) snapshot: &'a Snapshot,
    index: Index<'a>,
    pub(crate) settings: &'a Settings,
    owners: Owners,
    proxy_protocol: bool,
    /// Headers for all servers behind, of the controller's ConfigMap.
    headers: Vec<(String, String)>,
    /// Directives of each server of Ingresses, of the same map.
    server: Vec<Directive>,
    findings: Findings,
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// Directives of `http` before the servers: groups, zones, maps. The key makes each of them once.
    pub(crate) shared: BTreeMap<String, Vec<Directive>>,
    groups: BTreeMap<String, ServerGroup>,
    /// The same of `stream`.
    pub(crate) streams: BTreeMap<String, Vec<Directive>>,
}

/// An Ingress with what its annotations ask for.
pub(crate) struct Source<'a> {
    pub(crate) id: ObjectId,
    pub(crate) ingress: &'a Ingress,
    pub(crate) options: Options,
}

/// The Ingresses that are weir's, oldest first, and what their annotations lack.
pub(crate) fn sources<'a>(
    snapshot: &'a Snapshot,
    settings: &'a Settings,
) -> (Vec<Source<'a>>, Findings) {
    let mut work = Work::new(snapshot, settings);
    (work.sources(), work.findings)
}

impl<'a> Source<'a> {
    /// The same Ingress with cookies for a path.
    pub(crate) fn bound(&self, mut affinity: Affinity, path: &str) -> Source<'a> {
        let path = affinity.path.take().unwrap_or_else(|| path.to_owned());
        affinity.words.push(format!("path={path}"));
        let options = Options { affinity: Some(affinity), ..self.options.clone() };
        Source { id: self.id.clone(), ingress: self.ingress, options }
    }
}

/// What the Gateways of a snapshot become.
#[derive(Default)]
pub(crate) struct Gateways {
    /// Servers of `http`.
    pub(crate) http: Vec<Directive>,
    /// Servers of `stream`.
    pub(crate) streams: Vec<Directive>,
    pub(crate) statuses: Statuses,
}

/// Translates a snapshot, with what makes servers of its Gateways beside the words of `listen` that have a default server.
pub(crate) fn translate(
    snapshot: &Snapshot,
    settings: &Settings,
    gateways: fn(&mut Work<'_>, &BTreeSet<String>) -> Gateways,
) -> Translation {
    let mut work = Work::new(snapshot, settings);
    let sources = work.sources();
    let served = sources.iter().map(|source| source.id.clone()).collect();
    let hosts = hosts::gather(&mut work, &sources);
    // Without Ingresses, ports belong to Gateways alone.
    let own = !hosts.is_empty() || snapshot.gateway.gateways.is_empty();
    let words = settings.http.iter().chain(&settings.https).filter(|_| own);
    let taken: BTreeSet<String> = words.cloned().collect();
    let global = work.global();
    work.proxy_protocol = global.proxy_protocol;
    work.headers.clone_from(&global.headers);
    work.server.clone_from(&global.server);
    let made = gateways(&mut work, &taken);
    let mut servers = if own { frame::servers(&mut work, &hosts) } else { Vec::new() };
    servers.extend(made.http);
    let mut streams = made.streams;
    streams.extend(work.sessions_of());
    if own {
        streams.extend(work.front(&hosts));
    }
    let tree = frame::tree(&mut work, global, servers, streams);
    let Work { files, findings, owners, groups, .. } = work;
    let findings = findings.into_sorted();
    Translation { tree, files, findings, served, statuses: made.statuses, owners, groups }
}

impl<'a> Work<'a> {
    fn new(snapshot: &'a Snapshot, settings: &'a Settings) -> Work<'a> {
        Work {
            snapshot,
            index: Index::of(snapshot),
            settings,
            owners: Owners::default(),
            proxy_protocol: false,
            headers: Vec::new(),
            server: Vec::new(),
            findings: Findings::default(),
            files: BTreeMap::new(),
            shared: BTreeMap::new(),
            groups: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }

    /// The Ingresses that are weir's, oldest first.
    fn sources(&mut self) -> Vec<Source<'a>> {
        let snapshot = self.snapshot;
        let wanted = &self.settings.namespace_labels;
        let has_all = |labels: &BTreeMap<String, String>| {
            wanted.iter().all(|(name, value)| labels.get(name) == Some(value))
        };
        let chosen = snapshot
            .gateway
            .namespaces
            .iter()
            .filter(|namespace| namespace.metadata.labels.as_ref().is_some_and(has_all));
        let chosen: BTreeSet<Option<&str>> = chosen.map(|n| n.metadata.name.as_deref()).collect();
        let is_chosen = |ingress: &Ingress| {
            wanted.is_empty() || chosen.contains(&ingress.metadata.namespace.as_deref())
        };
        let mut list: Vec<&Ingress> = snapshot
            .ingresses
            .iter()
            .map(|ingress| &**ingress)
            .filter(|ingress| is_chosen(ingress) && self.is_ours(ingress))
            .collect();
        list.sort_by(|one, other| order(one).cmp(&order(other)));
        list.into_iter().filter_map(|ingress| self.source(ingress)).collect()
    }

    fn source(&mut self, ingress: &'a Ingress) -> Option<Source<'a>> {
        let id = ObjectId::of("Ingress", &ingress.metadata);
        if !values::is_object_name(&id.name) || !values::is_label(&id.namespace) {
            return None;
        }
        let none = BTreeMap::new();
        let annotations = ingress.metadata.annotations.as_ref().unwrap_or(&none);
        if let Some((name, why)) = self.forbidden(annotations) {
            let what = format!("{why}; the Ingress is left out");
            self.say(&id, Severity::Error, "InvalidAnnotation", &name, &what);
            return None;
        }
        let reader = Reader::new(&id, annotations, &self.settings.defaults, &mut self.findings);
        let options = Options::read(&reader, self.settings.loopback);
        // A canary with a word that is neither yes nor no must not take the paths of the main Ingress.
        let canary = annotations.get(&format!("{PREFIX}canary"));
        if canary.is_some() && options.canary.is_none() && reader_flag(canary) != Some(false) {
            return None;
        }
        Some(Source { id, ingress, options })
    }

    /// The first annotation that the administrator does not allow, and why.
    fn forbidden(&self, annotations: &BTreeMap<String, String>) -> Option<(String, String)> {
        let level = self.settings.defaults.get("annotations-risk-level");
        let level = level.and_then(|word| Risk::level(word)).unwrap_or(Risk::Critical);
        annotations.iter().find_map(|(full, value)| {
            let name = full.strip_prefix(PREFIX)?;
            let mut words = self.settings.list("annotation-value-word-blocklist");
            let why = match words.find(|word| value.contains(word)) {
                Some(word) => format!("the administrator forbids \"{word}\""),
                None if level < Risk::Critical && Risk::of(name) > level => {
                    format!(
                        "its risk is {:?}, and the administrator allows {level:?}",
                        Risk::of(name)
                    )
                }
                None => return None,
            };
            Some((name.to_owned(), why))
        })
    }

    pub(crate) fn say(
        &mut self,
        id: &ObjectId,
        severity: Severity,
        reason: &'static str,
        about: &str,
        what: &str,
    ) {
        self.findings.add(id, severity, reason, about, what);
    }

    /// Says which object has asked for directives; what other objects have asked for in them stays theirs.
    pub(crate) fn mark(&mut self, id: &ObjectId, list: &mut [Directive]) {
        self.owners.mark(id, list);
    }

    /// Directives of `http` that an object needs; the key makes each of them once.
    fn share(&mut self, id: &ObjectId, key: String, mut list: Vec<Directive>) {
        self.owners.mark(id, &mut list);
        self.shared.insert(key, list);
    }

    fn is_ours(&self, ingress: &Ingress) -> bool {
        let annotations = ingress.metadata.annotations.as_ref();
        let spec = ingress.spec.as_ref();
        let class = spec.and_then(|spec| spec.ingress_class_name.as_deref()).or_else(|| {
            annotations.and_then(|a| a.get("kubernetes.io/ingress.class")).map(String::as_str)
        });
        let served = |class: &IngressClass| {
            let controller = class.spec.as_ref().and_then(|spec| spec.controller.as_ref());
            controller.is_some_and(|controller| self.settings.controllers.contains(controller))
        };
        let named = |name: &str| self.settings.class.as_deref() == Some(name);
        let by_annotation = spec.is_none_or(|spec| spec.ingress_class_name.is_none());
        if class.is_some_and(named) && (by_annotation || self.settings.class_by_name) {
            return true;
        }
        let mut classes = self.snapshot.classes.iter().filter(|class| served(class));
        match class {
            Some(name) => classes.any(|class| class.metadata.name.as_deref() == Some(name)),
            None => {
                let default = "ingressclass.kubernetes.io/is-default-class";
                self.settings.without_class
                    || classes.any(|class| {
                        let annotations = class.metadata.annotations.as_ref();
                        annotations.and_then(|a| a.get(default)).is_some_and(|v| v == "true")
                    })
            }
        }
    }
}

/// What comes first: when it was made, then its name.
fn order(ingress: &Ingress) -> (i128, Option<&str>, Option<&str>) {
    let meta = &ingress.metadata;
    let born = meta.creation_timestamp.as_ref().map(|time| time.0.as_nanosecond());
    (born.unwrap_or(i128::MAX), meta.namespace.as_deref(), meta.name.as_deref())
}

fn reader_flag(text: Option<&String>) -> Option<bool> {
    let text = text?.trim();
    ["0", "f", "F", "false", "FALSE", "False"].contains(&text).then_some(false)
}
