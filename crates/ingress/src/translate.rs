//! A snapshot to a configuration.

mod backend;
mod files;
mod frame;
mod hosts;
mod location;

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use weir_conf::Directive;

use crate::annotations::{Options, PREFIX, Reader, values};
use crate::report::{Finding, Findings, ObjectId, Severity};
use crate::settings::Settings;
use crate::snapshot::Snapshot;

/// What became of a snapshot.
#[derive(Debug, Default)]
pub struct Translation {
    /// The configuration.
    pub tree: Vec<Directive>,
    /// Files that it names, which only the server may read.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// What is to be said about objects.
    pub findings: Vec<Finding>,
    /// The Ingresses that are weir's.
    pub served: Vec<ObjectId>,
}

/// What all parts of a translation share.
struct Work<'a> {
    snapshot: &'a Snapshot,
    settings: &'a Settings,
    findings: Findings,
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// Directives of `http` before the servers: groups, zones, maps. The key makes each of them once.
    shared: BTreeMap<String, Vec<Directive>>,
}

/// An Ingress with what its annotations ask for.
struct Source<'a> {
    id: ObjectId,
    ingress: &'a Ingress,
    options: Options,
}

/// Translates a snapshot. The same snapshot gives the same tree, whatever the order of its objects is.
pub fn translate(snapshot: &Snapshot, settings: &Settings) -> Translation {
    let (findings, files) = (Findings::default(), BTreeMap::new());
    let mut work = Work { snapshot, settings, findings, files, shared: BTreeMap::new() };
    let sources = work.sources();
    let served = sources.iter().map(|source| source.id.clone()).collect();
    let hosts = hosts::gather(&mut work, &sources);
    let tree = frame::tree(&mut work, &hosts);
    Translation { tree, files: work.files, findings: work.findings.into_sorted(), served }
}

impl<'a> Work<'a> {
    /// The Ingresses that are weir's, oldest first.
    fn sources(&mut self) -> Vec<Source<'a>> {
        let mut list: Vec<&Ingress> =
            self.snapshot.ingresses.iter().filter(|ingress| self.is_ours(ingress)).collect();
        list.sort_by_key(|ingress| {
            let meta = &ingress.metadata;
            let born = meta.creation_timestamp.as_ref().map(|time| time.0.as_nanosecond());
            (born.unwrap_or(i128::MAX), meta.namespace.clone(), meta.name.clone())
        });
        list.into_iter().filter_map(|ingress| self.source(ingress)).collect()
    }

    fn source(&mut self, ingress: &'a Ingress) -> Option<Source<'a>> {
        let id = ObjectId::of("Ingress", &ingress.metadata);
        if !values::is_object_name(&id.name) || !values::is_label(&id.namespace) {
            return None;
        }
        let none = BTreeMap::new();
        let annotations = ingress.metadata.annotations.as_ref().unwrap_or(&none);
        let reader = Reader::new(&id, annotations, &self.settings.defaults, &mut self.findings);
        let options = Options::read(&reader, self.settings.loopback);
        let canary = annotations.get(&format!("{PREFIX}canary"));
        if canary.is_some_and(|value| value != "false") {
            self.say(&id, Severity::Error, "CanaryLeftOut", "canary", "this Ingress is not served");
            return None;
        }
        Some(Source { id, ingress, options })
    }

    fn say(
        &mut self,
        id: &ObjectId,
        severity: Severity,
        reason: &'static str,
        about: &str,
        what: &str,
    ) {
        self.findings.add(id, severity, reason, about, what);
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

/// A directive with words of any text.
fn line<'w>(name: &str, words: impl IntoIterator<Item = &'w str>) -> Directive {
    Directive::new(name, words)
}

/// `if (LEFT OPERATOR RIGHT) { ... }`.
fn when(left: &str, operator: &str, right: &str, then: Vec<Directive>) -> Directive {
    let (left, right) = (format!("({left}"), format!("{right})"));
    line("if", [left.as_str(), operator, right.as_str()]).with_block(then)
}

/// A short name for a text, of hexadecimal digits.
fn digest(text: &[u8]) -> String {
    use sha1::{Digest, Sha1};
    Sha1::digest(text).iter().take(10).map(|byte| format!("{byte:02x}")).collect()
}
