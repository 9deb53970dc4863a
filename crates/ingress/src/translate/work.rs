//! The making of one part of a configuration: its inputs, and its results.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use weir_conf::Directive;

use super::index::{Index, Lookup, NamedObjects};
use super::lines::line;
use super::owners::Owners;
use super::servers::ServerGroup;
use super::text::TextPiece;
use crate::gateway::{Objects, Statuses};
use crate::report::{Finding, Findings, ObjectId, Severity};
use crate::settings::Settings;

/// The inputs that several parts share. If one changes, all parts are made anew.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Base {
    pub(super) settings: Settings,
    pub(super) proxy_protocol: bool,
    /// Whether HTTP/3 is served at the ports of TLS.
    pub(super) http3: bool,
    /// Whether there is a collector of traces.
    pub(super) traces: bool,
    /// Variables about locations that the controller's ConfigMap uses.
    pub(super) used_variables: Vec<&'static str>,
    /// Headers of the controller's ConfigMap for all upstreams.
    pub(super) headers: Vec<(String, String)>,
    /// Directives of the same map for each server of Ingresses.
    pub(super) server: Vec<Directive>,
    /// Directives of the same map for each location of Ingresses.
    pub(super) location: Vec<Directive>,
    /// Objects of Gateway API, for their own part alone.
    pub(super) gateway: Objects,
}

/// One part of a configuration while it is made.
pub(crate) struct Work<'a> {
    pub(super) base: &'a Base,
    pub(crate) settings: &'a Settings,
    /// Objects of Gateway API.
    pub(crate) gateway: &'a Objects,
    pub(super) index: Index<'a>,
    pub(super) owners: Owners,
    pub(super) findings: Findings,
    pub(super) files: BTreeMap<PathBuf, Arc<[u8]>>,
    /// Directives of `http` before the servers: groups, zones, maps. The key ensures that each is
    /// made once.
    pub(crate) shared: BTreeMap<String, Vec<Directive>>,
    pub(super) groups: BTreeMap<String, ServerGroup>,
    /// The same for `stream`.
    pub(crate) streams: BTreeMap<String, Vec<Directive>>,
}

/// The servers of a part.
#[derive(Default)]
pub(crate) struct Servers {
    /// Servers of `http`.
    pub(crate) http: Vec<Directive>,
    /// Servers of `stream`.
    pub(crate) streams: Vec<Directive>,
    /// The statuses of Gateway API objects.
    pub(crate) statuses: Statuses,
    /// Arguments of `listen` of Ingresses where a Gateway's server is the default server. Those for QUIC: see [`over_quic`](super::over_quic).
    pub(crate) others: BTreeSet<String>,
}

/// What Gateways must know of the servers of Ingresses.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct OfIngresses {
    /// Their arguments of `listen`.
    pub(crate) words: BTreeSet<String>,
    /// Whether one of them is for all hosts.
    pub(crate) all_hosts: bool,
}

/// A finished part.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) http: Option<Arc<TextPiece>>,
    pub(super) streams: Option<Arc<TextPiece>>,
    /// Pieces that several parts may have, by key: of `http`, and of `stream`.
    pub(super) shared: Box<[(String, Arc<TextPiece>)]>,
    pub(super) shared_streams: Box<[(String, Arc<TextPiece>)]>,
    pub(super) files: Box<[(PathBuf, Arc<[u8]>)]>,
    pub(super) groups: Box<[(String, ServerGroup)]>,
    pub(super) findings: Vec<Finding>,
    pub(super) statuses: Statuses,
    pub(super) others: BTreeSet<String>,
}

impl<'a> Work<'a> {
    pub(super) fn new(base: &'a Base, all: &'a NamedObjects<'a>) -> Work<'a> {
        Work {
            base,
            settings: &base.settings,
            gateway: &base.gateway,
            index: Index::of(all),
            owners: Owners::default(),
            findings: Findings::default(),
            files: BTreeMap::new(),
            shared: BTreeMap::new(),
            groups: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }

    /// The finished part, and its lookups. Its directives are one block deep.
    pub(super) fn finish(self, servers: Servers) -> (Part, Box<[Lookup]>) {
        let owners = self.owners;
        let print = |list: &[Directive]| TextPiece::of(list, 1, &owners);
        let some = |list: Vec<Directive>| (!list.is_empty()).then(|| print(&list));
        let each = |shared: BTreeMap<String, Vec<Directive>>| {
            shared.into_iter().map(|(key, list)| (key, print(&list))).collect()
        };
        let part = Part {
            http: some(servers.http),
            streams: some(servers.streams),
            shared: each(self.shared),
            shared_streams: each(self.streams),
            files: self.files.into_iter().collect(),
            groups: self.groups.into_iter().collect(),
            findings: self.findings.into_sorted(),
            statuses: servers.statuses,
            others: servers.others,
        };
        (part, self.index.into_lookups())
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

    /// Says that an annotation of an Ingress cannot be obeyed. Returns the directive that answers
    /// 503 in its place.
    pub(super) fn refuse(
        &mut self,
        id: &ObjectId,
        reason: &'static str,
        annotation: &str,
        why: &str,
    ) -> Directive {
        let text = format!("{why}: answers are 503");
        self.say(id, Severity::Error, reason, annotation, &text);
        line("return", ["503"])
    }

    /// The data of a ConfigMap in an Ingress's own namespace.
    pub(super) fn own_config_map(
        &self,
        id: &ObjectId,
        name: &str,
    ) -> Result<&'a BTreeMap<String, String>, &'static str> {
        let (namespace, name) = id.named(name);
        let found = match namespace == id.namespace {
            true => self.index.config_map(namespace, name),
            false => None,
        };
        let data = found.and_then(|map| map.data.as_ref());
        data.ok_or("the namespace has no such ConfigMap with data")
    }

    /// Makes an object the owner of directives. Those that have an owner keep it.
    pub(crate) fn mark(&mut self, id: &ObjectId, list: &mut [Directive]) {
        self.owners.mark(id, list);
    }

    /// Adds directives of `http` that an object needs. The key ensures that each is made once.
    pub(crate) fn share(&mut self, id: &ObjectId, key: String, mut list: Vec<Directive>) {
        self.owners.mark(id, &mut list);
        self.shared.insert(key, list);
    }
}
