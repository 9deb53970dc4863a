//! Sockets of scripts: TCP connections, their keep-alive pools, and UDP.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weir_engine::{Chain, ConnectOptions, Either, Handle, Patience, either};
use weir_tls::{ClientSessions, HandshakeError, Identity, Secured, TlsClient, Wire};

use crate::carrier::Conn;
use crate::event_loop::LoopState;
use crate::modules::lua::vm::{Vm, vm_of};
use crate::site::core;

mod body;
mod busy;
mod connection;
mod error;
mod options;
mod own;
mod pattern;
mod pools;
mod session;
mod target;
mod udp;

pub use body::BodySocket;
use busy::UnderWay;
use connection::{Carrying, Connection};
pub use error::SocketError;
pub use own::{OwnSockets, OwnedSocket, SocketOwner};
pub use pattern::{Pattern, Searched};
use pools::{Idle, PoolSize};
pub use pools::{PoolOptions, Pools};
pub use target::SocketTarget;
use target::address;
pub use udp::UdpSocket;

/// The error of a TLS handshake or a keep-alive with unread bytes.
const UNREAD: &str = "unread data in buffer";
/// The buffer size of a receive.
const READ: usize = 4096;

/// A script's socket.
pub struct Socket {
    owner: SocketOwner,
    connection: RefCell<Option<Rc<Connection>>>,
    /// The timeouts of connecting, sending and receiving.
    timeouts: Cell<[Duration; 3]>,
    pool: RefCell<Vec<u8>>,
    /// The peer, for log lines.
    peer: RefCell<Rc<str>>,
    /// The size of the pool, if it is known.
    pool_size: RefCell<Option<PoolSize>>,
    /// The local address to bind to.
    local: Cell<Option<SocketAddr>>,
    /// The client certificate, if it is not the configuration's.
    identity: RefCell<Option<Identity>>,
    /// TLS sessions of the server, for resumption.
    sessions: RefCell<Option<ClientSessions>>,
    reused: Cell<u64>,
    /// Bytes sent and received.
    sent: Cell<u64>,
    received: Cell<u64>,
    under_way: UnderWay,
    /// The authorities, in DER, that the next handshake trusts in place of the configuration's.
    trusted: RefCell<Option<Vec<Vec<u8>>>>,
}

impl Socket {
    /// A socket without a connection.
    pub fn new((connect, send, receive): (Duration, Duration, Duration)) -> Socket {
        Socket {
            owner: SocketOwner::default(),
            connection: RefCell::default(),
            timeouts: Cell::new([connect, send, receive]),
            pool: RefCell::default(),
            pool_size: RefCell::default(),
            peer: RefCell::default(),
            local: Cell::default(),
            identity: RefCell::default(),
            sessions: RefCell::default(),
            reused: Cell::new(0),
            sent: Cell::new(0),
            received: Cell::new(0),
            under_way: UnderWay::default(),
            trusted: RefCell::default(),
        }
    }

    /// A socket for the client's connection, with bytes that were read from it before.
    pub fn of_client(
        (conn, aborts): (Rc<Conn>, bool),
        unread: Vec<u8>,
        times: (Duration, Duration, Duration),
    ) -> Socket {
        Socket::carried(Carrying::Client { conn, aborts }, unread, times)
    }

    fn carried(
        carrying: Carrying,
        unread: Vec<u8>,
        times: (Duration, Duration, Duration),
    ) -> Socket {
        let socket = Socket::new(times);
        let connection = Connection::new(carrying, None);
        // The previous reader's deadline does not apply to the script.
        connection.wire.set_deadline(None);
        connection.unread.replace(unread);
        socket.connection.replace(Some(connection));
        socket
    }

    /// Replaces the configuration's timeouts. `None` keeps one.
    pub fn set_timeouts(&self, times: [Option<Duration>; 3]) {
        let mut all = self.timeouts.get();
        for (place, time) in all.iter_mut().zip(times) {
            *place = time.unwrap_or(*place);
        }
        self.timeouts.set(all);
    }

    /// Sets the local address.
    pub fn bind(&self, local: SocketAddr) {
        self.local.set(Some(local));
    }

    /// Sets the client certificate. `None` stands for the configuration's.
    pub fn show(&self, identity: Option<Identity>) {
        self.identity.replace(identity);
    }

    /// The client certificate that was set.
    pub fn identity(&self) -> Option<Identity> {
        self.identity.borrow().clone()
    }

    /// The TLS sessions of the connection, if it uses TLS.
    pub fn sessions(&self) -> Option<ClientSessions> {
        let is_tls =
            self.connection.borrow().as_ref().is_some_and(|connection| connection.wire.is_tls());
        self.sessions.borrow().clone().filter(|_| is_tls)
    }

    /// The bytes sent.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// How many times the connection was reused.
    pub fn reused(&self) -> u64 {
        self.reused.get()
    }

    /// Opens a connection, or takes one from the pool.
    pub async fn connect(
        &self,
        (event_loop, vm): (&Rc<LoopState>, &Vm),
        core: &'static core::Conf,
        server: SocketTarget,
        pool: PoolOptions,
        usual: usize,
    ) -> Result<(), SocketError> {
        let _busy = self.under_way.connect()?;
        self.close();
        self.sessions.take();
        let limit = self.timeouts.get()[0];
        let slot = vm.pools.wait_for_slot(&pool, usual, &event_loop.handle, limit).await?;
        // Read before a connection is taken: with the last connection, the pool's size is
        // forgotten.
        let size = pool.size.map(|size| vm.pools.size(&pool.name, size));
        self.pool_size.replace(size.or_else(|| vm.pools.known_size(&pool.name)));
        let kept = vm.pools.take(&pool.name, event_loop.handle.now());
        *self.pool.borrow_mut() = pool.name;
        if let Some((wire, reused, peer)) = kept {
            self.reused.set(reused + 1);
            self.peer.replace(peer);
            *self.connection.borrow_mut() = Some(Connection::own(wire, slot));
            return Ok(());
        }
        self.reused.set(0);
        // Resolving has a timeout of its own: `resolver_timeout`.
        let to = address(event_loop, core, &server).await?;
        self.peer.replace(server.in_log(&to));
        let connecting = async {
            let bind = match &server {
                SocketTarget::Unix(_) => None,
                SocketTarget::Host(..) => self.local.get().map(Into::into),
            };
            let how = ConnectOptions { bind, ..ConnectOptions::default() };
            let stream = event_loop.handle.connect(&to, &how).await?;
            Ok(Wire::join(stream, None))
        };
        let wire = within(&event_loop.handle, limit, connecting).await?;
        *self.connection.borrow_mut() = Some(Connection::own(wire, slot));
        Ok(())
    }

    /// Performs a TLS handshake. Unread bytes before it are an error, since a third party could
    /// have injected them.
    pub async fn secure(
        &self,
        handle: &Handle,
        client: &TlsClient,
        sessions: ClientSessions,
    ) -> Result<(), SocketError> {
        let _busy = self.under_way.connect()?;
        let connection = self.connection.take().ok_or(SocketError::Closed)?;
        if connection.wire.is_tls() {
            *self.connection.borrow_mut() = Some(connection);
            return Ok(());
        }
        let client = &client.keeping(&sessions);
        self.sessions.replace(Some(sessions));
        // A coroutine that sends or receives shares the connection.
        let connection = Rc::try_unwrap(connection).map_err(|_| SocketError::Busy("writing"))?;
        if !connection.unread.borrow().is_empty() {
            return Err(SocketError::Other(UNREAD.to_owned()));
        }
        let Connection { wire: Carrying::Own(wire), slot, .. } = connection else {
            return Err(SocketError::Closed);
        };
        let client = &self.trusting(client);
        let (stream, _) = wire.part();
        let limit = self.timeouts.get()[0];
        let shaking = async {
            let until = handle.now() + limit;
            let secured = Secured::connect(&stream, client, until).await;
            secured.map_err(|error| match error {
                HandshakeError::TimedOut => SocketError::Timeout,
                error => SocketError::Handshake(error.to_string()),
            })
        };
        let secured = within(handle, limit, shaking).await?;
        *self.connection.borrow_mut() =
            Some(Connection::own(Wire::join(stream, Some(secured)), slot));
        Ok(())
    }

    /// Sends all bytes. The timeout applies to each part that the peer accepts.
    pub async fn send(&self, handle: &Handle, bytes: Vec<u8>) -> Result<(), SocketError> {
        let _busy = self.under_way.send()?;
        let connection = self.connection.borrow().clone().ok_or(SocketError::Closed)?;
        let mut chain = Chain::new();
        chain.push(Bytes::from(bytes));
        let limit = self.timeouts.get()[1];
        let total = chain.len();
        connection.send_aborted.set(true);
        let mut sent = Ok(());
        while sent.is_ok() && !chain.is_empty() {
            let sending = async {
                connection
                    .wire
                    .send_some(&mut chain, Patience::Watched)
                    .await
                    .map_err(SocketError::from)
            };
            sent = within(handle, limit, sending).await;
        }
        connection.send_aborted.set(false);
        self.sent.set(self.sent.get() + total.saturating_sub(chain.len()));
        if sent.is_err() {
            connection.write_closed.set(true);
            self.end_if_useless(&connection);
        }
        sent
    }

    /// What [`Socket::receive`] returns, if enough bytes have arrived before.
    pub fn receive_now(&self, pattern: &Pattern) -> Option<(Vec<u8>, bool)> {
        let _busy = self.under_way.receive().ok()?;
        let connection = self.connection.borrow();
        let connection = connection.as_ref()?;
        let found = pattern.take(&mut connection.unread.borrow_mut(), &mut Searched::default())?;
        connection.receive_aborted.set(false);
        Some(found)
    }

    /// Receives what the pattern asks for, and whether its delimiter was reached. An error has the
    /// bytes received before it.
    pub async fn receive(&self, handle: &Handle, pattern: &Pattern) -> Received {
        let without = |failed| (failed, Vec::new());
        let _busy = self.under_way.receive().map_err(without)?;
        let connection =
            self.connection.borrow().clone().ok_or_else(|| without(SocketError::Closed))?;
        let mut searched = Searched::default();
        loop {
            let found = pattern.take(&mut connection.unread.borrow_mut(), &mut searched);
            if let Some(found) = found {
                connection.receive_aborted.set(false);
                return Ok(found);
            }
            connection.receive_aborted.set(true);
            let limit = self.timeouts.get()[2];
            #[expect(clippy::disallowed_methods, reason = "a server's bytes")]
            let reading = async {
                if connection.read_ended.get() {
                    return Ok(Vec::new());
                }
                let (read, buf) = connection.wire.recv(Vec::with_capacity(READ)).await;
                read.map(|_| buf).map_err(SocketError::from)
            };
            match within(handle, limit, reading).await {
                Ok(bytes) if bytes.is_empty() => {
                    let (rest, end) = (connection.unread.take(), connection.end());
                    if *pattern == Pattern::All && end == SocketError::Closed {
                        connection.read_ended.set(true);
                        return Ok((rest, true));
                    }
                    connection.read_closed.set(true);
                    self.end_if_useless(&connection);
                    return Err((end, pattern.shown(rest)));
                }
                Ok(bytes) => {
                    self.received.set(self.received.get() + bytes.len() as u64);
                    connection.unread.borrow_mut().extend_from_slice(&bytes);
                }
                Err(failed) => {
                    if failed != SocketError::Timeout {
                        connection.read_closed.set(true);
                        self.end_if_useless(&connection);
                    }
                    return Err((failed, pattern.shown(connection.unread.take())));
                }
            }
        }
    }

    /// Closes a connection that can neither send nor receive.
    fn end_if_useless(&self, connection: &Rc<Connection>) {
        let is_current =
            || self.connection.borrow().as_ref().is_some_and(|own| Rc::ptr_eq(own, connection));
        if connection.read_closed.get() && connection.write_closed.get() && is_current() {
            self.close();
        }
    }

    /// Whether there is a connection that can send or receive, or will be.
    pub fn is_open(&self) -> bool {
        self.has(|_| true)
    }

    /// Whether more may be received.
    pub fn reads(&self) -> bool {
        self.has(|connection| !connection.read_closed.get())
    }

    /// Whether sending may work.
    pub fn writes(&self) -> bool {
        self.has(|connection| !connection.write_closed.get())
    }

    /// Whether there is a connection for which `test` holds, or one is being opened: then the
    /// operation itself says that the socket is busy.
    fn has(&self, test: impl FnOnce(&Connection) -> bool) -> bool {
        let connection = self.connection.borrow();
        self.under_way.connecting.get() || connection.as_ref().is_some_and(|own| test(own))
    }

    /// Closes the connection. False if there was none. A coroutine that receives keeps the bytes it
    /// has.
    pub fn close(&self) -> bool {
        self.pool_size.take();
        self.trusted.take();
        match self.connection.take() {
            Some(connection) => {
                if let Carrying::Own(wire) = &connection.wire {
                    wire.close_notify();
                }
                true
            }
            None => false,
        }
    }

    /// The peer, for log lines.
    pub fn peer(&self) -> Rc<str> {
        self.peer.borrow().clone()
    }

    /// Puts the connection into its pool.
    pub fn keep(
        &self,
        event_loop: &Rc<LoopState>,
        time: Duration,
        most: usize,
    ) -> Result<(), SocketError> {
        let other = |text: &str| SocketError::Other(text.to_owned());
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let Some(vm) = vm_of(event_loop) else { return Err(other("no Lua VM")) };
        if !self.connection.borrow().as_ref().is_some_and(|connection| connection.is_whole()) {
            return Err(SocketError::Closed);
        }
        let is_read = |connection: &mut Rc<Connection>| connection.unread.borrow().is_empty();
        let Some(connection) = self.connection.borrow_mut().take_if(is_read) else {
            return Err(other(UNREAD));
        };
        let connection = Rc::try_unwrap(connection).map_err(|_| SocketError::Busy(""))?;
        if connection.receive_aborted.get()
            || connection.send_aborted.get()
            || !connection.wire.is_silent()
        {
            return Err(other("connection in dubious state"));
        }
        let Connection { wire: Carrying::Own(wire), slot, .. } = connection else {
            return Err(SocketError::Closed);
        };
        let now = event_loop.handle.now();
        // Zero means no limit.
        let until = (!time.is_zero()).then(|| now + time);
        let name = self.pool.take();
        let size = self.pool_size.take().unwrap_or_else(|| vm.pools.size(&name, most));
        let peer = self.peer.borrow().clone();
        let idle = Idle { wire, reused: self.reused.get(), peer, until, size };
        vm.pools.put(&event_loop.handle, name, idle);
        // The next waiting coroutine finds the connection in the pool.
        drop(slot);
        Ok(())
    }
}

/// The result of a receive: the bytes and whether the delimiter was reached, or the error with the
/// bytes received before it.
pub type Received = Result<(Vec<u8>, bool), (SocketError, Vec<u8>)>;

impl OwnedSocket for Socket {
    fn owner(&self) -> &SocketOwner {
        &self.owner
    }

    fn close_with_owner(&self) {
        self.close();
    }
}

/// Runs a future with a timeout.
async fn within<T>(
    handle: &Handle,
    limit: Duration,
    work: impl Future<Output = Result<T, SocketError>>,
) -> Result<T, SocketError> {
    match either(work, handle.sleep(limit)).await {
        Either::Left(done) => done,
        Either::Right(()) => Err(SocketError::Timeout),
    }
}
