//! Sockets that scripts open: connections, the pools in which scripts leave them, and datagrams.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weir_engine::{Chain, ConnectOptions, Either, Handle, Patience, SocketAddrAny, either};
use weir_tls::{ClientSessions, HandshakeError, Identity, Secured, TlsClient, Wire};
use weir_values::cidr;

use crate::carrier::Conn;
use crate::event_loop::LoopState;
use crate::modules::lua::vm::{Vm, vm_of};
use crate::site::core;

mod body;
mod error;
mod options;
mod own;
mod pattern;
mod pools;
mod session;
mod udp;

pub use body::BodySocket;
pub use error::SocketError;
pub use own::{CloseWithRequest, OwnSockets};
pub use pattern::Pattern;
use pools::{Idle, PoolSize, Slot};
pub use pools::{PoolOptions, Pools};
pub use udp::UdpSocket;

/// Why a connection cannot be given to another use.
const UNREAD: &str = "unread data in buffer";
/// Room for one read.
const READ: usize = 4096;

/// The server to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketTarget {
    /// `unix:/path`
    Unix(String),
    /// A host and a port.
    Host(String, u16),
}

impl SocketTarget {
    /// As scripts name it.
    pub fn new(host: &[u8], port: Option<u16>) -> Result<SocketTarget, String> {
        let host = std::str::from_utf8(host).map_err(|_| "bad host".to_owned())?;
        if let Some(path) = host.strip_prefix("unix:") {
            return Ok(SocketTarget::Unix(path.to_owned()));
        }
        let port = port.ok_or_else(|| "missing the port number".to_owned())?;
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        Ok(SocketTarget::Host(host.to_owned(), port))
    }

    /// What follows in a line of the log: `, upstream: example.com:80(192.0.2.1)`.
    fn in_log(&self, to: &SocketAddrAny) -> Rc<str> {
        let name = self.name();
        let name = weir_log::Bytes(&name);
        let of_ip = SocketAddr::try_from(to.clone()).ok();
        let ip = of_ip.map(|to| format!("({})", to.ip())).unwrap_or_default();
        format!(", upstream: {name}{ip}").into()
    }

    /// The name of its pool.
    pub fn name(&self) -> Vec<u8> {
        match self {
            SocketTarget::Unix(path) => format!("unix:{path}").into_bytes(),
            SocketTarget::Host(host, port) => format!("{host}:{port}").into_bytes(),
        }
    }
}

/// Where the bytes of a connection go and come from.
enum Carrying {
    /// A connection that the script has opened.
    Own(Wire),
    /// The client's, which the script has taken over: it ends with the request.
    Client(Rc<Conn>),
    /// That of a session's client.
    Session(Rc<Wire>),
}

impl Deref for Carrying {
    type Target = Wire;

    #[expect(clippy::disallowed_methods, reason = "the script takes the carrier's place")]
    fn deref(&self) -> &Wire {
        match self {
            Carrying::Own(wire) => wire,
            Carrying::Client(conn) => conn.wire(),
            Carrying::Session(wire) => wire,
        }
    }
}

/// A connection with the bytes that came on it and that the script has not received.
struct Connection {
    wire: Carrying,
    /// Its right to be in use, where its pool has a backlog.
    slot: Option<Slot>,
    unread: RefCell<Vec<u8>>,
    /// A receive was given up before its end: the answer may still come.
    late: Cell<bool>,
    /// A send was given up before its end.
    torn: Cell<bool>,
    /// The other side has ended its direction, or receiving failed. It may still take what is sent.
    read_closed: Cell<bool>,
    /// Sending failed. What has come may still be received.
    write_closed: Cell<bool>,
}

impl Connection {
    fn own(wire: Wire, slot: Option<Slot>) -> Rc<Connection> {
        Connection::new(Carrying::Own(wire), slot)
    }

    fn new(wire: Carrying, slot: Option<Slot>) -> Rc<Connection> {
        let (unread, late, torn, read_closed, write_closed) = Default::default();
        Rc::new(Connection { wire, slot, unread, late, torn, read_closed, write_closed })
    }

    fn is_whole(&self) -> bool {
        !self.read_closed.get() && !self.write_closed.get()
    }
}

/// A script's socket.
pub struct Socket {
    line: RefCell<Option<Rc<Connection>>>,
    /// For connecting, sending, receiving.
    timeouts: Cell<[Duration; 3]>,
    pool: RefCell<Vec<u8>>,
    /// Its server, as lines of the log name it.
    peer: RefCell<Rc<str>>,
    /// How many connections rest in the pool, where that is known.
    pool_size: RefCell<Option<PoolSize>>,
    /// The address that it connects from.
    local: Cell<Option<SocketAddr>>,
    /// The certificate that a server of TLS is shown instead of the configuration's.
    identity: RefCell<Option<Identity>>,
    /// What its server has given for the resumption of sessions.
    sessions: RefCell<Option<ClientSessions>>,
    reused: Cell<u64>,
    /// Bytes that were sent, and that came.
    sent: Cell<u64>,
    came: Cell<u64>,
    receiving: Cell<bool>,
    sending: Cell<bool>,
    /// Authorities in DER that the next handshake trusts, in place of those of the configuration.
    trusted: RefCell<Option<Vec<Vec<u8>>>>,
}

impl Socket {
    /// One without a connection.
    pub fn new((connect, send, receive): (Duration, Duration, Duration)) -> Socket {
        Socket {
            line: RefCell::default(),
            timeouts: Cell::new([connect, send, receive]),
            pool: RefCell::default(),
            pool_size: RefCell::default(),
            peer: RefCell::default(),
            local: Cell::default(),
            identity: RefCell::default(),
            sessions: RefCell::default(),
            reused: Cell::new(0),
            sent: Cell::new(0),
            came: Cell::new(0),
            receiving: Cell::new(false),
            sending: Cell::new(false),
            trusted: RefCell::default(),
        }
    }

    /// The client's connection, from which these bytes have come already.
    pub fn of_client(
        conn: Rc<Conn>,
        unread: Vec<u8>,
        times: (Duration, Duration, Duration),
    ) -> Socket {
        Socket::carried(Carrying::Client(conn), unread, times)
    }

    fn carried(
        carrying: Carrying,
        unread: Vec<u8>,
        times: (Duration, Duration, Duration),
    ) -> Socket {
        let socket = Socket::new(times);
        let line = Connection::new(carrying, None);
        // What waited for the client until now has no end of time any more.
        line.wire.set_deadline(None);
        line.unread.replace(unread);
        socket.line.replace(Some(line));
        socket
    }

    /// Other times than the configuration's; `None` keeps what is there.
    pub fn set_timeouts(&self, times: [Option<Duration>; 3]) {
        let mut all = self.timeouts.get();
        for (place, time) in all.iter_mut().zip(times) {
            *place = time.unwrap_or(*place);
        }
        self.timeouts.set(all);
    }

    /// The address to connect from.
    pub fn bind(&self, local: SocketAddr) {
        self.local.set(Some(local));
    }

    /// The certificate to be shown; `None` for that of the configuration.
    pub fn show(&self, identity: Option<Identity>) {
        self.identity.replace(identity);
    }

    /// The certificate to be shown.
    pub fn identity(&self) -> Option<Identity> {
        self.identity.borrow().clone()
    }

    /// Sessions of the connection, as long as it speaks TLS.
    pub fn sessions(&self) -> Option<ClientSessions> {
        let is_tls = self.line.borrow().as_ref().is_some_and(|line| line.wire.is_tls());
        self.sessions.borrow().clone().filter(|_| is_tls)
    }

    /// How many bytes were sent.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// The number of the socket's descriptor in this process.
    pub fn descriptor(&self) -> Option<i32> {
        self.line.borrow().as_ref().map(|line| line.wire.socket().as_fd().as_raw_fd())
    }

    /// How often the connection was used before.
    pub fn reused(&self) -> u64 {
        self.reused.get()
    }

    /// Connects, or takes a connection that was left in the pool.
    pub async fn connect(
        &self,
        (event_loop, vm): (&Rc<LoopState>, &Vm),
        core: &'static core::Conf,
        server: SocketTarget,
        pool: PoolOptions,
        usual: usize,
    ) -> Result<(), SocketError> {
        self.close();
        self.sessions.take();
        let limit = self.timeouts.get()[0];
        let slot = vm.pools.slot(&pool, usual, &event_loop.handle, limit).await?;
        // Before a connection is taken: with the last one, the pool's size is forgotten.
        let size = pool.size.map(|size| vm.pools.size(&pool.name, size));
        self.pool_size.replace(size.or_else(|| vm.pools.known_size(&pool.name)));
        let kept = vm.pools.take(&pool.name, event_loop.handle.now());
        *self.pool.borrow_mut() = pool.name;
        if let Some((wire, reused, peer)) = kept {
            self.reused.set(reused + 1);
            self.peer.replace(peer);
            *self.line.borrow_mut() = Some(Connection::own(wire, slot));
            return Ok(());
        }
        self.reused.set(0);
        // Looking a name up has a time of its own: `resolver_timeout`.
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
        *self.line.borrow_mut() = Some(Connection::own(wire, slot));
        Ok(())
    }

    /// Goes on in TLS, or in one of these sessions. Bytes before it are an error: a third party could have sent them.
    pub async fn secure(
        &self,
        handle: &Handle,
        client: &TlsClient,
        sessions: ClientSessions,
    ) -> Result<(), SocketError> {
        if let Some(refusal) = self.refusal() {
            return Err(SocketError::Other(refusal.to_owned()));
        }
        let line = self.line.take().ok_or(SocketError::Closed)?;
        if line.wire.is_tls() {
            *self.line.borrow_mut() = Some(line);
            return Ok(());
        }
        let client = &client.keeping(&sessions);
        self.sessions.replace(Some(sessions));
        // A coroutine that sends or receives holds it, too.
        let line = Rc::try_unwrap(line).map_err(|_| SocketError::Busy("writing"))?;
        if !line.unread.borrow().is_empty() {
            return Err(SocketError::Other(UNREAD.to_owned()));
        }
        let Connection { wire: Carrying::Own(wire), slot, .. } = line else {
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
        *self.line.borrow_mut() = Some(Connection::own(Wire::join(stream, Some(secured)), slot));
        Ok(())
    }

    /// Sends all of it; the other side has the time to send for each piece that it takes.
    pub async fn send(&self, handle: &Handle, bytes: Vec<u8>) -> Result<(), SocketError> {
        let line = self.line.borrow().clone().ok_or(SocketError::Closed)?;
        let _busy = Busy::new(&self.sending, "writing")?;
        let mut chain = Chain::new();
        chain.push(Bytes::from(bytes));
        let limit = self.timeouts.get()[1];
        let total = chain.len();
        line.torn.set(true);
        let mut sent = Ok(());
        while sent.is_ok() && !chain.is_empty() {
            let sending = async {
                line.wire.send_some(&mut chain, Patience::Watched).await.map_err(SocketError::from)
            };
            sent = within(handle, limit, sending).await;
        }
        line.torn.set(false);
        self.sent.set(self.sent.get() + total.saturating_sub(chain.len()));
        if sent.is_err() {
            line.write_closed.set(true);
            self.end_if_useless(&line);
        }
        sent
    }

    /// Receives what the pattern wants, and whether its mark was reached; or why not, with what came.
    pub async fn receive(&self, handle: &Handle, pattern: &Pattern) -> Received {
        let without = |failed| (failed, Vec::new());
        let line = self.line.borrow().clone().ok_or_else(|| without(SocketError::Closed))?;
        let _busy = Busy::new(&self.receiving, "reading").map_err(without)?;
        loop {
            let found = pattern.take(&mut line.unread.borrow_mut());
            if let Some(found) = found {
                line.late.set(false);
                return Ok(found);
            }
            line.late.set(true);
            let limit = self.timeouts.get()[2];
            #[expect(clippy::disallowed_methods, reason = "a server's bytes")]
            let reading = async {
                let (read, buf) = line.wire.recv(Vec::with_capacity(READ)).await;
                read.map(|_| buf).map_err(SocketError::from)
            };
            match within(handle, limit, reading).await {
                Ok(bytes) if bytes.is_empty() => {
                    line.read_closed.set(true);
                    self.end_if_useless(&line);
                    let rest = line.unread.take();
                    return match pattern {
                        Pattern::All => Ok((rest, true)),
                        _ => Err((SocketError::Closed, rest)),
                    };
                }
                Ok(bytes) => {
                    self.came.set(self.came.get() + bytes.len() as u64);
                    line.unread.borrow_mut().extend_from_slice(&bytes);
                }
                Err(failed) => {
                    if failed != SocketError::Timeout {
                        line.read_closed.set(true);
                        self.end_if_useless(&line);
                    }
                    return Err((failed, line.unread.take()));
                }
            }
        }
    }

    /// A connection on which nothing can be sent or received any more ends.
    fn end_if_useless(&self, line: &Rc<Connection>) {
        let is_current = || self.line.borrow().as_ref().is_some_and(|own| Rc::ptr_eq(own, line));
        if line.read_closed.get() && line.write_closed.get() && is_current() {
            self.close();
        }
    }

    /// Whether there is a connection, in one direction at least.
    pub fn is_open(&self) -> bool {
        self.line.borrow().is_some()
    }

    /// Whether there may be more to receive.
    pub fn reads(&self) -> bool {
        self.line.borrow().as_ref().is_some_and(|line| !line.read_closed.get())
    }

    /// Whether the other side may take what is sent.
    pub fn writes(&self) -> bool {
        self.line.borrow().as_ref().is_some_and(|line| !line.write_closed.get())
    }

    /// Ends the connection; false if there was none. A receiver that is at it keeps what came.
    pub fn close(&self) -> bool {
        self.pool_size.take();
        self.trusted.take();
        match self.line.take() {
            Some(line) => {
                if let Carrying::Own(wire) = &line.wire {
                    wire.close_notify();
                }
                true
            }
            None => false,
        }
    }

    /// Why it cannot be closed or given to another use, if another coroutine is at it.
    pub fn refusal(&self) -> Option<&'static str> {
        let receiving = self.receiving.get().then_some("socket busy reading");
        receiving.or_else(|| self.sending.get().then_some("socket busy writing"))
    }

    /// What a line of the log says of its server.
    pub fn peer(&self) -> Rc<str> {
        self.peer.borrow().clone()
    }

    /// Leaves the connection in its pool.
    pub fn keep(
        &self,
        event_loop: &Rc<LoopState>,
        time: Duration,
        most: usize,
    ) -> Result<(), &'static str> {
        let Some(vm) = vm_of(event_loop) else { return Err("no Lua VM") };
        if !self.line.borrow().as_ref().is_some_and(|line| line.is_whole()) {
            return Err("closed");
        }
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let is_read = |line: &mut Rc<Connection>| line.unread.borrow().is_empty();
        let Some(line) = self.line.borrow_mut().take_if(is_read) else { return Err(UNREAD) };
        let line = Rc::try_unwrap(line).map_err(|_| "socket busy")?;
        if line.late.get() || line.torn.get() || !line.wire.is_silent() {
            return Err("connection in dubious state");
        }
        let Connection { wire: Carrying::Own(wire), slot, .. } = line else { return Err("closed") };
        let now = event_loop.handle.now();
        // No time at all is no limit.
        let until = (!time.is_zero()).then(|| now + time);
        let name = self.pool.take();
        let size = self.pool_size.take().unwrap_or_else(|| vm.pools.size(&name, most));
        let peer = self.peer.borrow().clone();
        let idle = Idle { wire, reused: self.reused.get(), peer, until, size };
        vm.pools.put(name, idle, now);
        // The next one that waits finds the connection.
        drop(slot);
        if let Some(mut until) = until.filter(|until| vm.pools.wants_look(*until)) {
            let (vm, handle) = (vm.clone(), event_loop.handle.clone());
            event_loop.handle.spawn(async move {
                loop {
                    handle.sleep(until.saturating_duration_since(handle.now())).await;
                    let Some(next) = vm.pools.look(until, handle.now()) else { break };
                    until = next;
                }
            });
        }
        Ok(())
    }
}

/// What a receive comes to: the bytes and whether its mark was reached, or why not, with what came.
pub type Received = Result<(Vec<u8>, bool), (SocketError, Vec<u8>)>;

impl CloseWithRequest for Socket {
    fn close_with_request(&self) {
        self.close();
    }
}

/// Marks that a coroutine uses a socket in one direction.
struct Busy<'a>(&'a Cell<bool>);

impl<'a> Busy<'a> {
    fn new(busy: &'a Cell<bool>, doing: &'static str) -> Result<Busy<'a>, SocketError> {
        if busy.replace(true) {
            return Err(SocketError::Busy(doing));
        }
        Ok(Busy(busy))
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

async fn address(
    event_loop: &Rc<LoopState>,
    core: &'static core::Conf,
    server: &SocketTarget,
) -> Result<SocketAddrAny, SocketError> {
    let (host, port) = match server {
        SocketTarget::Unix(path) => {
            let path = rustix::net::SocketAddrUnix::new(path.as_str());
            return path.map(Into::into).map_err(|error| SocketError::from(io::Error::from(error)));
        }
        SocketTarget::Host(host, port) => (host, *port),
    };
    if let Some(ip) = cidr::parse_ip(host.as_bytes()) {
        return Ok(SocketAddr::new(ip, port).into());
    }
    let Some(conf) = &core.resolver else {
        return Err(SocketError::Other(format!("no resolver defined to resolve \"{host}\"")));
    };
    let resolver = event_loop.resolvers.of(conf);
    let found = resolver.resolve(&event_loop.handle, host, core.resolver_timeout).await;
    let found =
        found.map_err(|why| SocketError::Other(format!("{host} could not be resolved ({why})")))?;
    let first = found.addresses.first();
    let first = first.ok_or_else(|| SocketError::Other(format!("{host} has no address")))?;
    Ok(SocketAddr::new(*first, port).into())
}

/// A future with a limit of time.
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
