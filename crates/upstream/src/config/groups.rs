//! The groups of a configuration: one for each `upstream { }` and one for each host without a
//! block.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::balance::{Balance, RoundRobin};
use crate::{Group, Limits, Peer, PeerOptions, SharedPool};
use weir_conf::{Error, Spot};
use weir_zone::{Declarations, Use, ZoneError, ZoneRef};

use super::dynamic::{self, Dynamic, NamedServer};
use super::recall::Recall;
use super::server::unsupported;
use super::servers_file::ServersFile;
use super::url::{Host, Url};
use weir_resolver::ResolverConf as Resolver;
use weir_values::Template;

/// The index of a group in the site's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupId(pub(super) u32);

/// The key of a hashing method.
#[derive(Debug, Clone, Default)]
pub enum HashKey {
    /// Nothing.
    #[default]
    Nothing,
    /// The client's address.
    Address,
    /// The value of `hash`.
    Value(Template),
}

/// A group, ready to serve.
#[derive(Debug)]
pub struct Upstream<T> {
    /// The peers.
    pub group: Arc<Group>,
    /// The limits of the keepalive pool; `None` if connections are not kept.
    pub keepalive: Option<Limits>,
    /// The pool of idle connections that loops offer one another.
    pub shared: Arc<SharedPool>,
    /// The key of the hashing method.
    pub key: HashKey,
    /// Servers whose names are resolved at run time.
    pub dynamic: Option<Arc<Dynamic>>,
    /// `servers_file`
    pub file: Option<Arc<ServersFile>>,
    /// Settings of the module.
    pub extras: T,
    /// `queue`: requests without a free server wait.
    pub queue: Option<QueueSettings>,
    /// If another configuration may take over the group: the digest of its block, and the zone that
    /// it declares.
    pub(super) reusable_as: Option<(BlockDigest, Option<(String, u64)>)>,
    /// The servers as written and their addresses, to compare the group with that of another
    /// configuration.
    made_of: String,
    /// The block without its servers.
    settings: String,
    /// The servers with fixed addresses.
    peers: Vec<Arc<Peer>>,
    pub(super) host: Vec<u8>,
    /// 0 for a block, whose servers have their own ports.
    pub(super) port: u16,
}

/// A hash of the text of a block.
pub type BlockDigest = [u8; 32];

/// `queue`
#[derive(Debug, Clone)]
pub struct QueueSettings {
    /// The most requests that wait in each worker.
    pub most: usize,
    /// How long each waits.
    pub timeout: Duration,
}

impl QueueSettings {
    /// With the default timeout of nginx's manual.
    pub fn new(most: usize) -> QueueSettings {
        QueueSettings { most, timeout: Duration::from_secs(60) }
    }
}

/// `zone` of an upstream.
#[derive(Debug)]
pub enum GroupZone {
    /// With a size.
    Declared(ZoneRef, u64),
    /// Without a size, which another upstream declares.
    Named(String),
}

impl GroupZone {
    const TAG: &'static str = "upstream";

    /// Declares a zone for the state of peers.
    pub fn declare<T: GroupExtras>(
        zones: &Declarations,
        name: &str,
        size: u64,
    ) -> Result<GroupZone, ZoneError> {
        let purpose = Use { block: T::BLOCK, ..Use::of(Self::TAG, 0) };
        zones.declare(name, size, purpose).map(|zone| GroupZone::Declared(zone, size))
    }

    /// The zone, after all are declared. An error if it has no room for this many peers.
    fn finish<T: GroupExtras>(
        self,
        zones: &Declarations,
        peers: usize,
        at: Spot,
    ) -> Result<ZoneRef, Error> {
        match self {
            GroupZone::Named(name) => {
                zones.find_in(T::BLOCK, &name, Self::TAG).map_err(|error| at.error(error))
            }
            GroupZone::Declared(zone, size) if crate::peers_in_zone(size) < peers => {
                Err(at.error(format_args!("zone \"{}\" is too small", zone.name())))
            }
            GroupZone::Declared(zone, _) => Ok(zone),
        }
    }
}

/// Settings of the enclosing block that groups inherit.
#[derive(Debug, Clone)]
pub struct InheritedSettings {
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub resolver_timeout: Duration,
}

/// Settings of a module for a group.
pub trait GroupExtras: Default {
    /// The block whose groups these are. Groups of different blocks share no zone.
    const BLOCK: &'static str;

    /// Whether clients are bound to servers: see [`Choice::bound`](crate::Choice::bound).
    fn binds(&self) -> bool {
        false
    }

    /// Whether a script chooses servers, so that the block needs none.
    fn chooses(&self) -> bool {
        false
    }
}

/// No settings.
impl GroupExtras for () {
    const BLOCK: &'static str = "";
}

/// A group that is being read.
pub struct GroupDraft<T> {
    pub(super) host: Vec<u8>,
    pub(super) port: Option<u16>,
    pub(super) default_port: u16,
    pub(super) url: Url,
    pub(super) at: Spot,
    pub(super) block: Option<UpstreamBlock<T>>,
    pub(super) digest: Option<BlockDigest>,
    /// The text of the block: its servers, and the rest.
    pub(super) text: [String; 2],
}

/// The settings of an `upstream { }`.
pub struct UpstreamBlock<T> {
    /// Its name.
    pub name: String,
    /// Its peers so far.
    pub peers: Vec<Arc<Peer>>,
    /// The method, if one is named.
    pub balance: Option<Box<dyn Balance>>,
    /// The key of a hashing method.
    pub key: HashKey,
    /// `keepalive` and kin.
    pub keepalive: Limits,
    /// Servers whose names are resolved at run time.
    pub named: Vec<NamedServer>,
    /// `servers_file`, and the port of servers without a port.
    pub file: Option<(PathBuf, u16)>,
    /// `zone`
    pub zone: Option<GroupZone>,
    /// The method supports neither `backup` nor `slow_start`.
    pub plain: bool,
    /// The first `slow_start`, with its place. A method behind it may not support it.
    pub slow_start: Option<(Spot, String)>,
    /// Settings of the module.
    pub extras: T,
    /// `queue`
    pub queue: Option<QueueSettings>,
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub resolver_timeout: Option<Duration>,
}

/// All groups.
#[derive(Debug)]
pub struct Upstreams<T> {
    /// By id. `None`: the id is reserved for a group of another configuration.
    pub(super) list: Vec<Option<Arc<Upstream<T>>>>,
}

impl<T: GroupExtras> GroupDraft<T> {
    /// Builds the group, after the whole configuration was read.
    pub(super) fn finish(
        self,
        around: &InheritedSettings,
        zones: &Declarations,
        warnings: &mut Vec<Error>,
    ) -> Result<Upstream<T>, Error> {
        let name = String::from_utf8_lossy(&self.host).into_owned();
        let seed = seed(&self.host);
        if let Some(block) = self.block {
            return block.finish(around, zones, self.at, self.host, (self.text, self.digest));
        }
        let local = matches!(self.url.address, Some(Host::Unix(_)));
        if self.port.is_none() && self.default_port == 0 && !local {
            return Err(self.at.error(format!("no port in upstream \"{name}\"")));
        }
        let port = self.port.unwrap_or(self.default_port);
        let found = self.url.endpoints(self.default_port);
        let late = found.is_err();
        let each = |e| Arc::new(Peer::new(e, name.clone(), PeerOptions::default()));
        let peers: Vec<_> = found.into_iter().flatten().map(each).collect();
        let (made_of, settings) = (made_of("", &peers), String::new());
        let group = Group::new(name.clone(), peers.clone(), Box::new(RoundRobin), seed);
        let group = Arc::new(group);
        let dynamic = late.then(|| {
            warnings.push(self.at.warning(dynamic::not_found(&name)));
            let named =
                NamedServer::unresolved(name.clone(), port, name.clone(), PeerOptions::default());
            Arc::new(Dynamic::late(named, group.clone()))
        });
        Ok(Upstream {
            group,
            keepalive: None,
            shared: Arc::default(),
            key: HashKey::Nothing,
            dynamic,
            file: None,
            extras: T::default(),
            queue: None,
            reusable_as: None,
            made_of,
            settings,
            peers,
            host: self.host,
            port,
        })
    }
}

impl<T: GroupExtras> UpstreamBlock<T> {
    /// Whether the block means the same in any configuration: it has no variables, no host names
    /// and no references.
    fn stands_alone(&self) -> bool {
        let is_address = |peer: &Arc<Peer>| {
            let name = &peer.name;
            name.starts_with("unix:") || name.parse::<std::net::SocketAddr>().is_ok()
        };
        let plain = matches!(self.key, HashKey::Nothing | HashKey::Address);
        let zone = !matches!(self.zone, Some(GroupZone::Named(_)));
        let outside = self.extras.binds() || self.extras.chooses() || !self.named.is_empty();
        // A peer of a resolved host name has that name as its `server`.
        let as_written = self.peers.iter().all(|peer| is_address(peer) && peer.server == peer.name);
        plain && zone && !outside && as_written
    }

    /// The name and size of the zone that the block declares.
    fn declares(&self) -> Option<(String, u64)> {
        match &self.zone {
            Some(GroupZone::Declared(zone, size)) => Some((zone.name().to_owned(), *size)),
            _ => None,
        }
    }

    /// Whether the block has servers: `server` lines, a file or a script.
    pub fn has_servers(&self) -> bool {
        !self.peers.is_empty()
            || !self.named.is_empty()
            || self.file.is_some()
            || self.extras.chooses()
    }

    /// An empty block.
    pub fn new(name: String) -> Self {
        UpstreamBlock {
            name,
            peers: Vec::new(),
            balance: None,
            key: HashKey::Nothing,
            keepalive: Limits::default(),
            named: Vec::new(),
            file: None,
            zone: None,
            plain: false,
            slow_start: None,
            extras: T::default(),
            queue: None,
            resolver: None,
            resolver_timeout: None,
        }
    }

    fn finish(
        self,
        around: &InheritedSettings,
        zones: &Declarations,
        at: Spot,
        host: Vec<u8>,
        ([servers, settings], digest): ([String; 2], Option<BlockDigest>),
    ) -> Result<Upstream<T>, Error> {
        let reusable_as =
            digest.filter(|_| self.stands_alone()).map(|digest| (digest, self.declares()));
        let name = self.name;
        let made_of = made_of(&servers, &self.peers);
        let usual = self.peers.iter().any(|p| !p.options.backup);
        let named = self.named.iter().any(|n| !n.options.backup);
        if !usual && !named && self.file.is_none() && !self.extras.chooses() {
            return Err(at.error(format!("no servers in upstream \"{name}\"")));
        }
        if self.file.is_some() && (usual || !self.peers.is_empty() || !self.named.is_empty()) {
            let text = "has both \"server\" and \"servers_file\": its servers stand in one place";
            return Err(at.error(format!("upstream \"{name}\" {text}")));
        }
        let peers = self.peers.len();
        let room = match &self.zone {
            Some(GroupZone::Declared(_, size)) => Some(crate::peers_in_zone(*size)),
            _ => None,
        };
        let plain = self.plain || self.extras.chooses();
        if let Some((spot, word)) = self.slow_start.filter(|_| plain) {
            return Err(spot.error(unsupported(&word)));
        }
        let file = self.file.map(|(path, port)| Arc::new(ServersFile { path, port, plain, room }));
        let zone = self.zone.map(|zone| zone.finish::<T>(zones, peers, at)).transpose()?;
        let zoned = zone.is_some();
        let balance = self.balance.unwrap_or_else(|| Box::new(RoundRobin));
        let mut group = Group::new(&name, self.peers.clone(), balance, seed(&host)).shared_in(zone);
        if self.extras.binds() {
            group = group.binding();
        }
        let group = Arc::new(group);
        let resolver = self.resolver.or_else(|| around.resolver.clone());
        let again = self.named.iter().any(NamedServer::is_resolved_again);
        let complain = |text| Err(at.error(text));
        if again && !zoned {
            let text = "resolving names at run time requires upstream";
            return complain(format_args!("{text} \"{name}\" to be in shared memory"));
        }
        if again && resolver.is_none() {
            let text = "no resolver defined to resolve names at run time in upstream";
            return complain(format_args!("{text} \"{name}\""));
        }
        let recall = again.then(|| Recall::declare(zones, &name)).transpose();
        let recall = recall.map_err(|error| at.error(error))?;
        let dynamic = (!self.named.is_empty()).then(|| {
            Arc::new(Dynamic {
                recall,
                named: self.named,
                fixed: self.peers.clone(),
                resolver,
                timeout: self.resolver_timeout.unwrap_or(around.resolver_timeout),
                group: group.clone(),
            })
        });
        let keepalive = Some(self.keepalive).filter(|k| k.idle > 0);
        let (key, extras, queue) = (self.key, self.extras, self.queue);
        let shared = Arc::default();
        Ok(Upstream {
            group,
            keepalive,
            shared,
            key,
            dynamic,
            file,
            extras,
            queue,
            reusable_as,
            made_of,
            settings,
            peers: self.peers,
            host,
            port: 0,
        })
    }
}

/// The seed of random methods. It differs between groups and processes, so that they do not choose
/// in step.
fn seed(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325 ^ u64::from(std::process::id()), |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The servers as written, and their addresses.
fn made_of(servers: &str, peers: &[Arc<Peer>]) -> String {
    peers.iter().fold(servers.to_owned(), |text, peer| text + " " + &peer.name)
}

impl<T> Upstream<T> {
    /// Identifies a group across configurations, apart from its servers.
    fn identity(&self) -> (&[u8], u16, &str, bool) {
        (&self.host, self.port, &self.settings, self.dynamic.is_some())
    }
}

impl<T> Upstreams<T> {
    /// Shares groups with the last configuration of this process: the state of their peers and the
    /// idle connections. If the servers differ, the group gets the new list, and peers in both
    /// lists keep their state.
    pub fn keep(&mut self, before: &Upstreams<T>) {
        // In reverse, so that the first of two equal groups wins.
        let all = before.list.iter().rev().flatten().map(|old| &**old);
        let known: HashMap<_, _> = all.map(|old| (old.identity(), old)).collect();
        // Groups that were taken over are shared already, so `get_mut` skips them.
        for own in self.list.iter_mut().flatten().filter_map(Arc::get_mut) {
            let Some(old) = known.get(&own.identity()).copied() else { continue };
            if old.made_of != own.made_of {
                // A task of the old configuration still writes to the old group.
                if own.dynamic.is_some() {
                    continue;
                }
                old.group.replace(own.peers.clone());
            }
            (own.group, own.shared) = (Arc::clone(&old.group), Arc::clone(&old.shared));
            // The task of this configuration has not started yet.
            if let Some(dynamic) = own.dynamic.as_mut().and_then(Arc::get_mut) {
                dynamic.group = Arc::clone(&old.group);
            }
        }
    }

    /// The groups with a `servers_file`.
    pub fn in_files(&self) -> impl Iterator<Item = (Arc<Group>, Arc<ServersFile>)> {
        let each = |u: &Upstream<T>| Some((Arc::clone(&u.group), Arc::clone(u.file.as_ref()?)));
        self.all().filter_map(each)
    }

    /// All groups.
    pub fn all(&self) -> impl Iterator<Item = &Upstream<T>> {
        self.list.iter().flatten().map(|group| &**group)
    }

    /// All ids in order, with their groups.
    pub fn places(&self) -> impl Iterator<Item = Option<&Upstream<T>>> {
        self.list.iter().map(Option::as_deref)
    }

    /// The group with this id.
    pub fn get(&self, id: GroupId) -> Option<&Upstream<T>> {
        self.list.get(id.0 as usize).and_then(Option::as_deref)
    }

    /// Finds a group for a host that a variable gave.
    pub fn find(&self, host: &[u8], port: Option<u16>, default_port: u16) -> Option<GroupId> {
        let fits = |u: &Upstream<T>| {
            let same_port = match u.port {
                0 => port.is_none(),
                own => own == port.unwrap_or(default_port),
            };
            same_port && u.host.eq_ignore_ascii_case(host)
        };
        let place = self.list.iter().position(|group| group.as_deref().is_some_and(fits));
        place.map(|i| GroupId(i as u32))
    }
}

impl GroupId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
