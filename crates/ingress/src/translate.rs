//! A snapshot to a configuration.
//!
//! The way of an object: `sources` reads Ingresses, `hosts` finds out what each host has, and `frame` makes the servers of a
//! host. A configuration consists of parts, each made by itself by a `Work`; `memory` keeps them for the next
//! snapshot.

mod access;
mod acme;
mod administrator;
mod backend;
mod canary;
mod files;
mod frame;
mod global;
mod heads;
mod hosts;
mod index;
mod keys;
mod lines;
mod location;
mod logs;
mod made;
mod memory;
mod ordered;
mod owners;
mod parts;
mod pass;
mod passthrough;
mod rules;
mod servers;
mod sessions;
mod snippet;
mod sources;
#[cfg(test)]
mod tests;
mod text;
mod told;
mod tracing;
mod work;
mod zones;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use crate::gateway::Statuses;
use crate::report::{Finding, Findings, ObjectId};
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use index::NamedObjects;
use memory::Remembered;
use ordered::Ordered;
use parts::Parts;
use work::Base;

pub(crate) use lines::{counted, digest, line, when};
pub(crate) use made::headers;
pub use memory::Memory;
pub(crate) use owners::KEY;
pub(crate) use servers::room;
pub use servers::{DIRECTORY, ServerGroup, ServerWords};
pub(crate) use sources::Source;
pub use text::ConfigText;
pub(crate) use told::names;
pub(crate) use work::{Servers, Work};
pub(crate) use zones::zone;

/// What became of a snapshot.
#[derive(Debug, Default)]
pub struct Translation {
    /// The configuration.
    pub text: ConfigText,
    /// Files that it names, which only the server may read.
    pub files: BTreeMap<PathBuf, Arc<[u8]>>,
    /// What is to be said about objects.
    pub findings: Vec<Finding>,
    /// The objects that are weir's.
    pub served: Vec<ObjectId>,
    /// What objects of Gateway API are told.
    pub statuses: Statuses,
    /// Groups whose servers stand in files, by the names of these.
    pub groups: BTreeMap<String, ServerGroup>,
}

/// The Ingresses that are weir's, oldest first, and what their annotations lack.
pub(crate) fn sources(snapshot: &Snapshot, settings: &Settings) -> (Vec<Source>, Findings) {
    let mut findings = Findings::default();
    let list = sources::sources(&mut Vec::new(), snapshot, settings, &mut findings);
    (list, findings)
}

/// Translates a snapshot, with what makes servers of its Gateways beside the words of `listen` that have a default server.
/// What `memory` has of the last snapshot is not made again.
pub(crate) fn translate(
    memory: &mut Memory,
    snapshot: &Snapshot,
    settings: &Settings,
    gateways: fn(&mut Work<'_>, &BTreeSet<String>) -> Servers,
) -> Translation {
    let all = NamedObjects::of(snapshot);
    // No Ingress depends on the addresses of Gateways, which come and go with them.
    let (addresses_of, published, awaits_address) = Default::default();
    let mut of_ingresses = Settings { addresses_of, published, awaits_address, ..settings.clone() };
    keys::without_ipv6(&mut of_ingresses);
    memory.keep_for(&of_ingresses);
    let mut base = Base { settings: of_ingresses, ..Base::default() };
    let first = base.clone();
    let mut work = Work::new(&first, &all);
    let certificates = &mut memory.certificates;
    certificates.begin();
    let sources =
        sources::sources(&mut memory.ingresses, snapshot, work.settings, &mut work.findings);
    let hosts = hosts::gather(&mut work, certificates, &sources);
    // Without Ingresses, ports belong to Gateways alone.
    let own = !hosts.is_empty() || snapshot.gateway.gateways.is_empty();
    let default = if own { frame::default_certificate(&mut work, certificates) } else { None };
    certificates.end();
    let global = work.global();
    base.proxy_protocol = global.proxy_protocol;
    base.http3 = global.http3;
    base.told.clone_from(&global.told);
    base.location.clone_from(&global.location);
    base.traces = global.traces;
    base.headers.clone_from(&global.headers);
    base.server.clone_from(&global.server);
    let (common, _) = work.finish(Servers::default());

    let words = &base.settings;
    let words = words.http.iter().chain(&words.https).filter(|_| own);
    let taken: BTreeSet<String> = words.cloned().collect();
    let gateway = snapshot.gateway.clone();
    let known = &mut memory.gateways;
    known.keep_for(Base { settings: settings.clone(), gateway, ..Base::default() });
    let part = Remembered::next(known.part.take(), (&known.base, &all), taken, gateways);
    let gateways = known.part.insert(part);

    let known = &mut memory.hosts;
    known.keep_for(base);
    let from = (&known.base, &all);
    let part = Remembered::next(known.sessions.take(), from, (), |work, ()| work.sessions_of());
    let sessions = known.sessions.insert(part);
    let (sites, rest) = frame::sites(hosts, default.as_ref());
    let mut before = Ordered::new(std::mem::take(&mut known.sites));
    for site in sites {
        let before = before.take(|one| one.of.host.name.cmp(&site.host.name));
        known.sites.push(Remembered::next(before, from, site, frame::of_site));
    }
    known.rest = own.then(|| Remembered::next(known.rest.take(), from, rest, frame::of_rest));
    let parts = Parts {
        common: &common,
        gateways: &gateways.part,
        sites: known.sites.iter().map(|site| &site.part).collect(),
        rest: known.rest.as_ref().map(|rest| &rest.part),
        sessions: &sessions.part,
    };
    let served = sources.iter().map(|source| source.id.clone()).collect();
    parts.join(&known.base, global, served)
}
