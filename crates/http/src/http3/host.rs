//! A loop's part of each `listen ... quic`: its endpoint, and the admission of connections.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weir_log::{Cause, Level, OncePerSecond};
use weir_metrics::Metric;
use weir_proto::http3::qpack::FieldMemo;
use weir_quic::{
    Accepts, Admission, Endpoint, EndpointSettings, Events, HostKey, NewConnection, Packet, Place,
};

use super::choose::{ConfigLoader, REJECTED, choose};
use super::link::{Beginning, Found, Link};
use crate::address::Address;
use crate::event_loop::LoopState;
use crate::site::Site;

/// The least max_idle_timeout. While a request is active, pings keep the connection of a live client: see [`Link::watch`].
const LEAST_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The most datagrams that one call of [`Hosts::take_first`] receives without a new connection.
const MOST_DATAGRAMS: usize = 32;

/// The host key of servers without `quic_host_key`. The master makes it before it forks workers, so that all share it. Reloads
/// keep it.
static OWN_KEY: OnceLock<HostKey> = OnceLock::new();

/// Makes the host key that all workers share. The master calls it before it forks them.
pub fn make_host_key() {
    if let Ok(key) = HostKey::random() {
        let _ = OWN_KEY.set(key);
    }
}

/// The host key, for the new program at a binary upgrade.
pub fn host_key() -> Option<[u8; 32]> {
    OWN_KEY.get().map(HostKey::bytes)
}

/// Takes the old program's host key at a binary upgrade, before [`make_host_key`].
pub fn take_host_key(bytes: [u8; 32]) {
    let _ = OWN_KEY.set(HostKey::from(bytes));
}

/// The other loops of the server.
pub trait OtherLoops {
    /// The number of all loops.
    fn loops(&self) -> usize;
    /// Passes a packet to the loop that has its connection. `bound` is the address of the receiving socket.
    fn pass(&self, bound: &Address, to: Place, packet: &Packet<'_>);
    /// The loop that accepts the connection whose client has chosen an initial connection ID with the hash `first`. It is the first
    /// loop that asked: the one at `place`, unless another loop asked before.
    fn owner(&self, first: u64, place: Place) -> Place;
}

/// The host key of a listening socket: `quic_host_key` of its default server, or the generated key.
///
/// # Errors
///
/// The system gives no randomness.
pub fn host_key_of(site: &Site, listen: usize) -> std::io::Result<HostKey> {
    let server = site.server(site.default_at(listen, None));
    let said = site.location(server.location).conf.core.http3.host_key.clone();
    let own = || OWN_KEY.get().cloned().map_or_else(HostKey::random, Ok);
    said.map_or_else(own, Ok)
}

fn unusable(event_loop: &LoopState, error: &std::io::Error) {
    let text = format_args!("a socket could not be used for QUIC {}", Cause(error));
    event_loop.site.main.core.error_log.write(Level::Alert, None, text);
}

/// All hosts of a loop.
pub struct Hosts {
    place: Place,
    all: RefCell<Vec<Rc<Host>>>,
    others: Rc<dyn OtherLoops>,
}

/// A loop's endpoint for a listening socket.
pub struct Host {
    listen: usize,
    endpoint: Rc<Endpoint>,
}

impl Hosts {
    /// The hosts of the loop at this place.
    pub fn new(place: Place, others: Rc<dyn OtherLoops>) -> Hosts {
        Hosts { place, all: RefCell::default(), others }
    }

    /// Adds a host that receives from the listening socket of this number. `most` is its limit of connections.
    pub fn receives(&self, fd: &Arc<OwnedFd>, listen: usize, most: usize) {
        let Some(event_loop) = LoopState::current() else { return };
        match self.open(&event_loop, fd, listen, most) {
            Ok(host) => self.all.borrow_mut().push(Rc::new(host)),
            Err(e) => unusable(&event_loop, &e),
        }
    }

    fn open(
        &self,
        event_loop: &LoopState,
        fd: &Arc<OwnedFd>,
        listen: usize,
        most: usize,
    ) -> std::io::Result<Host> {
        let site = event_loop.site;
        let server = site.server(site.default_at(listen, None));
        let conf = &site.location(server.location).conf.core;
        let host_key = host_key_of(site, listen)?;
        let settings = EndpointSettings {
            place: self.place,
            loops: self.others.loops(),
            host_key,
            idle_timeout: conf.keepalive_timeout.max(LEAST_IDLE_TIMEOUT),
            streams: conf.http3.max_concurrent_streams,
            stream_window: conf.http3.stream_buffer_size,
            gso: conf.http3.gso,
            congestion: conf.http3.congestion,
            connections: most,
        };
        let endpoint = Endpoint::new(&event_loop.handle, fd, settings)?;
        // Requests need a socket. Writes to this one fail, and reads return its end.
        let (closed, _) = std::os::unix::net::UnixStream::pair()?;
        let accepts = Acceptor {
            listen,
            retry: conf.http3.retry,
            closed: Arc::new(closed.into()),
            memo: Rc::default(),
            place: self.place,
            others: self.others.clone(),
            logged_full: OncePerSecond::default(),
        };
        endpoint.start(Rc::new(accepts));
        Ok(Host { listen, endpoint })
    }

    /// Lets the host of this number also take new connections from a socket that all loops share.
    pub fn shares(&self, fd: &Arc<OwnedFd>, listen: usize) {
        for host in self.all.borrow().iter().filter(|host| host.listen == listen) {
            if let Err(e) = host.endpoint.shares(fd)
                && let Some(event_loop) = LoopState::current()
            {
                unusable(&event_loop, &e);
            }
        }
    }

    /// Takes a connection from the shared socket of this number. False if the socket is empty.
    pub fn take_first(&self, listen: usize) -> bool {
        let host = self.all.borrow().iter().find(|host| host.listen == listen).cloned();
        let Some(host) = host else { return false };
        for _ in 0..MOST_DATAGRAMS {
            match host.endpoint.receive_first() {
                Ok(Some(true)) => return true,
                // The kernel reports an ICMP error for an earlier datagram.
                Ok(Some(false)) | Err(_) => {}
                Ok(None) => return false,
            }
        }
        true
    }

    /// Stops taking connections from the socket of this number. With `to_others`, other loops receive from it and pass packets on.
    /// Otherwise the host receives until its last connection has ended.
    pub fn leaves(&self, listen: usize, to_others: bool) {
        for host in self.all.borrow().iter().filter(|host| host.listen == listen) {
            if to_others {
                host.endpoint.leave_socket();
            } else if let Err(e) = host.endpoint.keep_socket()
                && let Some(event_loop) = LoopState::current()
            {
                unusable(&event_loop, &e);
            }
        }
    }

    /// Takes a packet that another loop has received for a connection of this one.
    pub fn deliver(&self, bound: &Address, packet: &Packet<'_>) {
        let Some(event_loop) = LoopState::current() else { return };
        let listens = event_loop.site.listens();
        let is_there =
            |host: &&Rc<Host>| listens.get(host.listen).is_some_and(|l| l.address == *bound);
        let host = self.all.borrow().iter().find(is_there).cloned();
        if let Some(host) = host {
            host.endpoint.deliver(packet);
        }
    }
}

/// Decides about the connection attempts of an endpoint.
struct Acceptor {
    listen: usize,
    retry: bool,
    closed: Arc<OwnedFd>,
    memo: Rc<RefCell<FieldMemo>>,
    place: Place,
    others: Rc<dyn OtherLoops>,
    /// Limits log lines about too many connections.
    logged_full: OncePerSecond,
}

/// Counts a connection attempt without an answer.
fn count_ignored() {
    if let Some(event_loop) = LoopState::current() {
        event_loop.metrics.add(Metric::QuicIgnored, 1);
    }
}

impl Accepts for Acceptor {
    fn admit(&self, new: &NewConnection) -> Admission {
        let Some(event_loop) = LoopState::current().filter(|event_loop| !event_loop.retiring())
        else {
            // This loop retires. Other loops receive the client's next datagrams, unless the server ends.
            count_ignored();
            return Admission::Ignore;
        };
        if (self.retry || new.crowded) && !new.validated {
            event_loop.metrics.add(Metric::QuicRetries, 1);
            return Admission::Retry;
        }
        let site = event_loop.site;
        let bound = &site.listens()[self.listen].address;
        let local = match (new.local, bound.port()) {
            (Some(ip), Some(port)) => Address::Inet(SocketAddr::new(ip, port)),
            _ => bound.clone(),
        };
        let (listen, found) = (self.listen, Found::default());
        let (closed, memo) = (self.closed.clone(), self.memo.clone());
        let from = Beginning {
            event_loop,
            listen,
            local: local.clone(),
            found: found.clone(),
            closed: closed.clone(),
            memo,
        };
        let begin = Box::new(|quic: &Rc<weir_quic::Connection>| -> Rc<dyn Events> {
            Link::new(quic.clone(), from)
        });
        if site.loads_for_quic {
            let client =
                ConfigLoader { peer: Address::Inet(new.peer), local, listen, closed, found };
            return Admission::AcceptLater(Box::new(|hello| Box::pin(client.config(hello))), begin);
        }
        let ip = local.ip();
        Admission::Accept(Box::new(move |hello| choose(listen, ip, hello, &found)), begin)
    }

    fn full(&self, connections: usize, make_room: bool) {
        if !make_room {
            count_ignored();
        }
        let Some(event_loop) = LoopState::current() else { return };
        if !self.logged_full.lets_through(event_loop.handle.now()) {
            return;
        }
        let text = "connections of QUIC are as many as worker_connections allow";
        let (level, then) = match make_room {
            true => (Level::Warn, ", the idle ones make room"),
            false => (Level::Alert, ""),
        };
        let text = format_args!("{connections} {text}{then}");
        event_loop.site.main.core.error_log.write(level, None, text);
    }

    fn refused(&self, peer: SocketAddr, reason: &str) {
        let Some(event_loop) = LoopState::current() else { return };
        event_loop.metrics.add(Metric::TlsFailed, 1);
        let (site, number) = (event_loop.site, event_loop.next_connection());
        let server = site.server(site.default_at(self.listen, None));
        let log = &site.location(server.location).conf.core.error_log;
        let Some(listen) = site.listens().get(self.listen) else { return };
        let (client, local) = (Address::Inet(peer), &listen.address);
        let text = match reason {
            REJECTED => reason.to_owned(),
            _ => format!("SSL_do_handshake() failed (SSL: {reason})"),
        };
        let client = client.host();
        let text = format_args!("{text} while SSL handshaking, client: {client}, server: {local}");
        log.write(Level::Info, Some(number), text);
    }

    fn owner(&self, first: u64) -> Option<Place> {
        Some(self.others.owner(first, self.place))
    }

    fn misplaced(&self, place: Place, packet: &Packet<'_>) {
        let Some(event_loop) = LoopState::current() else { return };
        event_loop.metrics.add(Metric::QuicForwarded, 1);
        let listens = event_loop.site.listens();
        if let Some(listen) = listens.get(self.listen) {
            self.others.pass(&listen.address, place, packet);
        }
    }
}
