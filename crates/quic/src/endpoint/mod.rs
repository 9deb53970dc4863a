//! A loop's UDP socket for an address, and the task that drives its connections.

mod drive;
mod hello;
mod receive;
mod room;
mod send;
mod settings;
mod socket;
#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use aws_lc_rs::hmac;
use quinn_proto::{ConnectionHandle, EndpointConfig, ServerConfig, Transmit};
use quinn_udp::UdpSocketState;
use rustc_hash::FxHashMap;
use weir_engine::{Datagram, Handle, is_spent};

use self::hello::HelloEndpoint;
use self::receive::RECEIVE_BUFFER;
pub use self::settings::{Congestion, EndpointSettings, HostKey};
use self::settings::{Transports, server_config};
use crate::connection::{Connection, Events};
use crate::crypto::{AsyncChooser, Chooser, Initial};
use crate::ids::{IdKey, Ids, Place};
use crate::packet::Packet;
use crate::version::Version;

/// Points of the task's budget for each received datagram, and for each send call.
const DATAGRAM: u32 = 4;

/// A connection attempt: a client's first Initial packet.
#[derive(Debug, Clone, Copy)]
pub struct NewConnection {
    /// The client's address, which may be forged until `validated`.
    pub peer: SocketAddr,
    /// The address of this host that it was sent to, if the socket reports it.
    pub local: Option<IpAddr>,
    /// A token has validated the client's address (RFC 9000, section 8.1).
    pub validated: bool,
    /// Many connections have an unvalidated address, or wait to begin: they may be a flood from forged addresses.
    pub crowded: bool,
}

/// Takes a new connection, and returns the receiver of its events.
pub type Begin = Box<dyn FnOnce(&Rc<Connection>) -> Rc<dyn Events>>;

/// What an endpoint does with a connection attempt.
pub enum Admission {
    /// Accepts the connection. The chooser gets the ClientHello.
    Accept(Chooser, Begin),
    /// Accepts the connection once the TLS configuration for its ClientHello is known, which may take time.
    AcceptLater(AsyncChooser, Begin),
    /// Sends a Retry packet, to validate the client's address (RFC 9000, section 8.1.2).
    Retry,
    /// Closes the connection with CONNECTION_REFUSED.
    Refuse,
    /// Sends no answer.
    Ignore,
}

/// The application protocol, as an endpoint calls it.
pub trait Accepts {
    /// Decides about a connection attempt.
    fn admit(&self, new: &NewConnection) -> Admission;
    /// The endpoint has reached its limit of connections, and ignored an attempt. With `make_room` it is near the limit, and
    /// closes the connections that were idle for longest.
    fn full(&self, _connections: usize, _make_room: bool) {}
    /// TLS has failed for the first ClientHello of a client at this address.
    fn refused(&self, _peer: SocketAddr, _reason: &str) {}
    /// A packet belongs to a connection of another loop. The endpoint does not process it.
    fn misplaced(&self, _: Place, _: &Packet<'_>) {}
    /// The loop that accepts the connection whose client has chosen an initial connection ID with this hash: the first that asked.
    /// `None` is the asking loop. See `IdKey::hash`.
    fn owner(&self, _first: u64) -> Option<Place> {
        None
    }
}

/// A socket, with the connections that began there.
pub struct Endpoint {
    handle: Handle,
    fd: Arc<OwnedFd>,
    /// `None` while other loops receive from it.
    socket: RefCell<Option<Rc<Datagram>>>,
    /// A socket for Initial packets that all loops share.
    shared: RefCell<Option<(Arc<OwnedFd>, UdpSocketState)>>,
    /// Sends datagrams, also while `socket` is `None`.
    sender: Datagram,
    udp: UdpSocketState,
    ids: IdKey,
    for_retry: Arc<AtomicBool>,
    place: Place,
    inner: RefCell<quinn_proto::Endpoint>,
    base: ServerConfig,
    transports: Transports,
    initial: Initial,
    hello_endpoint: RefCell<HelloEndpoint>,
    connections: RefCell<FxHashMap<ConnectionHandle, Rc<Connection>>>,
    marked: RefCell<VecDeque<Rc<Connection>>>,
    /// How many connections at the front of `marked` have had their received events dispatched. [`Endpoint::dispatch_events`] sets it
    /// to `usize::MAX` at the end of the queue: connections that are marked after that are driven without it.
    /// [`Endpoint::drive_marked`] subtracts one for each connection that it takes from the queue.
    dispatched: Cell<usize>,
    /// Connections whose paused streams were resumed. They are driven again after the tasks of these streams have run.
    resumed: RefCell<Vec<Rc<Connection>>>,
    deadlines: RefCell<BTreeSet<(Instant, ConnectionHandle)>>,
    waiting: RefCell<VecDeque<(Transmit, Vec<u8>)>>,
    scratch: RefCell<Vec<u8>>,
    /// The buffer for received datagrams. Pages that no datagram has reached take no memory.
    receive_buffer: RefCell<Vec<u8>>,
    waker: RefCell<Option<Waker>>,
    accepts: OnceCell<Rc<dyn Accepts>>,
    most_connections: usize,
    /// The number of connections whose client's first address is not validated.
    unvalidated: Cell<usize>,
    /// The number of connection attempts that wait for their TLS configuration.
    attempts: Rc<Cell<usize>>,
    /// The number of connections that make room and have not ended.
    making_room: Cell<usize>,
    /// When [`Endpoint::make_room`] last found no idle connection, if it found none the last time.
    all_busy: Cell<Option<Instant>>,
    receive_window: u64,
    /// The number of connections so far.
    begun: Cell<u64>,
    /// The task's budget was spent before it had driven all marked connections.
    has_backlog: Cell<bool>,
    ending: Cell<bool>,
}

/// Lets the loop run the other ready tasks first, still in this turn.
async fn yield_in_turn() {
    let mut aside = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut aside, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Endpoint {
    /// An endpoint on this socket. It receives nothing before [`Endpoint::start`].
    ///
    /// # Errors
    ///
    /// The socket refuses an option that QUIC needs, or cannot be watched.
    pub fn new(
        handle: &Handle,
        fd: &Arc<OwnedFd>,
        settings: EndpointSettings,
    ) -> io::Result<Rc<Endpoint>> {
        let udp = socket::prepare(&**fd)?;
        let socket = Rc::new(handle.datagram_shared(fd.clone())?);
        let sender = handle.datagram_sender(fd.clone())?;
        let other = |_| io::Error::other("the cryptography of QUIC is missing");
        let EndpointSettings { host_key, place, .. } = &settings;
        let ids = IdKey::new(&host_key.derive(b"ids"), host_key.steering(settings.loops))
            .map_err(other)?;
        let initial = Initial::new(settings.limits()).map_err(io::Error::other)?;
        let base = server_config(&settings, &initial);
        let (key, at) = (ids.clone(), *place);
        let for_retry = Arc::new(AtomicBool::new(false));
        let retry = for_retry.clone();
        let reset = hmac::Key::new(hmac::HMAC_SHA256, &host_key.derive::<64>(b"resets"));
        let mut config = EndpointConfig::new(Arc::new(reset));
        // quinn's default has draft versions, too, but weir has no keys for them.
        config.supported_versions(Version::ALL.map(Version::number).to_vec());
        config.cid_generator(move || {
            Box::new(Ids { key: key.clone(), place: at, for_retry: retry.clone() })
        });
        let mut seed = [0; 32];
        handle.fill_random(&mut seed)?;
        let config = Arc::new(config);
        let hello_endpoint = HelloEndpoint::new(config.clone(), base.clone(), initial.clone());
        let inner =
            quinn_proto::Endpoint::new(config, Some(Arc::new(base.clone())), true, Some(seed));
        Ok(Rc::new(Endpoint {
            handle: handle.clone(),
            fd: fd.clone(),
            socket: RefCell::new(Some(socket)),
            shared: RefCell::default(),
            sender,
            udp,
            ids,
            for_retry,
            place: *place,
            inner: RefCell::new(inner),
            base,
            transports: Transports::new(&settings),
            initial,
            hello_endpoint: RefCell::new(hello_endpoint),
            connections: RefCell::default(),
            marked: RefCell::default(),
            dispatched: Cell::new(0),
            resumed: RefCell::default(),
            deadlines: RefCell::default(),
            waiting: RefCell::default(),
            scratch: RefCell::default(),
            receive_buffer: RefCell::new(vec![0; RECEIVE_BUFFER]),
            waker: RefCell::default(),
            accepts: OnceCell::new(),
            most_connections: settings.connections,
            unvalidated: Cell::new(0),
            attempts: Rc::default(),
            making_room: Cell::new(0),
            all_busy: Cell::new(None),
            receive_window: settings.window(),
            begun: Cell::new(0),
            has_backlog: Cell::new(false),
            ending: Cell::new(false),
        }))
    }

    /// Also receives Initial packets from this socket, which all loops share: see [`Endpoint::receive_first`].
    ///
    /// # Errors
    ///
    /// The socket refuses an option that QUIC needs.
    pub fn shares(&self, fd: &Arc<OwnedFd>) -> io::Result<()> {
        let udp = socket::prepare(&**fd)?;
        self.shared.replace(Some((Arc::clone(fd), udp)));
        Ok(())
    }

    /// Serves the socket from now on.
    pub fn start(self: &Rc<Self>, accepts: Rc<dyn Accepts>) {
        if self.accepts.set(accepts).is_ok() {
            self.handle.spawn(self.clone().run());
        }
    }

    /// Stops receiving from the sockets. Other loops receive instead, and pass packets on to [`Endpoint::deliver`].
    pub fn leave_socket(&self) {
        self.socket.take();
        self.shared.take();
        self.wake();
    }

    /// Receives from its own socket again, or still, until the last connection has ended. Stops receiving from the shared socket.
    ///
    /// # Errors
    ///
    /// The loop cannot register the socket again.
    pub fn keep_socket(&self) -> io::Result<()> {
        self.shared.take();
        if self.socket.borrow().is_none() {
            let socket = self.handle.datagram_shared(self.fd.clone())?;
            self.socket.replace(Some(Rc::new(socket)));
        }
        self.wake();
        Ok(())
    }

    /// The number of connections, with those in the closing and draining states.
    pub fn connections(&self) -> usize {
        self.connections.borrow().len()
    }

    pub(crate) fn now(&self) -> Instant {
        self.handle.now()
    }

    pub(crate) fn mark(&self, connection: &Rc<Connection>) {
        if !connection.forgotten.get() && !connection.marked.replace(true) {
            self.marked.borrow_mut().push_back(connection.clone());
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    async fn run(self: Rc<Self>) {
        loop {
            poll_fn(|cx| self.poll_work(cx)).await;
            if self.ending.get() && self.connections() == 0 {
                return;
            }
            // A backlog is driven before more datagrams are received.
            if !self.has_backlog.get() {
                self.receive();
                self.handle_timeouts();
                self.dispatched.set(0);
            }
            if self.dispatch_events() {
                yield_in_turn().await;
            }
            self.drive_marked();
            if self.mark_resumed() {
                yield_in_turn().await;
            }
        }
    }

    /// Ready when there is something to do.
    fn poll_work(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        drop(waker);
        let full = !self.waiting.borrow().is_empty();
        let now = self.now();
        let deadline = self.deadlines.borrow().first().map(|(at, _)| *at);
        let due = deadline.is_some_and(|at| at <= now);
        let marked = !full && !self.marked.borrow().is_empty();
        let over = self.ending.get() && self.connections() == 0;
        if (marked || due || over) && !is_spent() {
            return Poll::Ready(());
        }
        if full && self.sender.poll_writable(cx).is_ready() {
            return Poll::Ready(());
        }
        self.sender.set_deadline(deadline);
        if self.sender.poll_deadline(cx).is_ready() && !is_spent() {
            return Poll::Ready(());
        }
        if self.socket.borrow().as_ref().is_some_and(|socket| socket.poll_readable(cx).is_ready()) {
            return Poll::Ready(());
        }
        if is_spent() && (marked || due) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// The endpoint ends once its last connection has.
    pub fn end(&self) {
        self.ending.set(true);
        self.wake();
    }
}

impl Drop for Endpoint {
    /// A loop may end while connections are closing. Their reference cycles with the application protocol are broken here.
    fn drop(&mut self) {
        for connection in self.connections.take().into_values() {
            drop(connection.events.take());
        }
    }
}
