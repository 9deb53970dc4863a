//! Servers of a group whose names are resolved again at run time: `server ... resolve`. One loop of
//! each worker resolves them; all loops share the group.

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

/// A server whose name is resolved at run time.
#[derive(Debug, Clone)]
pub struct NamedServer {
    /// The host name.
    pub host: String,
    /// The port, if no SRV record gives one.
    pub port: u16,
    /// `service=`: SRV records of this service are asked for.
    pub service: Option<String>,
    /// The server as written in the configuration.
    pub server: String,
    /// The parameters of the `server` line.
    pub options: PeerOptions,
    /// The name was not found at the start. The system's resolver is asked until it is found, and
    /// then no more.
    late: bool,
}

impl NamedServer {
    /// `server NAME resolve`
    pub fn resolved_again(
        host: String,
        port: u16,
        service: Option<String>,
        server: String,
        options: PeerOptions,
    ) -> NamedServer {
        NamedServer { host, port, service, server, options, late: false }
    }

    /// A server with a name that was not found at the start.
    pub fn unresolved(
        host: String,
        port: u16,
        server: String,
        options: PeerOptions,
    ) -> NamedServer {
        NamedServer { host, port, service: None, server, options, late: true }
    }

    /// The name in log messages.
    fn title(&self) -> String {
        match &self.service {
            Some(service) => format!("service {service} of {}", self.host),
            None => self.host.clone(),
        }
    }

    /// Identifies the name within its group, in every configuration. The port is left out, since
    /// another configuration may have another one.
    fn key(&self) -> String {
        format!("{} {}", self.host, self.service.as_deref().unwrap_or_default())
    }

    /// The weight of a peer whose SRV record says `weight`. A configured weight other than 1 takes
    /// precedence.
    fn weight_of(&self, weight: u32) -> u32 {
        match self.options.weight {
            1 => weight,
            configured => configured,
        }
    }

    /// Whether the name is resolved again and again (`resolve`).
    pub fn is_resolved_again(&self) -> bool {
        !self.late
    }
}

/// The warning about a name that is not found at the start.
pub fn not_found(name: &str) -> String {
    format!("host not found in upstream \"{name}\", which has no server until it is")
}

/// The servers of a group whose names are resolved at run time.
#[derive(Debug)]
pub struct Dynamic {
    /// Servers with names.
    pub named: Vec<NamedServer>,
    /// Servers with fixed addresses.
    pub fixed: Vec<Arc<Peer>>,
    /// The resolver. Not needed for names that were not found at the start.
    pub resolver: Option<Arc<ResolverConf>>,
    /// `resolver_timeout`
    pub timeout: Duration,
    /// The group.
    pub group: Arc<Group>,
    /// The last known addresses, shared with other workers and the last configuration.
    pub recall: Option<Recall>,
}

impl Dynamic {
    /// For a group of one server whose name was not found at the start.
    pub fn late(named: NamedServer, group: Arc<Group>) -> Dynamic {
        let timeout = Duration::from_secs(30);
        let named = vec![named];
        Dynamic { named, fixed: Vec::new(), resolver: None, timeout, group, recall: None }
    }

    /// How long to wait after a failed lookup. That a name does not exist is an answer, which holds for a
    /// while. Name servers that cannot answer are left alone for as long as they are waited for.
    fn pause_after(&self, why: Unresolved) -> Duration {
        match &self.resolver {
            Some(resolver) if why == Unresolved::NO_SUCH_NAME => resolver.absent_for(),
            _ => self.timeout,
        }
    }
}

/// The present peers of each name.
type ResolvedPeers = Rc<RefCell<Vec<Vec<Arc<Peer>>>>>;

/// The loop that resolves names.
pub struct NameUpdater {
    /// The loop.
    pub handle: Handle,
    /// The loop's resolvers, with their caches.
    pub resolvers: Rc<Resolvers>,
    /// The log for failures.
    pub log: Arc<Log>,
    /// Whether the loop retires.
    pub retiring: Box<dyn Fn() -> bool>,
}

/// Starts to resolve the names of all groups, on one loop of the worker.
pub fn start<T>(upstreams: &Upstreams<T>, worker: &Rc<NameUpdater>) {
    for upstream in upstreams.all() {
        let Some(dynamic) = &upstream.dynamic else { continue };
        let known: ResolvedPeers = Rc::new(RefCell::new(vec![Vec::new(); dynamic.named.len()]));
        recall(dynamic, &known, worker.handle.now());
        for i in 0..dynamic.named.len() {
            worker.handle.spawn(keep_resolved(
                worker.clone(),
                Arc::clone(dynamic),
                known.clone(),
                i,
            ));
        }
    }
}

/// Uses the last known addresses until name servers answer.
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

/// Resolves one name, and again when its TTL has passed, until the loop retires.
async fn keep_resolved(
    worker: Rc<NameUpdater>,
    dynamic: Arc<Dynamic>,
    known: ResolvedPeers,
    i: usize,
) {
    let dynamic = &*dynamic;
    let Some(named) = dynamic.named.get(i) else { return };
    if named.late {
        return resolve_once(&worker, dynamic, &known, i, named).await;
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
                dynamic.pause_after(why)
            }
        };
        worker.pause(pause.max(SHORTEST_PAUSE)).await;
    }
}

impl NameUpdater {
    /// Waits, but ends soon after the loop retires, since the task holds a part of the site.
    async fn pause(&self, time: Duration) {
        let until = self.handle.now() + time;
        while self.handle.now() < until && !(self.retiring)() {
            self.handle.sleep_until(until.min(self.handle.now() + RETIRE_CHECK)).await;
        }
    }
}

/// How often a waiting task checks whether the loop retires.
const RETIRE_CHECK: Duration = Duration::from_secs(10);

/// Asks the system's resolver, as at the start, until the name is found.
async fn resolve_once(
    worker: &NameUpdater,
    dynamic: &Dynamic,
    known: &ResolvedPeers,
    i: usize,
    named: &NamedServer,
) {
    // The call may block for long, so it has a thread apart from those for files.
    let thread = FilePool::named("names", 1, 1);
    let mut pause = SHORTEST_PAUSE;
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
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The longest pause between two lookups of a name that was not found at the start.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The shortest pause between two lookups of a name.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

type LookupAnswer = Result<(Vec<Arc<Peer>>, Instant), Unresolved>;

async fn peers(worker: &NameUpdater, dynamic: &Dynamic, named: &NamedServer) -> LookupAnswer {
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
            Err(why) => {
                let (name, of) = (&service.target, named.title());
                let text =
                    format_args!("{name} could not be resolved ({why}) while resolving {of}");
                worker.log.write(Level::Error, None, text);
                // A name that does not exist says more than a name server that does not answer.
                failed = failed.filter(|_| why != Unresolved::NO_SUCH_NAME).or(Some(why));
            }
        }
    }
    match failed {
        Some(why) if all.is_empty() => Err(why),
        _ => Ok((serving(named, &all), until)),
    }
}

/// The peers of a service. Those of the first priority are primary, the others backups. A server
/// with `backup` uses only the first priority.
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

/// The name of the SRV record: `_http._tcp.HOST` for `http`. A service with a dot is taken as it
/// is.
fn service_name(service: &str, host: &str) -> String {
    match service.contains('.') {
        true => format!("{service}.{host}"),
        false => format!("_{service}._tcp.{host}"),
    }
}

/// A peer at an address. A peer of a service has the name and weight of the SRV record. It is a
/// backup if the record is not of the first priority.
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

/// Replaces the group's peers, if those of this name have changed. Returns whether they have.
fn publish(dynamic: &Dynamic, known: &ResolvedPeers, i: usize, mut peers: Vec<Arc<Peer>>) -> bool {
    peers.sort_by(|a, b| a.name.cmp(&b.name));
    let mut known = known.borrow_mut();
    let Some(place) = known.get_mut(i).filter(|old| **old != peers) else { return false };
    *place = peers;
    let all = dynamic.fixed.iter().chain(known.iter().flatten()).cloned().collect();
    dynamic.group.replace(all);
    true
}

/// Stores the peers of a name for other workers and later configurations.
fn remember(dynamic: &Dynamic, known: &ResolvedPeers, i: usize, now: Instant) {
    if let (Some(recall), Some(named)) = (&dynamic.recall, dynamic.named.get(i))
        && let Some(peers) = known.borrow().get(i)
    {
        recall.write(&named.key(), peers, now);
    }
}
