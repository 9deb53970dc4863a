//! What makes a part of a configuration: what it may look at, and what it leaves.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use weir_conf::Directive;

use super::index::{Index, Look, NamedObjects};
use super::owners::Owners;
use super::servers::ServerGroup;
use super::text::TextPiece;
use crate::gateway::{Objects, Statuses};
use crate::report::{Finding, Findings, ObjectId, Severity};
use crate::settings::Settings;

/// What each part may look at, beside objects by their names. If it is another, all parts are made anew.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Base {
    pub(super) settings: Settings,
    pub(super) proxy_protocol: bool,
    /// TLS has HTTP/3 at the same ports.
    pub(super) http3: bool,
    /// There is a collector of traces.
    pub(super) traces: bool,
    /// Variables of ingress-nginx that the controller's ConfigMap names.
    pub(super) told: Vec<&'static str>,
    /// Headers for all servers behind, of the controller's ConfigMap.
    pub(super) headers: Vec<(String, String)>,
    /// Directives of each server of Ingresses, of the same map.
    pub(super) server: Vec<Directive>,
    /// Directives of each location of Ingresses, likewise.
    pub(super) location: Vec<Directive>,
    /// Objects of Gateway API, for their own part alone.
    pub(super) gateway: Objects,
}

/// A part of a configuration while it is made.
pub(crate) struct Work<'a> {
    pub(super) base: &'a Base,
    pub(crate) settings: &'a Settings,
    /// Objects of Gateway API.
    pub(crate) gateway: &'a Objects,
    pub(super) index: Index<'a>,
    pub(super) owners: Owners,
    pub(super) findings: Findings,
    pub(super) files: BTreeMap<PathBuf, Arc<[u8]>>,
    /// Directives of `http` before the servers: groups, zones, maps. The key makes each of them once.
    pub(crate) shared: BTreeMap<String, Vec<Directive>>,
    pub(super) groups: BTreeMap<String, ServerGroup>,
    /// The same of `stream`.
    pub(crate) streams: BTreeMap<String, Vec<Directive>>,
}

/// The servers of a part.
#[derive(Default)]
pub(crate) struct Servers {
    /// Servers of `http`.
    pub(crate) http: Vec<Directive>,
    /// Servers of `stream`.
    pub(crate) streams: Vec<Directive>,
    /// What objects of Gateway API are told.
    pub(crate) statuses: Statuses,
}

/// A part that is made: its text, and all that goes with it.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) http: Option<Arc<TextPiece>>,
    pub(super) streams: Option<Arc<TextPiece>>,
    /// What several parts may have, by its key: of `http`, and of `stream`.
    pub(super) shared: Box<[(String, Arc<TextPiece>)]>,
    pub(super) shared_streams: Box<[(String, Arc<TextPiece>)]>,
    pub(super) files: Box<[(PathBuf, Arc<[u8]>)]>,
    pub(super) groups: Box<[(String, ServerGroup)]>,
    pub(super) findings: Vec<Finding>,
    pub(super) statuses: Statuses,
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

    /// The part, and what was looked at for it. Servers and what they share stand in a block.
    pub(super) fn finish(self, servers: Servers) -> (Part, Box<[Look]>) {
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
        };
        (part, self.index.into_looks())
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
    pub(super) fn share(&mut self, id: &ObjectId, key: String, mut list: Vec<Directive>) {
        self.owners.mark(id, &mut list);
        self.shared.insert(key, list);
    }
}
