//! The connection's state: shared by its requests, and kept between them.

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
use crate::site::{Site, SiteNumber};
use weir_ssl::HandedConnection;

/// The log message for a client that exceeded a timeout.
pub const TIMED_OUT: &str = "client timed out (110: Connection timed out)";
/// The log message for a client that closed its connection early.
pub const LEFT: &str = "client prematurely closed connection";
/// The most bytes that one read discards while a connection lingers.
const LINGER_READ: usize = 4096;

/// The state of a connection on a port with TLS.
#[derive(Debug)]
pub struct Secure {
    /// The server that the client named in its handshake, or the default one.
    pub server: ServerId,
    /// The site that the server belongs to.
    pub site: SiteNumber,
    /// `$ssl_server_name`, where the client named a server of this site.
    pub chosen: bool,
    /// The client does not speak TLS.
    pub plain: bool,
    /// The facts of the handshake.
    pub shown: Shown,
    /// State of a module for the connection, bound to its loop.
    kept: KeptHere,
}

impl Secure {
    /// The state before the client has named a server: `server` is the default one of the address.
    pub fn new(server: ServerId, site: SiteNumber, shown: Shown) -> Secure {
        Secure { server, site, chosen: false, plain: false, shown, kept: KeptHere::default() }
    }
}

/// State of a module for a connection, which is dropped with it. The connection cannot move to another loop.
#[derive(Default)]
struct KeptHere(OnceLock<Box<dyn Send + Sync>>);

impl fmt::Debug for KeptHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeptHere")
    }
}

/// Facts of a connection, apart from its transport.
#[derive(Clone)]
pub struct Facts {
    /// The state of TLS. It exists on each port with TLS, even if the client speaks none.
    pub tls: Option<Arc<Secure>>,
    /// The listener that handed the connection over, if one did.
    pub before: Option<Arc<Before>>,
    /// The client's address.
    pub peer: Address,
    /// The number of the listening socket that it came from.
    pub listen: usize,
    /// `$connection`
    pub number: u64,
    /// Requests that have begun.
    pub requests: Cell<u64>,
    /// When it was accepted: `$connection_time`.
    pub started: Instant,
    /// `tcp_nodelay` was asked for.
    nodelay: Cell<bool>,
    /// The header of the PROXY protocol.
    pub proxy: OnceCell<Arc<proxy_protocol::ProxyHeader>>,
    /// The writers of its access log lines, if another loop served its first requests.
    lines: Option<Writers>,
}

impl Facts {
    /// Whether a module has state for it in this loop, so that it cannot move to another one.
    pub fn stays(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.kept.0.get().is_some())
    }

    /// Adds state of a module, which binds the connection to its loop. Returns false without TLS.
    pub fn keep(&self, make: impl FnOnce() -> Box<dyn Send + Sync>) -> bool {
        let Some(tls) = &self.tls else { return false };
        tls.kept.0.get_or_init(make);
        true
    }
}

/// A connection, shared by its requests: its facts, which all code may read, and its transport, which only carriers and
/// tunnels use ([`Conn::wire`]).
pub struct Conn {
    /// The transport. That of a QUIC connection is a closed socket: its streams send by another way.
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

/// Facts of a connection that another listener has handed over.
pub struct Before {
    /// The facts of a handshake with that listener.
    pub shown: Option<Box<Shown>>,
    /// The address that it was handed to.
    local: Address,
}

/// A connection between two requests, without its socket. It is small and may move to another thread.
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

    /// Takes a connection that another listener has handed over. Returns its socket and the bytes that were read from it.
    pub fn handed(
        handed: HandedConnection,
        listen: usize,
        number: u64,
        now: Instant,
    ) -> (Stream, Resting, Vec<u8>) {
        let HandedConnection { wire, shown, peer, local, proxy, bytes, .. } = handed;
        let (stream, secured) = wire.part();
        let mut resting = Resting { secured, ..Resting::new(peer, listen, number, now) };
        resting.facts.before = Some(Arc::new(Before { shown, local }));
        if let Some(header) = proxy {
            resting.facts.proxy = OnceCell::from(Arc::from(header));
        }
        (stream, resting, bytes)
    }

    /// Notes the writers of the loop that it comes from. Its later access log lines are written behind those.
    pub fn comes_from(&mut self, lines: Writers) {
        let has_some = |own: &Writers| own.is_beside(&lines);
        if self.facts.requests.get() > 0 && !self.facts.lines.as_ref().is_some_and(has_some) {
            self.facts.lines = Some(lines);
        }
    }

    /// Whether it cannot move to another loop.
    pub fn stays(&self) -> bool {
        self.facts.stays()
    }

    /// Joins the connection with its socket, which has no deadline.
    pub fn on(self, stream: Stream) -> Conn {
        let wire = Wire::join(stream, self.secured);
        wire.set_deadline(None);
        Conn { wire, quic: None, facts: self.facts, local: OnceCell::new() }
    }

    /// Makes it a connection of QUIC at this local address. `closed` stands for its socket: nothing can be sent on it.
    pub fn over_quic(
        self,
        closed: Stream,
        quic: Rc<weir_quic::Connection>,
        local: Address,
    ) -> Conn {
        Conn { quic: Some(quic), ..self.before_quic(closed, local) }
    }

    /// The same before the QUIC connection exists.
    pub fn before_quic(self, closed: Stream, local: Address) -> Conn {
        Conn { local: OnceCell::from(local), ..self.on(closed) }
    }
}

impl Conn {
    /// The writers of its access log lines, if another loop served its first requests.
    pub fn lines(&self) -> Option<&Writers> {
        self.lines.as_ref()
    }

    /// The socket, with or without TLS.
    #[inline]
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Whether TLS is in use.
    #[inline]
    pub fn is_tls(&self) -> bool {
        self.quic.is_some() || self.wire.is_tls()
    }

    /// Calls `look` with the state of TLS, if it is in use.
    #[inline]
    pub fn with_tls<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T> {
        match &self.quic {
            Some(quic) => quic.tls(look),
            None => self.wire.tls(look),
        }
    }

    /// The QUIC connection, if it is one.
    pub fn quic(&self) -> Option<&Rc<weir_quic::Connection>> {
        self.quic.as_ref()
    }

    /// The kernel's TCP_INFO.
    pub fn tcp_info(&self) -> io::Result<TcpInfo> {
        tcp_info(self.wire.socket().as_fd())
    }

    /// Separates the socket from the connection, to be parked.
    pub fn part(self) -> (Stream, Resting) {
        let (stream, secured) = self.wire.part();
        (stream, Resting { secured, facts: self.facts })
    }

    /// The connection as another loop may take it. None if it cannot move, or TLS has pending data. The TLS state is lent with
    /// it: nothing can be sent or received here until [`Conn::take_back`].
    pub fn lend(&self) -> Option<Resting> {
        if self.stays() {
            return None;
        }
        Some(Resting { secured: self.wire.lend()?, facts: self.facts.clone() })
    }

    /// Takes the TLS state back, if no other loop has taken the connection.
    pub fn take_back(&self, lent: Resting) {
        self.wire.take_back(lent.secured);
    }

    /// The same connection, with TLS from now on.
    pub fn secured(self, secured: Secured) -> Conn {
        let (stream, _) = self.wire.part();
        Conn { wire: Wire::join(stream, Some(secured)), ..self }
    }

    /// Writes to a server's log. Adds the client and the listening address, as nginx does if there is no request.
    pub fn log(&self, site: &Site, log: &Log, level: Level, text: fmt::Arguments<'_>) {
        if log.enabled(level) {
            let client = self.peer.host();
            let listen = site.listens().get(self.listen);
            let listening = listen.map_or_else(|| self.local(), |listen| &listen.address);
            let text = format_args!("{text}, client: {client}, server: {listening}");
            log.write(level, Some(self.number), text);
        }
    }

    /// Ends the connection of a client that exceeded a timeout. A reset (`reset_timedout_connection`) frees the kernel's memory
    /// at once.
    pub fn timed_out(&self, reset: bool) {
        if reset {
            let _ = self.wire.socket().reset_on_close();
        }
    }

    /// Sets TCP_NODELAY if `tcp_nodelay` wants it, since another answer may follow before the last one is acknowledged.
    pub fn set_nodelay(&self, wanted: bool) {
        if wanted && !self.nodelay.replace(true) {
            // Fails for Unix sockets, which have no delay.
            let _ = self.wire.socket().nodelay(true);
        }
    }

    /// Shuts down the sending side, and discards what the client still sends: for `time` at most, and until it pauses for
    /// `timeout`. The kernel resets a socket that is closed with unread bytes, and the client may lose the answer by that.
    #[expect(clippy::disallowed_methods, reason = "what is thrown away is bounded")]
    pub async fn linger(&self, handle: &Handle, time: Duration, timeout: Duration) {
        if self.wire.shutdown_write().is_err() {
            return;
        }
        let end = handle.now() + time;
        loop {
            self.wire.set_deadline(Some(end.min(handle.now() + timeout)));
            // Waits without a buffer: many connections may linger at the end of a worker.
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

    /// The user of the process at the other end of a Unix socket. None for other sockets, also if a server of `stream` has
    /// handed one over to the address of a Unix socket.
    pub fn peer_user(&self) -> Option<u32> {
        let is_unix = matches!(self.local(), Address::Unix(_));
        let user = is_unix.then(|| peer_user(self.wire.socket().as_fd()).ok()).flatten();
        user.filter(|user| *user != u32::MAX)
    }
}
