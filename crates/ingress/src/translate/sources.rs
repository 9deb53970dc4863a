//! The Ingresses that weir serves, with the settings that their annotations ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::{Ingress, IngressClass};

use super::ordered::Ordered;
use super::rules::{self, HostRule};
use crate::annotations::{Affinity, Options, PREFIX, Reader, Risk, values};
use crate::report::{Finding, Findings, ObjectId, Severity};
use crate::settings::Settings;
use crate::snapshot::Snapshot;

/// An Ingress with its settings. Two are equal if they are the same allocation.
#[derive(Clone, Debug)]
pub(crate) struct Source(Arc<IngressOptions>);

#[derive(Debug)]
pub(crate) struct IngressOptions {
    pub(crate) id: ObjectId,
    pub(crate) ingress: Arc<Ingress>,
    pub(crate) options: Options,
    pub(super) rules: Vec<HostRule>,
    /// The number of its locations.
    pub(super) locations: usize,
}

impl Deref for Source {
    type Target = IngressOptions;

    fn deref(&self) -> &IngressOptions {
        &self.0
    }
}

impl PartialEq for Source {
    fn eq(&self, other: &Source) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Source {
    /// A copy of the Ingress with its cookie for a path.
    pub(crate) fn bound(&self, mut affinity: Affinity, path: &str) -> Source {
        let path = affinity.path.take().unwrap_or_else(|| path.to_owned());
        affinity.words.push(format!("path={path}"));
        let options = Options { affinity: Some(affinity), ..self.options.clone() };
        let (id, ingress) = (self.id.clone(), self.ingress.clone());
        let rules = Vec::new();
        Source(Arc::new(IngressOptions { id, ingress, options, rules, locations: 0 }))
    }
}

/// What was made of an Ingress.
#[derive(Debug)]
pub(super) struct KnownIngress {
    ingress: Arc<Ingress>,
    /// `None` if it is left out.
    source: Option<Source>,
    findings: Vec<Finding>,
}

impl KnownIngress {
    /// This, if the Ingress has not changed since. Its status does not count, since nothing reads
    /// it.
    fn if_unchanged(mut self, now: &Arc<Ingress>) -> Option<KnownIngress> {
        let before = &self.ingress;
        if Arc::ptr_eq(before, now) {
            return Some(self);
        }
        let same = before.metadata == now.metadata && before.spec == now.spec;
        self.ingress.clone_from(now);
        same.then_some(self)
    }
}

/// Reads the Ingresses that weir serves, oldest first. `known` has the results of the last
/// translation with the same settings.
pub(super) fn sources(
    known: &mut Vec<KnownIngress>,
    snapshot: &Snapshot,
    settings: &Settings,
    findings: &mut Findings,
) -> Vec<Source> {
    let mut before = Ordered::new(std::mem::take(known));
    for (age, ingress) in chosen(snapshot, settings) {
        let same = before.take_equal(|one| order(&one.ingress).cmp(&age));
        let same = same.and_then(|one| one.if_unchanged(ingress));
        known.push(same.unwrap_or_else(|| read(ingress, settings)));
    }
    for one in known.iter() {
        findings.extend(&one.findings);
    }
    known.iter().filter_map(|one| one.source.clone()).collect()
}

/// The order of Ingresses: creation time, then namespace and name.
type Age<'a> = (i128, Option<&'a str>, Option<&'a str>);

fn order(ingress: &Ingress) -> Age<'_> {
    let meta = &ingress.metadata;
    let born = meta.creation_timestamp.as_ref().map(|time| time.0.as_nanosecond());
    (born.unwrap_or(i128::MAX), meta.namespace.as_deref(), meta.name.as_deref())
}

/// The Ingresses that weir serves, oldest first.
fn chosen<'a>(snapshot: &'a Snapshot, settings: &Settings) -> Vec<(Age<'a>, &'a Arc<Ingress>)> {
    let wanted = &settings.namespace_labels;
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
    let mut list: Vec<_> = snapshot
        .ingresses
        .iter()
        .filter(|ingress| is_chosen(ingress) && is_ours(ingress, &snapshot.classes, settings))
        .map(|ingress| (order(ingress), ingress))
        .collect();
    list.sort_by_key(|(age, _)| *age);
    list
}

fn is_ours(ingress: &Ingress, classes: &[Arc<IngressClass>], settings: &Settings) -> bool {
    let annotations = ingress.metadata.annotations.as_ref();
    let spec = ingress.spec.as_ref();
    let class = spec.and_then(|spec| spec.ingress_class_name.as_deref()).or_else(|| {
        annotations.and_then(|a| a.get("kubernetes.io/ingress.class")).map(String::as_str)
    });
    let served = |class: &IngressClass| {
        let controller = class.spec.as_ref().and_then(|spec| spec.controller.as_ref());
        controller.is_some_and(|controller| settings.controllers.contains(controller))
    };
    let named = |name: &str| settings.class.as_deref() == Some(name);
    let by_annotation = spec.is_none_or(|spec| spec.ingress_class_name.is_none());
    let by_name = class.is_some_and(named) && (by_annotation || settings.class_by_name);
    if settings.any_class || by_name {
        return true;
    }
    let mut classes = classes.iter().filter(|class| served(class));
    match class {
        Some(name) => classes.any(|class| class.metadata.name.as_deref() == Some(name)),
        None => {
            let default = "ingressclass.kubernetes.io/is-default-class";
            settings.without_class
                || classes.any(|class| {
                    let annotations = class.metadata.annotations.as_ref();
                    annotations.and_then(|a| a.get(default)).is_some_and(|v| v == "true")
                })
        }
    }
}

/// Reads an Ingress. The result depends on the Ingress and the settings alone.
fn read(ingress: &Arc<Ingress>, settings: &Settings) -> KnownIngress {
    let mut findings = Findings::default();
    let source = source(ingress, settings, &mut findings);
    KnownIngress { ingress: ingress.clone(), source, findings: findings.into_sorted() }
}

fn source(ingress: &Arc<Ingress>, settings: &Settings, findings: &mut Findings) -> Option<Source> {
    let id = ObjectId::of("Ingress", &ingress.metadata);
    if !values::is_object_name(&id.name) || !values::is_label(&id.namespace) {
        return None;
    }
    let none = BTreeMap::new();
    let annotations = ingress.metadata.annotations.as_ref().unwrap_or(&none);
    if let Some((name, why)) = forbidden(annotations, settings) {
        let what = format!("{why}; the Ingress is left out");
        findings.add(&id, Severity::Error, "InvalidAnnotation", &name, &what);
        return None;
    }
    let reader = Reader::new(&id, annotations, &settings.defaults, findings);
    let options = Options::read(&reader, settings.loopback);
    // If the value of `canary` is no boolean, the Ingress must not take the paths of the main
    // Ingress.
    let canary = annotations.get(&format!("{PREFIX}canary"));
    if canary.is_some() && options.canary.is_none() && reader_flag(canary) != Some(false) {
        return None;
    }
    let (ingress, rules) = (ingress.clone(), rules::read(ingress, &options, settings));
    let locations = rules.iter().map(HostRule::locations).sum();
    Some(Source(Arc::new(IngressOptions { id, ingress, options, rules, locations })))
}

/// The first annotation that the administrator does not allow, and why.
fn forbidden(
    annotations: &BTreeMap<String, String>,
    settings: &Settings,
) -> Option<(String, String)> {
    let level = settings.defaults.get("annotations-risk-level");
    let level = level.and_then(|word| Risk::level(word)).unwrap_or(Risk::Critical);
    annotations.iter().find_map(|(full, value)| {
        let name = full.strip_prefix(PREFIX)?;
        let mut words = settings.list("annotation-value-word-blocklist");
        let why = match words.find(|word| value.contains(word)) {
            Some(word) => format!("the administrator forbids \"{word}\""),
            None if level < Risk::Critical && Risk::of(name) > level => {
                format!("its risk is {:?}, and the administrator allows {level:?}", Risk::of(name))
            }
            None => return None,
        };
        Some((name.to_owned(), why))
    })
}

fn reader_flag(text: Option<&String>) -> Option<bool> {
    let text = text?.trim();
    ["0", "f", "F", "false", "FALSE", "False"].contains(&text).then_some(false)
}
