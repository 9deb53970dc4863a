//! The groups of a configuration: those of `upstream { }`, and one for each host that is named without.

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
use super::servers_file::ServersFile;
use super::url::{Host, Url};
use weir_resolver::ResolverConf as Resolver;
use weir_values::Template;

/// A group's place in the site's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupId(pub(super) u32);

/// What a method of balancing hashes.
#[derive(Debug, Clone, Default)]
pub enum HashKey {
    /// Nothing.
    #[default]
    Nothing,
    /// The client's address.
    Address,
    /// A value of the configuration.
    Value(Template),
}

/// A group, ready to serve.
#[derive(Debug)]
pub struct Upstream<T> {
    /// The peers.
    pub group: Arc<Group>,
    /// What is kept of their connections; `None`: nothing.
    pub keepalive: Option<Limits>,
    /// Where the loops of the process show one another what they keep.
    pub shared: Arc<SharedPool>,
    /// What the method hashes.
    pub key: HashKey,
    /// Servers with names that are looked up regularly.
    pub dynamic: Option<Arc<Dynamic>>,
    /// `servers_file`
    pub file: Option<Arc<ServersFile>>,
    /// What the module says of it.
    pub extras: T,
    /// A request that finds no server waits for one.
    pub queue: Option<Queued>,
    /// What tells its block from others, if another configuration may take the group as it is, and the zone that it declares.
    pub(super) taken_by: Option<(BlockDigest, Option<(String, u64)>)>,
    /// What it was made of, to tell whether a group of another configuration is the same.
    made_of: String,
    /// The same without its servers.
    settings: String,
    /// The servers with addresses that the configuration knows.
    peers: Vec<Arc<Peer>>,
    pub(super) host: Vec<u8>,
    /// 0 for a block: its servers have their own.
    pub(super) port: u16,
}

/// Tells what a block says from what others say.
pub type BlockDigest = [u8; 32];

/// `queue`
#[derive(Debug, Clone)]
pub struct Queued {
    /// How many may wait in each worker.
    pub most: usize,
    /// For how long.
    pub timeout: Duration,
}

impl Queued {
    /// With the time that nginx's manual names.
    pub fn new(most: usize) -> Queued {
        Queued { most, timeout: Duration::from_secs(60) }
    }
}

/// `zone` of an upstream.
#[derive(Debug)]
pub enum Zoned {
    /// With its size.
    Declared(ZoneRef, u64),
    /// Another upstream tells the size.
    Named(String),
}

impl Zoned {
    const TAG: &'static str = "upstream";

    /// A zone for the state of peers.
    pub fn declare(zones: &Declarations, name: &str, size: u64) -> Result<Zoned, ZoneError> {
        let purpose = Use::of(Self::TAG, 0);
        zones.declare(name, size, purpose).map(|zone| Zoned::Declared(zone, size))
    }

    /// The zone, when all are declared, which must have room for so many peers.
    fn finish(self, zones: &Declarations, peers: usize, at: Spot) -> Result<ZoneRef, Error> {
        match self {
            Zoned::Named(name) => zones.find(&name, Self::TAG).map_err(|error| at.error(error)),
            Zoned::Declared(zone, size) if crate::room(size) < peers => {
                Err(at.error(format_args!("zone \"{}\" is too small", zone.name())))
            }
            Zoned::Declared(zone, _) => Ok(zone),
        }
    }
}

/// What is said around the groups.
#[derive(Debug, Clone)]
pub struct Around {
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub resolver_timeout: Duration,
}

/// What a module says of a group beside its servers and its method.
pub trait GroupExtras: Default {
    /// Clients are bound to servers: see [`Choice::bound`](crate::Choice::bound).
    fn binds(&self) -> bool {
        false
    }

    /// Something else than the group chooses servers, so the block needs none of its own.
    fn chooses(&self) -> bool {
        false
    }
}

/// Nothing.
impl GroupExtras for () {}

/// A group as far as it was read.
pub struct GroupDraft<T> {
    pub(super) host: Vec<u8>,
    pub(super) port: Option<u16>,
    pub(super) default_port: u16,
    pub(super) url: Url,
    pub(super) at: Spot,
    pub(super) block: Option<UpstreamBlock<T>>,
    pub(super) digest: Option<BlockDigest>,
    /// What stands in the block: its servers, and the rest.
    pub(super) text: [String; 2],
}

/// What stands in an `upstream { }`.
pub struct UpstreamBlock<T> {
    /// Its name.
    pub name: String,
    /// Its peers so far.
    pub peers: Vec<Arc<Peer>>,
    /// The method, where one is named.
    pub balance: Option<Box<dyn Balance>>,
    /// What it hashes.
    pub key: HashKey,
    /// `keepalive` and kin.
    pub keepalive: Limits,
    /// Servers with `resolve`.
    pub named: Vec<NamedServer>,
    /// `servers_file`, and the port of servers without one.
    pub file: Option<(PathBuf, u16)>,
    /// `zone`
    pub zone: Option<Zoned>,
    /// The method knows neither backups nor slow starts.
    pub plain: bool,
    /// What the module says of the group.
    pub extras: T,
    /// `queue`
    pub queue: Option<Queued>,
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub resolver_timeout: Option<Duration>,
}

/// All groups.
#[derive(Debug)]
pub struct Upstreams<T> {
    /// None: the place of a group that another configuration has.
    pub(super) list: Vec<Option<Arc<Upstream<T>>>>,
}

impl<T: GroupExtras> GroupDraft<T> {
    /// The group, when all of the configuration was read.
    pub(super) fn finish(
        self,
        around: &Around,
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
            let named = NamedServer::late(name.clone(), port, name.clone(), PeerOptions::default());
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
            taken_by: None,
            made_of,
            settings,
            peers,
            host: self.host,
            port,
        })
    }
}

impl<T: GroupExtras> UpstreamBlock<T> {
    /// Whether the block means the same wherever it stands: it names no variable, no host that is looked up, nothing outside.
    fn stands_alone(&self) -> bool {
        let is_address = |peer: &Arc<Peer>| {
            let name = &peer.name;
            name.starts_with("unix:") || name.parse::<std::net::SocketAddr>().is_ok()
        };
        let plain = matches!(self.key, HashKey::Nothing | HashKey::Address);
        let zone = !matches!(self.zone, Some(Zoned::Named(_)));
        let outside = self.extras.binds() || self.extras.chooses() || !self.named.is_empty();
        // A host that was looked up has the name of the host beside its address.
        let as_written = self.peers.iter().all(|peer| is_address(peer) && peer.server == peer.name);
        plain && zone && !outside && as_written
    }

    /// The zone that it declares.
    fn declares(&self) -> Option<(String, u64)> {
        match &self.zone {
            Some(Zoned::Declared(zone, size)) => Some((zone.name().to_owned(), *size)),
            _ => None,
        }
    }

    /// Whether the block says which servers it has, be it by a file or by what chooses them.
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
            extras: T::default(),
            queue: None,
            resolver: None,
            resolver_timeout: None,
        }
    }

    fn finish(
        self,
        around: &Around,
        zones: &Declarations,
        at: Spot,
        host: Vec<u8>,
        ([servers, settings], digest): ([String; 2], Option<BlockDigest>),
    ) -> Result<Upstream<T>, Error> {
        let taken_by =
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
            Some(Zoned::Declared(_, size)) => Some(crate::room(*size)),
            _ => None,
        };
        let plain = self.plain || self.extras.chooses();
        let file = self.file.map(|(path, port)| Arc::new(ServersFile { path, port, plain, room }));
        let zone = self.zone.map(|zone| zone.finish(zones, peers, at)).transpose()?;
        let zoned = zone.is_some();
        let balance = self.balance.unwrap_or_else(|| Box::new(RoundRobin));
        let mut group = Group::new(&name, self.peers.clone(), balance, seed(&host)).shared_in(zone);
        if self.extras.binds() {
            group = group.binding();
        }
        let group = Arc::new(group);
        let resolver = self.resolver.or_else(|| around.resolver.clone());
        let again = self.named.iter().any(NamedServer::is_looked_up_again);
        let complain = |text| Err(at.error(text));
        if again && resolver.is_none() {
            let text = "no resolver defined to resolve names at run time in upstream";
            return complain(format_args!("{text} \"{name}\""));
        }
        if again && !zoned {
            let text = "resolving names at run time requires upstream";
            return complain(format_args!("{text} \"{name}\" to be in shared memory"));
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
            taken_by,
            made_of,
            settings,
            peers: self.peers,
            host,
            port: 0,
        })
    }
}

/// Random methods of different groups must not march in step, and a test must be able to repeat itself.
fn seed(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325 ^ u64::from(std::process::id()), |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The servers as they are written, and the addresses that they stand for.
fn made_of(servers: &str, peers: &[Arc<Peer>]) -> String {
    peers.iter().fold(servers.to_owned(), |text, peer| text + " " + &peer.name)
}

impl<T> Upstream<T> {
    /// What is the same of a group in another configuration, whatever its servers are.
    fn kin(&self) -> (&[u8], u16, &str, bool) {
        (&self.host, self.port, &self.settings, self.dynamic.is_some())
    }
}

impl<T> Upstreams<T> {
    /// Groups that another configuration of this process has, too, are the same from now on: with what is known of their
    /// servers, and the connections that are kept to them. Of a group with other servers, those stay that both name.
    pub fn keep(&mut self, before: &Upstreams<T>) {
        // The first of two that are the same.
        let all = before.list.iter().rev().flatten().map(|old| &**old);
        let known: HashMap<_, _> = all.map(|old| (old.kin(), old)).collect();
        // What was taken from there is the same already.
        for own in self.list.iter_mut().flatten().filter_map(Arc::get_mut) {
            let Some(old) = known.get(&own.kin()).copied() else { continue };
            if old.made_of != own.made_of {
                // What names stand for is found out by a task of the old configuration.
                if own.dynamic.is_some() {
                    continue;
                }
                old.group.replace(own.peers.clone());
            }
            (own.group, own.shared) = (Arc::clone(&old.group), Arc::clone(&old.shared));
            // No task has it yet.
            if let Some(dynamic) = own.dynamic.as_mut().and_then(Arc::get_mut) {
                dynamic.group = Arc::clone(&old.group);
            }
        }
    }

    /// The groups whose servers stand in files.
    pub fn in_files(&self) -> impl Iterator<Item = (Arc<Group>, Arc<ServersFile>)> {
        let each = |u: &Upstream<T>| Some((Arc::clone(&u.group), Arc::clone(u.file.as_ref()?)));
        self.all().filter_map(each)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Upstream<T>> {
        self.list.iter().flatten().map(|group| &**group)
    }

    /// What stands at each place, in order.
    pub fn places(&self) -> impl Iterator<Item = Option<&Upstream<T>>> {
        self.list.iter().map(Option::as_deref)
    }

    /// A group by its place.
    pub fn get(&self, id: GroupId) -> Option<&Upstream<T>> {
        self.list.get(id.0 as usize).and_then(Option::as_deref)
    }

    /// The group for a host that is known only now, if the configuration has one.
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
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
