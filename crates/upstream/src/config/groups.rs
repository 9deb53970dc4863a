//! The groups of a configuration: those of `upstream { }`, and one for each host that is named without.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::balance::{Balance, RoundRobin};
use crate::{Group, Limits, Peer, PeerOptions, SharedPool};
use weir_conf::{Directive, Error, Spot, Word};
use weir_zone::{Declarations, Use, ZoneError, ZoneRef};

use super::dynamic::{self, Dynamic, NamedServer};
use super::recall::Recall;
use super::servers_file::ServersFile;
use super::url::{Host, Url};
use weir_resolver::ResolverConf as Resolver;
use weir_values::Template;

/// A group's place in the site's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupId(u32);

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
    /// How clients are bound to servers.
    pub sticky: Option<T>,
    /// A request that finds no server waits for one.
    pub queue: Option<Queued>,
    /// What it was made of, to tell whether a group of another configuration is the same.
    made_of: String,
    /// The same without its servers.
    settings: String,
    /// The servers with addresses that the configuration knows.
    peers: Vec<Arc<Peer>>,
    host: Vec<u8>,
    /// 0 for a block: its servers have their own.
    port: u16,
}

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
        let purpose = Use { tag: Self::TAG, values: 0, key: String::new() };
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

/// A group as far as it was read.
pub struct GroupDraft<T> {
    host: Vec<u8>,
    port: Option<u16>,
    default_port: u16,
    url: Url,
    at: Spot,
    block: Option<UpstreamBlock<T>>,
    /// What stands in the block: its servers, and the rest.
    text: [String; 2],
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
    /// `sticky`
    pub sticky: Option<T>,
    /// `queue`
    pub queue: Option<Queued>,
    /// `resolver`
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`
    pub resolver_timeout: Option<Duration>,
}

/// All groups while the configuration is read.
pub struct Drafts<T> {
    list: Vec<GroupDraft<T>>,
    /// Their places by name in lower case: a configuration may have thousands.
    places: HashMap<Vec<u8>, Vec<usize>>,
}

impl<T> Default for Drafts<T> {
    fn default() -> Self {
        Drafts { list: Vec::new(), places: HashMap::new() }
    }
}

/// All groups.
#[derive(Debug)]
pub struct Upstreams<T> {
    list: Vec<Upstream<T>>,
}

impl<T> Drafts<T> {
    /// The group that a directive such as `proxy_pass` names.
    pub fn refer(
        &mut self,
        d: &Directive,
        word: &Word,
        url: Url,
        default_port: u16,
    ) -> Result<GroupId, Error> {
        let name = String::from_utf8_lossy(&url.host).into_owned();
        for i in self.places(&url.host) {
            let Some(draft) = self.list.get(*i) else { continue };
            if let (Some(_), Some(port)) = (&draft.block, url.port) {
                let text = format!("upstream \"{name}\" may not have port {port}");
                return Err(d.error_at(word, text));
            }
            if draft.block.is_some() || draft.same_port(url.port, default_port) {
                return Ok(GroupId(*i as u32));
            }
        }
        self.push(GroupDraft {
            host: url.host.clone(),
            port: url.port,
            default_port,
            url,
            at: Spot::new(d, word),
            block: None,
            text: Default::default(),
        });
        Ok(GroupId(self.list.len() as u32 - 1))
    }

    /// An `upstream { }` was read.
    pub fn define(
        &mut self,
        d: &Directive,
        word: &Word,
        block: UpstreamBlock<T>,
    ) -> Result<(), Error> {
        let name = word.lossy();
        if let Some(draft) =
            self.places(&word.bytes).first().copied().and_then(|i| self.list.get_mut(i))
        {
            if draft.block.is_some() {
                return Err(d.error_at(word, format!("duplicate upstream \"{name}\"")));
            }
            if let Some(port) = draft.port {
                return Err(draft
                    .at
                    .error(format!("upstream \"{name}\" may not have port {port}")));
            }
            draft.block = Some(block);
            draft.text = text_of(d);
            return Ok(());
        }
        self.push(GroupDraft {
            host: word.bytes.clone(),
            port: None,
            default_port: 80,
            url: Url { host: word.bytes.clone(), port: None, address: None, uri: Vec::new() },
            at: Spot::new(d, word),
            block: Some(block),
            text: text_of(d),
        });
        Ok(())
    }

    /// Whether a block of this name was read.
    pub fn is_defined(&self, name: &[u8]) -> bool {
        let mut own = self.places(name).iter().filter_map(|i| self.list.get(*i));
        own.any(|draft| draft.block.is_some())
    }

    /// Where groups of this name are, in the order in which they came.
    fn places(&self, name: &[u8]) -> &[usize] {
        self.places.get(&name.to_ascii_lowercase()).map_or(&[], Vec::as_slice)
    }

    fn push(&mut self, draft: GroupDraft<T>) {
        let place = self.list.len();
        self.places.entry(draft.host.to_ascii_lowercase()).or_default().push(place);
        self.list.push(draft);
    }

    /// All groups; names that stand for no block are looked up now.
    pub fn finish(
        self,
        around: &Around,
        zones: &Declarations,
        warnings: &mut Vec<Error>,
    ) -> Result<Upstreams<T>, Error> {
        let built = self.list.into_iter().map(|draft| draft.finish(around, zones, warnings));
        let list = built.collect::<Result<_, _>>()?;
        Ok(Upstreams { list })
    }
}

impl<T> GroupDraft<T> {
    fn same_port(&self, port: Option<u16>, default_port: u16) -> bool {
        let mine = self.port.unwrap_or(self.default_port);
        mine == port.unwrap_or(default_port)
    }

    fn finish(
        self,
        around: &Around,
        zones: &Declarations,
        warnings: &mut Vec<Error>,
    ) -> Result<Upstream<T>, Error> {
        let name = String::from_utf8_lossy(&self.host).into_owned();
        let seed = seed(&self.host);
        if let Some(block) = self.block {
            return block.finish(around, zones, self.at, self.host, self.text);
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
            sticky: None,
            queue: None,
            made_of,
            settings,
            peers,
            host: self.host,
            port,
        })
    }
}

impl<T> UpstreamBlock<T> {
    /// Whether the block says which servers it has, be it by a file.
    pub fn has_servers(&self) -> bool {
        !self.peers.is_empty() || !self.named.is_empty() || self.file.is_some()
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
            sticky: None,
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
        [servers, settings]: [String; 2],
    ) -> Result<Upstream<T>, Error> {
        let name = self.name;
        let made_of = made_of(&servers, &self.peers);
        let usual = self.peers.iter().any(|p| !p.options.backup);
        if !usual && !self.named.iter().any(|n| !n.options.backup) && self.file.is_none() {
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
        let plain = self.plain;
        let file = self.file.map(|(path, port)| Arc::new(ServersFile { path, port, plain, room }));
        let zone = self.zone.map(|zone| zone.finish(zones, peers, at)).transpose()?;
        let zoned = zone.is_some();
        let balance = self.balance.unwrap_or_else(|| Box::new(RoundRobin));
        let mut group = Group::new(&name, self.peers.clone(), balance, seed(&host)).shared_in(zone);
        if self.sticky.is_some() {
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
        let (key, sticky, queue) = (self.key, self.sticky, self.queue);
        let shared = Arc::default();
        Ok(Upstream {
            group,
            keepalive,
            shared,
            key,
            dynamic,
            file,
            sticky,
            queue,
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

/// The words of a block, wherever they stand: its servers, and the rest.
fn text_of(d: &Directive) -> [String; 2] {
    let mut texts = <[String; 2]>::default();
    let [servers, settings] = &mut texts;
    for line in d.block() {
        let text = if line.name.is("server") { &mut *servers } else { &mut *settings };
        for word in std::iter::once(&line.name).chain(&line.args) {
            // With its length, so that no word can look like two.
            let word = word.lossy();
            let _ = write!(text, "{}:{word} ", word.len());
        }
        text.push(';');
    }
    texts
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
        let known: HashMap<_, _> = before.list.iter().rev().map(|old| (old.kin(), old)).collect();
        for own in &mut self.list {
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
        self.list.iter().filter_map(each)
    }

    /// All of them.
    pub fn all(&self) -> &[Upstream<T>] {
        &self.list
    }

    /// A group by its place.
    pub fn get(&self, id: GroupId) -> Option<&Upstream<T>> {
        self.list.get(id.0 as usize)
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
        self.list.iter().position(fits).map(|i| GroupId(i as u32))
    }
}

impl GroupId {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_found_by_its_name_in_any_case_and_a_server_by_its_port_as_well() {
        let mut drafts = Drafts::<()>::default();
        let d = Directive::new("upstream", ["App"]);
        let word = d.arg(0).unwrap();
        let define = |drafts: &mut Drafts<()>, name: &str| {
            let d = Directive::new("upstream", [name]);
            drafts.define(&d, d.arg(0).unwrap(), UpstreamBlock::new(name.to_owned())).is_ok()
        };
        let refer = |drafts: &mut Drafts<()>, host: &str, port: Option<u16>| {
            let url = Url { host: host.into(), port, address: None, uri: Vec::new() };
            drafts.refer(&d, word, url, 80).ok().map(GroupId::index)
        };
        assert!(define(&mut drafts, "App") && !define(&mut drafts, "aPP"));
        assert_eq!(refer(&mut drafts, "app", None), Some(0));
        assert_eq!(refer(&mut drafts, "APP", Some(80)), None);
        assert_eq!(refer(&mut drafts, "other", Some(80)), Some(1));
        assert_eq!(refer(&mut drafts, "OTHER", None), Some(1));
        assert_eq!(refer(&mut drafts, "other", Some(81)), Some(2));
        assert_eq!(refer(&mut drafts, "later", None), Some(3));
        // A block may stand below the line that names it, where that names no port.
        assert!(drafts.is_defined(b"APP") && !drafts.is_defined(b"later"));
        assert!(define(&mut drafts, "Later") && drafts.is_defined(b"later"));
        assert_eq!(refer(&mut drafts, "later", None), Some(3));
        assert!(!define(&mut drafts, "other"));
    }
}
