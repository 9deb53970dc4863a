//! What the requests of a connection share, and what is left of it between them.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use weir_engine::{Handle, Stream};
use weir_log::{Level, Log};
use weir_proto::proxy_protocol;
use weir_ssl::server::Shown;
use weir_sys::sockopt::peer_user;
use weir_sys::tcpinfo::{TcpInfo, tcp_info};
use weir_tls::{Negotiated, Secured, Wire};
use weir_values::log::Writers;

use crate::address::Address;
use crate::names::ServerId;
use crate::site::SiteNumber;
use weir_ssl::Handed;

/// What the log says of a client that took too long.
pub const TIMED_OUT: &str = "client timed out (110: Connection timed out)";
/// What the log says of a client that left.
pub const LEFT: &str = "client prematurely closed connection";
/// At the most this much is thrown away of what a client still sends when its answer is done.
const LINGER_READ: usize = 4096;

/// What is known of a connection to a port that wants TLS.
#[derive(Debug)]
pub struct Secure {
    /// The server that answers: the one that the client named, or the default.
    pub server: ServerId,
    /// Which site that is a server of.
    pub site: SiteNumber,
    /// `$ssl_server_name`, where the client named a server of this site.
    pub chosen: bool,
    /// The client speaks no TLS.
    pub plain: bool,
    /// What the handshake has shown.
    pub shown: Shown,
    /// What a module keeps of the connection in its loop.
    kept: KeptHere,
}

impl Secure {
    /// A connection to the default server of its address. No name has chosen another one yet.
    pub fn new(server: ServerId, site: SiteNumber, shown: Shown) -> Secure {
        Secure { server, site, chosen: false, plain: false, shown, kept: KeptHere::default() }
    }
}

/// What a module keeps of a connection in its loop until this is dropped. Such a connection stays with the loop.
#[derive(Default)]
struct KeptHere(OnceLock<Box<dyn Send + Sync>>);

impl fmt::Debug for KeptHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptHere")
    }
}

/// What is known of a connection, apart from its transport.
#[derive(Clone)]
pub struct Facts {
    /// What is known of its TLS; there too where a client speaks none on a port that wants it.
    pub tls: Option<Arc<Secure>>,
    /// It was another listener's, which handed it over.
    pub before: Option<Arc<Before>>,
    /// The address at the other end.
    pub peer: Address,
    /// Which listening socket it came from.
    pub listen: usize,
    /// `$connection`
    pub number: u64,
    /// Requests that have begun.
    pub requests: Cell<u64>,
    /// When it was accepted: `$connection_time`.
    pub started: Instant,
    /// `tcp_nodelay` was asked for.
    nodelay: Cell<bool>,
    /// What a balancer in front said of the client.
    pub proxy: OnceCell<Arc<proxy_protocol::ProxyHeader>>,
    /// Where its lines of access logs go, if another loop had its first requests.
    lines: Option<Writers>,
}

impl Facts {
    /// Something of it lies in its loop: no other loop may have it.
    pub fn stays(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.kept.0.get().is_some())
    }

    /// From now on it stays with its loop, and drops this at its end. False without TLS.
    pub fn keep(&self, make: impl FnOnce() -> Box<dyn Send + Sync>) -> bool {
        let Some(tls) = &self.tls else { return false };
        tls.kept.0.get_or_init(make);
        true
    }
}

/// What the requests of a connection share: its facts, which anything may read, and its transport, which belongs to
/// carriers and tunnels ([`Conn::wire`]).
pub struct Conn {
    /// A connection of QUIC has one that nothing can be said on: its streams have another way.
    wire: Wire,
    quic: Option<Rc<weir_quic::Connection>>,
    facts: Facts,
    local: OnceCell<Address>,
}

impl Deref for Conn {
    type Target = Facts;

    #[inline]
    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl DerefMut for Conn {
    #[inline]
    fn deref_mut(&mut self) -> &mut Facts {
        &mut self.facts
    }
}

/// What is known of a connection from the listener that handed it over.
pub struct Before {
    /// What a handshake there has shown.
    pub shown: Option<Box<Shown>>,
    /// The address that it was handed to.
    local: Address,
}

/// A connection between two requests, apart from its socket: small, and free to move to another thread.
pub struct Resting {
    secured: Option<Secured>,
    facts: Facts,
}

impl Resting {
    /// A new connection.
    pub fn new(peer: Address, listen: usize, number: u64, started: Instant) -> Resting {
        let facts = Facts {
            tls: None,
            before: None,
            peer,
            listen,
            number,
            requests: Cell::new(0),
            started,
            nodelay: Cell::new(false),
            proxy: OnceCell::new(),
            lines: None,
        };
        Resting { secured: None, facts }
    }

    /// One that another listener has handed over: its socket, and what was read of it.
    pub fn handed(
        handed: Handed,
        listen: usize,
        number: u64,
        now: Instant,
    ) -> (Stream, Resting, Vec<u8>) {
        let Handed { wire, shown, peer, local, proxy, bytes, .. } = handed;
        let (stream, secured) = wire.part();
        let mut resting = Resting { secured, ..Resting::new(peer, listen, number, now) };
        resting.facts.before = Some(Arc::new(Before { shown, local }));
        if let Some(header) = proxy {
            resting.facts.proxy = OnceCell::from(Arc::from(header));
        }
        (stream, resting, bytes)
    }

    /// It comes from a loop whose lines of access logs go there: its own go on behind what they are.
    pub fn comes_from(&mut self, lines: Writers) {
        let has_some = |own: &Writers| own.is_beside(&lines);
        if self.facts.requests.get() > 0 && !self.facts.lines.as_ref().is_some_and(has_some) {
            self.facts.lines = Some(lines);
        }
    }

    /// Whether no other loop may have it.
    pub fn stays(&self) -> bool {
        self.facts.stays()
    }

    /// Puts the connection on its socket, without a deadline.
    pub fn on(self, stream: Stream) -> Conn {
        let wire = Wire::join(stream, self.secured);
        wire.set_deadline(None);
        Conn { wire, quic: None, facts: self.facts, local: OnceCell::new() }
    }

    /// Makes it a connection of QUIC, from this address of this host. `closed` is a socket that nothing can be said on.
    pub fn over_quic(
        self,
        closed: Stream,
        quic: Rc<weir_quic::Connection>,
        local: Address,
    ) -> Conn {
        Conn { quic: Some(quic), ..self.before_quic(closed, local) }
    }

    /// The same before there is a connection of QUIC.
    pub fn before_quic(self, closed: Stream, local: Address) -> Conn {
        Conn { local: OnceCell::from(local), ..self.on(closed) }
    }
}

impl Conn {
    /// Where its lines of access logs go, if another loop had its first requests.
    pub fn lines(&self) -> Option<&Writers> {
        self.lines.as_ref()
    }

    /// The socket, with or without TLS.
    #[inline]
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Its bytes are secured by TLS.
    #[inline]
    pub fn is_tls(&self) -> bool {
        self.quic.is_some() || self.wire.is_tls()
    }

    /// Looks at the state of its TLS, if it has any.
    #[inline]
    pub fn with_tls<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T> {
        match &self.quic {
            Some(quic) => quic.tls(look),
            None => self.wire.tls(look),
        }
    }

    /// The connection of QUIC that it is.
    pub fn quic(&self) -> Option<&Rc<weir_quic::Connection>> {
        self.quic.as_ref()
    }

    /// What the kernel knows of the connection's TCP.
    pub fn tcp_info(&self) -> io::Result<TcpInfo> {
        tcp_info(self.wire.socket().as_fd())
    }

    /// Takes socket and connection apart, to be parked.
    pub fn part(self) -> (Stream, Resting) {
        let (stream, secured) = self.wire.part();
        (stream, Resting { secured, facts: self.facts })
    }

    /// What the connection is for another loop, if it may move and nothing is pending in its TLS, which is lent: until it comes back
    /// ([`Conn::take_back`]) nothing can be sent or received here.
    pub fn lend(&self) -> Option<Resting> {
        if self.stays() {
            return None;
        }
        Some(Resting { secured: self.wire.lend()?, facts: self.facts.clone() })
    }

    /// No other loop has taken it.
    pub fn take_back(&self, lent: Resting) {
        self.wire.take_back(lent.secured);
    }

    /// The same connection, with TLS from now on.
    pub fn secured(self, secured: Secured) -> Conn {
        let (stream, _) = self.wire.part();
        Conn { wire: Wire::join(stream, Some(secured)), ..self }
    }

    /// Writes to a server's log, with what nginx adds while there is no request: client and address.
    pub fn log(&self, log: &Log, level: Level, text: fmt::Arguments<'_>) {
        if log.enabled(level) {
            let (client, local) = (self.peer.host(), self.local());
            let text = format_args!("{text}, client: {client}, server: {local}");
            log.write(level, Some(self.number), text);
        }
    }

    /// The client took too long. A reset (`reset_timedout_connection`) saves what the kernel would keep for it.
    pub fn timed_out(&self, reset: bool) {
        if reset {
            let _ = self.wire.socket().reset_on_close();
        }
    }

    /// From now on small pieces leave at once, if `tcp_nodelay` wants it: another answer may follow before the last was
    /// acknowledged.
    pub fn set_nodelay(&self, wanted: bool) {
        if wanted && !self.nodelay.replace(true) {
            // Unix sockets have no such thing, and no delay.
            let _ = self.wire.socket().nodelay(true);
        }
    }

    /// Says that nothing more will come, and throws away what the client still sends: for `time` at most, and while no
    /// pause is longer than `timeout`. A socket that is closed with unread bytes in it is reset, and what is on its way
    /// to the client may be lost with it.
    #[expect(clippy::disallowed_methods, reason = "what is thrown away is bounded")]
    pub async fn linger(&self, handle: &Handle, time: Duration, timeout: Duration) {
        if self.wire.shutdown_write().is_err() {
            return;
        }
        let end = handle.now() + time;
        loop {
            self.wire.set_deadline(Some(end.min(handle.now() + timeout)));
            // Many connections may wait here at the end of a worker: none of them holds room meanwhile.
            if self.wire.readable().await.is_err() {
                return;
            }
            let (result, buf) = self.wire.recv(handle.take_buf(LINGER_READ)).await;
            handle.give_buf(buf);
            if !matches!(result, Ok(n) if n > 0) || handle.now() >= end {
                return;
            }
        }
    }

    /// The address that the client connected to.
    pub fn local(&self) -> &Address {
        if let Some(before) = &self.before {
            return &before.local;
        }
        self.local.get_or_init(|| Address::local_of(self.wire.socket()).unwrap_or(Address::Unknown))
    }

    /// The user of the process at the other end of a unix socket. None of another socket, also where a server of `stream` has
    /// passed it on to the address of a unix socket.
    pub fn peer_user(&self) -> Option<u32> {
        let is_unix = matches!(self.local(), Address::Unix(_));
        let user = is_unix.then(|| peer_user(self.wire.socket().as_fd()).ok()).flatten();
        user.filter(|user| *user != u32::MAX)
    }
}
