//! What a loop has of each `listen ... quic`.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use weir_log::{Cause, Level};
use weir_metrics::Metric;
use weir_proto::http3::qpack::FieldMemo;
use weir_quic::{
    Accepts, Admission, Endpoint, EndpointSettings, Events, HostKey, NewConnection, Packet, Place,
};

use super::choose::{Asking, REJECTED, choose};
use super::link::{Beginning, Found, Link};
use crate::address::Address;
use crate::event_loop::LoopState;
use crate::site::Site;

/// A client that lives and is silent for less than this keeps its connection, if a request is under way.
const SILENCE: Duration = Duration::from_secs(30);

/// So many datagrams that begin no connection are taken at once: more may wait.
const WITHOUT_CONNECTION: usize = 32;

/// The log says once in so long that there are too many connections.
const SAY_AGAIN: Duration = Duration::from_secs(1);

/// The key of servers without `quic_host_key`: made before workers begin, so that all have it, and kept over reloads.
static OWN_KEY: OnceLock<HostKey> = OnceLock::new();

/// Makes the key that all workers are to share. For the process that they are made of.
pub fn make_host_key() {
    if let Ok(key) = HostKey::random() {
        let _ = OWN_KEY.set(key);
    }
}

/// That key, for a program that takes over from this one.
pub fn host_key() -> Option<[u8; 32]> {
    OWN_KEY.get().map(HostKey::bytes)
}

/// Takes the key of the program that this one takes over from, before one is made.
pub fn take_host_key(bytes: [u8; 32]) {
    let _ = OWN_KEY.set(HostKey::from(bytes));
}

/// Another loop of the server, as one knows it.
pub trait OtherLoops {
    /// How many loops there are in all.
    fn loops(&self) -> usize;
    /// Takes a packet to the loop that has its connection.
    fn pass(&self, bound: &Address, to: Place, packet: &Packet<'_>);
    /// Which loop has the connection that a client has begun under an id of this number: the one that was asked first, which is the
    /// loop of `place` if none was.
    fn owner(&self, first: u64, place: Place) -> Place;
}

/// The secret of connection ids for a listening socket: that of its default server, or the one that the server has made.
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

/// All of a loop.
pub struct Hosts {
    place: Place,
    all: RefCell<Vec<Rc<Host>>>,
    others: Rc<dyn OtherLoops>,
}

/// One listening socket's.
pub struct Host {
    listen: usize,
    endpoint: Rc<Endpoint>,
}

impl Hosts {
    /// Those of a loop at this place.
    pub fn new(place: Place, others: Rc<dyn OtherLoops>) -> Hosts {
        Hosts { place, all: RefCell::default(), others }
    }

    /// Receives from the socket of this number, for at most so many connections.
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
            idle_timeout: conf.keepalive_timeout.max(SILENCE),
            streams: conf.http3.max_concurrent_streams,
            stream_window: conf.http3.stream_buffer_size,
            gso: conf.http3.gso,
            congestion: conf.http3.congestion,
            connections: most,
        };
        let endpoint = Endpoint::new(&event_loop.handle, fd, settings)?;
        // Nothing can be said on it, and what would be read of it is at its end.
        let (closed, _) = std::os::unix::net::UnixStream::pair()?;
        let accepts = Acceptor {
            listen,
            retry: conf.http3.retry,
            closed: Arc::new(closed.into()),
            memo: Rc::default(),
            place: self.place,
            others: self.others.clone(),
            said_full: Cell::new(None),
        };
        endpoint.start(Rc::new(accepts));
        Ok(Host { listen, endpoint })
    }

    /// The host of the socket of this number takes new connections from this one, too, which all loops share.
    pub fn shares(&self, fd: &Arc<OwnedFd>, listen: usize) {
        for host in self.all.borrow().iter().filter(|host| host.listen == listen) {
            if let Err(e) = host.endpoint.shares(fd)
                && let Some(event_loop) = LoopState::current()
            {
                unusable(&event_loop, &e);
            }
        }
    }

    /// Takes a connection from the socket that all loops share for this number; false if none waits.
    pub fn take_first(&self, listen: usize) -> bool {
        let host = self.all.borrow().iter().find(|host| host.listen == listen).cloned();
        let Some(host) = host else { return false };
        for _ in 0..WITHOUT_CONNECTION {
            match host.endpoint.receive_first() {
                Ok(Some(true)) => return true,
                // An error is an earlier datagram's.
                Ok(Some(false)) | Err(_) => {}
                Ok(None) => return false,
            }
        }
        true
    }

    /// Begins no connection from the socket of this number any more. If others receive from it, connections go on with what is
    /// forwarded; otherwise their datagrams are received until the last one has ended.
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

    /// A packet that another loop has received for a connection of this one.
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

/// Takes new connections.
struct Acceptor {
    listen: usize,
    retry: bool,
    closed: Arc<OwnedFd>,
    memo: Rc<RefCell<FieldMemo>>,
    place: Place,
    others: Rc<dyn OtherLoops>,
    /// When the log said that there are too many connections.
    said_full: Cell<Option<Instant>>,
}

/// A client got no answer.
fn count_ignored() {
    if let Some(event_loop) = LoopState::current() {
        event_loop.metrics.add(Metric::QuicIgnored, 1);
    }
}

impl Accepts for Acceptor {
    fn admit(&self, new: &NewConnection) -> Admission {
        let Some(event_loop) = LoopState::current().filter(|event_loop| !event_loop.retiring())
        else {
            // Others serve the address, or nobody will.
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
            let client = Asking { peer: Address::Inet(new.peer), local, listen, closed, found };
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
        let now = event_loop.handle.now();
        if self.said_full.get().is_some_and(|at| now < at + SAY_AGAIN) {
            return;
        }
        self.said_full.set(Some(now));
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
