//! Translates a snapshot into a configuration.
//!
//! `sources` reads the Ingresses, `hosts` collects the paths of each host, and `frame` makes the
//! servers of a host. A configuration consists of parts. A `Work` makes each part by itself, and
//! `memory` keeps it for the next snapshot.

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
mod location_variables;
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

pub(crate) use files::{InUse, certificate_of};
pub(crate) use frame::{HEALTH, healthy, over_quic};
pub(crate) use lines::{counted, digest, header_line, line, subrequest_name, when};
pub(crate) use location_variables::names;
pub(crate) use made::headers;
pub use memory::Memory;
pub(crate) use owners::CONFIG_MAP_KEY;
pub(crate) use servers::room;
pub use servers::{DIRECTORY, ServerGroup, ServerWords};
pub(crate) use sources::Source;
pub use text::{ConfigText, Unprintable};
pub(crate) use work::{OfIngresses, Servers, Work};
pub(crate) use zones::zone;

/// The result of a translation.
#[derive(Debug, Default)]
pub struct Translation {
    /// The configuration.
    pub text: ConfigText,
    /// The files that it names. Only the server may read them.
    pub files: BTreeMap<PathBuf, Arc<[u8]>>,
    /// The findings about objects.
    pub findings: Vec<Finding>,
    /// The Ingresses that weir serves.
    pub served: Vec<ObjectId>,
    /// The statuses of Gateway API objects.
    pub statuses: Statuses,
    /// The groups whose servers are in files, by the names of the files.
    pub groups: BTreeMap<String, ServerGroup>,
}

/// The Ingresses that weir serves, oldest first, and the findings about their annotations.
pub(crate) fn sources(snapshot: &Snapshot, settings: &Settings) -> (Vec<Source>, Findings) {
    let mut findings = Findings::default();
    let list = sources::sources(&mut Vec::new(), snapshot, settings, &mut findings);
    (list, findings)
}

/// Translates a snapshot. `gateways` makes the servers of Gateways beside those of Ingresses. Parts
/// that `memory` holds are reused if nothing that they depend on has changed.
pub(crate) fn translate(
    memory: &mut Memory,
    snapshot: &Snapshot,
    settings: &Settings,
    gateways: fn(&mut Work<'_>, &OfIngresses) -> Servers,
) -> Translation {
    let all = NamedObjects::of(snapshot);
    // Ingresses do not depend on the addresses of Gateways, which change often.
    let (addresses_of, published, awaits_address, balancers_of) = Default::default();
    let mut of_ingresses =
        Settings { addresses_of, published, awaits_address, balancers_of, ..settings.clone() };
    keys::without_ipv6(&mut of_ingresses);
    memory.reset_unless_made_with(&of_ingresses);
    let mut base = Base { settings: of_ingresses, ..Base::default() };
    let first = base.clone();
    let mut work = Work::new(&first, &all);
    let certificates = &mut memory.certificates;
    certificates.begin();
    let sources =
        sources::sources(&mut memory.ingresses, snapshot, work.settings, &mut work.findings);
    let hosts = hosts::gather(&mut work, certificates, &sources);
    // Without Ingresses, the ports are left to Gateways.
    let own = !hosts.is_empty() || snapshot.gateway.gateways.is_empty();
    let default = if own { frame::default_certificate(&mut work, certificates) } else { None };
    certificates.end();
    let global = work.global();
    base.proxy_protocol = global.proxy_protocol;
    base.http3 = global.http3;
    base.used_variables.clone_from(&global.used_variables);
    base.location.clone_from(&global.location);
    base.traces = global.traces;
    base.headers.clone_from(&global.headers);
    base.server.clone_from(&global.server);
    let (common, _) = work.finish(Servers::default());

    let words = &base.settings;
    let words = words.http.iter().chain(&words.https).filter(|_| own);
    let words: BTreeSet<String> = words.cloned().collect();
    let ingresses = OfIngresses { words, all_hosts: hosts.contains_key("") };
    let gateway = snapshot.gateway.clone();
    let known = &mut memory.gateways;
    known.reset_unless_made_with(Base { settings: settings.clone(), gateway, ..Base::default() });
    let part = Remembered::next(known.part.take(), (&known.base, &all), ingresses, gateways);
    let gateways = known.part.insert(part);

    let known = &mut memory.hosts;
    known.reset_unless_made_with(base);
    let from = (&known.base, &all);
    let part = Remembered::next(known.sessions.take(), from, (), |work, ()| work.sessions_of());
    let sessions = known.sessions.insert(part);
    let (sites, rest) = frame::sites(hosts, default.as_ref(), &gateways.part.others);
    let mut before = Ordered::new(std::mem::take(&mut known.sites));
    for site in sites {
        let before = before.take_equal(|one| one.of.host.name.cmp(&site.host.name));
        known.sites.push(Remembered::next(before, from, site, frame::host_servers));
    }
    known.rest =
        own.then(|| Remembered::next(known.rest.take(), from, rest, frame::default_servers));
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
