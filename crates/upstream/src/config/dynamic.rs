//! Servers of a group with names that are looked up regularly while requests are served: `server
//! ... resolve`. One loop of each worker looks them up. All loops share the group.

use std::cell::RefCell;
use std::net::{IpAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::{FilePool, Handle, Rank};
use weir_log::{Level, Log};

use crate::{Group, Peer, PeerOptions};

use super::groups::Upstreams;
use super::recall::Recall;
use super::url::Host;
use weir_resolver::{ResolverConf, Resolvers, Service, Unresolved};

/// A server that is known by name.
#[derive(Debug, Clone)]
pub struct NamedServer {
    /// Its name.
    pub host: String,
    /// Its port, unless the service tells.
    pub port: u16,
    /// `service=`: its SRV records are asked for.
    pub service: Option<String>,
    /// The server as written.
    pub server: String,
    /// What else is said of it.
    pub options: PeerOptions,
    /// It was not found at the start: it is looked up as then, until it is found, and not again.
    late: bool,
}

impl NamedServer {
    /// `server NAME resolve`
    pub fn again(
        host: String,
        port: u16,
        service: Option<String>,
        server: String,
        options: PeerOptions,
    ) -> NamedServer {
        NamedServer { host, port, service, server, options, late: false }
    }

    /// A server with a name that was not found at the start.
    pub fn late(host: String, port: u16, server: String, options: PeerOptions) -> NamedServer {
        NamedServer { host, port, service: None, server, options, late: true }
    }

    /// What messages say of it.
    fn title(&self) -> String {
        match &self.service {
            Some(service) => format!("service {service} of {}", self.host),
            None => self.host.clone(),
        }
    }

    /// What tells it from the other names of its group, in whatever configuration; its port may be another one there.
    fn key(&self) -> String {
        format!("{} {}", self.host, self.service.as_deref().unwrap_or_default())
    }

    /// The share of a server of a service, which says `weight`: what the configuration says comes first.
    fn weight_of(&self, weight: u32) -> u32 {
        match self.options.weight {
            1 => weight,
            configured => configured,
        }
    }

    /// Its name is asked for again and again.
    pub fn is_looked_up_again(&self) -> bool {
        !self.late
    }
}

/// What the start says of a name that is not found.
pub fn not_found(name: &str) -> String {
    format!("host not found in upstream \"{name}\", which has no server until it is")
}

/// The servers of a group that are looked up.
#[derive(Debug)]
pub struct Dynamic {
    /// Servers with names to look up.
    pub named: Vec<NamedServer>,
    /// Servers with fixed addresses.
    pub fixed: Vec<Arc<Peer>>,
    /// The resolver. Names that were not found at the start need none.
    pub resolver: Option<Arc<ResolverConf>>,
    /// How long an answer is waited for.
    pub timeout: Duration,
    /// The group.
    pub group: Arc<Group>,
    /// What the names stood for, as other workers and the last configuration know it.
    pub recall: Option<Recall>,
}

impl Dynamic {
    /// A group of one server, which was not found at the start.
    pub fn late(named: NamedServer, group: Arc<Group>) -> Dynamic {
        let timeout = Duration::from_secs(30);
        let named = vec![named];
        Dynamic { named, fixed: Vec::new(), resolver: None, timeout, group, recall: None }
    }
}

/// The peers that each name stands for now.
type ResolvedPeers = Rc<RefCell<Vec<Vec<Arc<Peer>>>>>;

/// Looks names up.
pub struct Looker {
    /// The loop.
    pub handle: Handle,
    /// What name servers have told.
    pub resolvers: Rc<Resolvers>,
    /// The log that hears of failures.
    pub log: Arc<Log>,
    /// The loop takes no more requests.
    pub retiring: Box<dyn Fn() -> bool>,
}

/// Starts to look, on one loop of the worker.
pub fn start<T>(upstreams: &Upstreams<T>, worker: &Rc<Looker>) {
    for upstream in upstreams.all() {
        let Some(dynamic) = &upstream.dynamic else { continue };
        let known: ResolvedPeers = Rc::new(RefCell::new(vec![Vec::new(); dynamic.named.len()]));
        recall(dynamic, &known, worker.handle.now());
        for i in 0..dynamic.named.len() {
            worker.handle.spawn(look(worker.clone(), Arc::clone(dynamic), known.clone(), i));
        }
    }
}

/// Until name servers answer, names stand for what they stood for.
fn recall(dynamic: &Dynamic, known: &ResolvedPeers, now: Instant) {
    let Some(recall) = &dynamic.recall else { return };
    for (i, named) in dynamic.named.iter().enumerate() {
        let peers = recall.read(&named.key(), now).into_iter().map(|known| {
            let mut options = named.options.clone();
            let mut port = named.port;
            let mut server = named.server.clone();
            if named.service.is_some() {
                (server, port) = (known.server, known.address.port());
                options.weight = named.weight_of(known.weight);
                options.backup |= known.backup;
            }
            let endpoint = Host::Ip(known.address.ip()).endpoint(port);
            Arc::new(Peer::new(endpoint, server, options))
        });
        publish(dynamic, known, i, peers.collect());
    }
}

/// Looks one name up, and again when the answer's time is over, until the worker retires.
async fn look(worker: Rc<Looker>, dynamic: Arc<Dynamic>, known: ResolvedPeers, i: usize) {
    let dynamic = &*dynamic;
    let Some(named) = dynamic.named.get(i) else { return };
    if named.late {
        return look_once(&worker, dynamic, &known, i, named).await;
    }
    while !(worker.retiring)() {
        let now = worker.handle.now();
        let pause = match peers(&worker, dynamic, named).await {
            Ok((peers, until)) => {
                if publish(dynamic, &known, i, peers) {
                    remember(dynamic, &known, i, now);
                }
                until.saturating_duration_since(now)
            }
            Err(why) => {
                let text = format_args!("{} could not be resolved ({why})", named.title());
                worker.log.write(Level::Error, None, text);
                if why == Unresolved::NO_SUCH_NAME && publish(dynamic, &known, i, Vec::new()) {
                    remember(dynamic, &known, i, now);
                }
                dynamic.timeout
            }
        };
        worker.pause(pause.max(LEAST)).await;
    }
}

impl Looker {
    /// Waits, but not for much longer than the site is in use: the task holds a part of it.
    async fn pause(&self, time: Duration) {
        let until = self.handle.now() + time;
        while self.handle.now() < until && !(self.retiring)() {
            self.handle.sleep_until(until.min(self.handle.now() + SLICE)).await;
        }
    }
}

/// So often a task that waits looks whether it is still needed.
const SLICE: Duration = Duration::from_secs(10);

/// Asks the system, as the start has done, until the name is found. It may wait, so not on the loop.
async fn look_once(
    worker: &Looker,
    dynamic: &Dynamic,
    known: &ResolvedPeers,
    i: usize,
    named: &NamedServer,
) {
    // It may wait for long, and so not on a thread that files need.
    let thread = FilePool::named("names", 1, 1);
    let mut pause = LEAST;
    while !(worker.retiring)() {
        let name = (named.host.clone(), named.port);
        let ask = move || (name.0.as_str(), name.1).to_socket_addrs();
        let found = worker.handle.files().run_in(&thread, Rank::Read, ask);
        if let Ok(Ok(found)) = found.await {
            let mut peers: Vec<_> =
                found.map(|to| peer(named, to.ip(), named.port, None)).collect();
            peers.dedup();
            if !peers.is_empty() {
                publish(dynamic, known, i, peers);
                return;
            }
        }
        worker.handle.sleep(pause).await;
        pause = (pause * 2).min(MOST);
    }
}

/// Nor is one that was not found at the start asked for less often.
const MOST: Duration = Duration::from_secs(30);
/// No name is asked for more often.
const LEAST: Duration = Duration::from_secs(1);

type LookupAnswer = Result<(Vec<Arc<Peer>>, Instant), Unresolved>;

async fn peers(worker: &Looker, dynamic: &Dynamic, named: &NamedServer) -> LookupAnswer {
    let resolver = dynamic.resolver.as_ref().ok_or(Unresolved::TimedOut)?;
    let resolver = worker.resolvers.of(resolver);
    let (handle, timeout) = (&worker.handle, dynamic.timeout);
    let Some(service) = &named.service else {
        let found = resolver.resolve(handle, &named.host, timeout).await?;
        let peers = found.addresses.iter().map(|ip| peer(named, *ip, named.port, None)).collect();
        return Ok((peers, found.until));
    };
    let services = resolver.services(handle, &service_name(service, &named.host), timeout).await?;
    let (mut all, mut until, mut failed) = (Vec::new(), services.until, None);
    for service in &services.list {
        match resolver.resolve(handle, &service.target, timeout).await {
            Ok(found) => {
                until = until.min(found.until);
                all.extend(found.addresses.iter().map(|ip| (service, *ip)));
            }
            Err(why) => failed = Some(why),
        }
    }
    match failed {
        Some(why) if all.is_empty() => Err(why),
        _ => Ok((serving(named, &all), until)),
    }
}

/// The peers of a service. Later priorities are backups; a service that is a backup itself has no others.
fn serving(named: &NamedServer, found: &[(&Service, IpAddr)]) -> Vec<Arc<Peer>> {
    let first = found.iter().map(|(service, _)| service.priority).min();
    let mut all = Vec::new();
    for (service, ip) in found {
        let is_later = Some(service.priority) != first;
        if !(is_later && named.options.backup) {
            all.push(peer(named, *ip, service.port, Some((service, is_later))));
        }
    }
    all
}

/// `http` is `_http._tcp.HOST`; a name with a dot is taken as it is.
fn service_name(service: &str, host: &str) -> String {
    match service.contains('.') {
        true => format!("{service}.{host}"),
        false => format!("_{service}._tcp.{host}"),
    }
}

/// A peer at an address. One of a service has the service's name and weight, and is a backup if others come first.
fn peer(
    named: &NamedServer,
    ip: IpAddr,
    port: u16,
    service: Option<(&Service, bool)>,
) -> Arc<Peer> {
    let (mut options, mut server) = (named.options.clone(), &named.server);
    if let Some((service, later)) = service {
        options.weight = named.weight_of(service.weight.max(1).into());
        options.backup |= later;
        server = &service.target;
    }
    Arc::new(Peer::new(Host::Ip(ip).endpoint(port), server.clone(), options))
}

/// The group gets a new list, if something has changed.
fn publish(dynamic: &Dynamic, known: &ResolvedPeers, i: usize, mut peers: Vec<Arc<Peer>>) -> bool {
    peers.sort_by(|a, b| a.name.cmp(&b.name));
    let mut known = known.borrow_mut();
    let Some(place) = known.get_mut(i).filter(|old| **old != peers) else { return false };
    *place = peers;
    let all = dynamic.fixed.iter().chain(known.iter().flatten()).cloned().collect();
    dynamic.group.replace(all);
    true
}

/// What was published is for those to come, too.
fn remember(dynamic: &Dynamic, known: &ResolvedPeers, i: usize, now: Instant) {
    if let (Some(recall), Some(named)) = (&dynamic.recall, dynamic.named.get(i))
        && let Some(peers) = known.borrow().get(i)
    {
        recall.write(&named.key(), peers, now);
    }
}
