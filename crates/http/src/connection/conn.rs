//! What the requests of a connection share, and what is left of it between them.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use weir_engine::{Handle, Stream};
use weir_log::{Level, Log};
use weir_proto::proxy_protocol;
use weir_ssl::server::Shown;
use weir_tls::{Secured, Wire};

use crate::address::Address;
use crate::modules::ssl::Secure;
use crate::site::core::Conf;
use weir_ssl::Handed;

/// At the most this much is thrown away of what a client still sends when its answer is done.
const LINGER_READ: usize = 4096;

/// What the requests of a connection share.
pub struct Conn {
    /// The socket, with or without TLS.
    pub stream: Wire,
    /// What is known of its TLS; there too where a client speaks none on a port that wants it.
    pub tls: Option<Arc<Secure>>,
    /// It was another listener's, which handed it over.
    pub before: Option<Arc<Before>>,
    /// Who is at the other end.
    pub peer: Address,
    /// Which listening socket it came from.
    pub listen: usize,
    /// `$connection`
    pub number: u64,
    /// `$connection_requests`
    pub requests: Cell<u64>,
    /// When it was accepted: `$connection_time`.
    pub started: Instant,
    /// `tcp_nodelay` was asked for.
    nodelay: Cell<bool>,
    /// What a balancer in front said of the client.
    pub proxy: OnceCell<Arc<proxy_protocol::Header>>,
    local: OnceCell<Address>,
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
    tls: Option<Arc<Secure>>,
    before: Option<Arc<Before>>,
    peer: Address,
    listen: usize,
    number: u64,
    requests: u64,
    started: Instant,
    nodelay: bool,
    proxy: OnceCell<Arc<proxy_protocol::Header>>,
}

impl Resting {
    /// A new connection.
    pub fn new(peer: Address, listen: usize, number: u64, started: Instant) -> Resting {
        Resting {
            secured: None,
            tls: None,
            before: None,
            peer,
            listen,
            number,
            requests: 0,
            started,
            nodelay: false,
            proxy: OnceCell::new(),
        }
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
        let proxy = proxy.map_or_else(OnceCell::new, |header| OnceCell::from(Arc::from(header)));
        let new = Resting::new(peer, listen, number, now);
        let before = Some(Arc::new(Before { shown, local }));
        (stream, Resting { secured, before, proxy, ..new }, bytes)
    }

    /// Puts the connection on its socket, without a deadline.
    pub fn on(self, stream: Stream) -> Conn {
        let Resting { secured, tls, before, peer, listen, number, started, proxy, .. } = self;
        let stream = Wire::join(stream, secured);
        stream.set_deadline(None);
        let (requests, nodelay) = (Cell::new(self.requests), Cell::new(self.nodelay));
        let local = OnceCell::new();
        Conn { stream, tls, before, peer, listen, number, requests, started, nodelay, proxy, local }
    }
}

impl Conn {
    /// Takes socket and connection apart, to be parked.
    pub fn part(self) -> (Stream, Resting) {
        let Conn { stream, tls, before, peer, listen, number, started, proxy, .. } = self;
        let (requests, nodelay) = (self.requests.get(), self.nodelay.get());
        let (stream, secured) = stream.part();
        let resting = Resting {
            secured,
            tls,
            before,
            peer,
            listen,
            number,
            requests,
            started,
            nodelay,
            proxy,
        };
        (stream, resting)
    }

    /// What the connection is for another loop, while nothing is pending in its TLS, which is lent: until it comes back
    /// ([`Conn::take_back`]) nothing can be sent or received here.
    pub fn lend(&self) -> Option<Resting> {
        Some(Resting {
            secured: self.stream.lend()?,
            tls: self.tls.clone(),
            before: self.before.clone(),
            peer: self.peer.clone(),
            listen: self.listen,
            number: self.number,
            requests: self.requests.get(),
            started: self.started,
            nodelay: self.nodelay.get(),
            proxy: self.proxy.clone(),
        })
    }

    /// No other loop has taken it.
    pub fn take_back(&self, lent: Resting) {
        self.stream.take_back(lent.secured);
    }

    /// The same connection, with TLS from now on.
    pub fn secured(self, secured: Secured) -> Conn {
        let (stream, _) = self.stream.part();
        Conn { stream: Wire::join(stream, Some(secured)), ..self }
    }

    /// Writes to a server's log, with what nginx adds while there is no request: client and address.
    pub fn log(&self, log: &Log, level: Level, text: fmt::Arguments<'_>) {
        if log.enabled(level) {
            let (client, local) = (self.peer.host(), self.local());
            let text = format_args!("{text}, client: {client}, server: {local}");
            log.write(level, Some(self.number), text);
        }
    }

    /// The client took too long: `reset_timedout_connection` saves what the kernel would keep for it.
    pub fn timed_out(&self, core: &Conf) {
        if core.reset_timedout_connection {
            let _ = self.stream.socket().reset_on_close();
        }
    }

    /// From now on small pieces leave at once: another answer may follow before the last was acknowledged.
    pub fn set_nodelay(&self, core: &Conf) {
        if core.tcp_nodelay && !self.nodelay.replace(true) {
            // Unix sockets have no such thing, and no delay.
            let _ = self.stream.socket().nodelay(true);
        }
    }

    /// Says that nothing more will come, and throws away what the client still sends, for as long as the
    /// settings allow: a socket that is closed with unread bytes in it is reset, and what is on its way to the
    /// client may be lost with it.
    pub async fn linger(&self, handle: &Handle, core: &Conf) {
        if self.stream.shutdown_write().is_err() {
            return;
        }
        let end = handle.now() + core.lingering_time;
        let mut buf = handle.take_buf(LINGER_READ);
        loop {
            self.stream.set_deadline(Some(end.min(handle.now() + core.lingering_timeout)));
            buf.clear();
            let (result, back) = self.stream.recv(buf).await;
            buf = back;
            if !matches!(result, Ok(n) if n > 0) || handle.now() >= end {
                break;
            }
        }
        handle.give_buf(buf);
    }

    /// The address that the client connected to.
    pub fn local(&self) -> &Address {
        if let Some(before) = &self.before {
            return &before.local;
        }
        self.local
            .get_or_init(|| Address::local_of(self.stream.socket()).unwrap_or(Address::Unknown))
    }
}
