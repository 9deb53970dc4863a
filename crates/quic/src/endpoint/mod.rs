//! A loop's socket for an address, and the task that drives all connections of it.

mod drive;
mod receive;
mod room;
mod scout;
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

use self::receive::ROOM;
use self::scout::Scout;
pub use self::settings::{Congestion, EndpointSettings, HostKey};
use self::settings::{Transports, server_config};
use crate::connection::{Connection, Events};
use crate::crypto::{Asker, Chooser, Initial};
use crate::ids::{IdKey, Ids, Place};
use crate::packet::Packet;
use crate::version::Version;

/// What a received datagram costs of the task's budget, and what one costs that is sent.
const DATAGRAM: u32 = 4;

/// A connection that a client asks for.
#[derive(Debug, Clone, Copy)]
pub struct NewConnection {
    /// The client's address, which may be forged until `validated`.
    pub peer: SocketAddr,
    /// The address of this host that it was sent to, where the socket tells.
    pub local: Option<IpAddr>,
    /// The client has shown that it receives what is sent to this address.
    pub validated: bool,
    /// Many others have not shown it: they may be one flood from forged addresses.
    pub crowded: bool,
}

/// Takes a connection that has begun, and hears of it from then on.
pub type Begin = Box<dyn FnOnce(&Rc<Connection>) -> Rc<dyn Events>>;

/// What is done with it.
pub enum Admission {
    /// It begins; the chooser gets the client's first message.
    Accept(Chooser, Begin),
    /// It begins once the TLS is known for what the client says first, which may take time.
    Ask(Asker, Begin),
    /// The client is to come again and show that the address is its own.
    Retry,
    /// The client is told to go.
    Refuse,
    /// Nothing is said.
    Ignore,
}

/// The protocol above, as an endpoint knows it.
pub trait Accepts {
    /// A client wants a connection.
    fn admit(&self, new: &NewConnection) -> Admission;
    /// There are as many connections as there may be, and a client got no answer; or nearly as many, and those that were idle for
    /// longest `make_room`.
    fn full(&self, _connections: usize, _make_room: bool) {}
    /// The first message of a client at this address cannot be agreed on, for this reason.
    fn refused(&self, _peer: SocketAddr, _reason: &str) {}
    /// A packet belongs to the connection of another loop; nothing is done with it here.
    fn misplaced(&self, _: Place, _: &Packet<'_>) {}
    /// Which loop has the connection that a client has begun under an id of this number: the one that was asked first. None: the
    /// loop that asks.
    fn owner(&self, _first: u64) -> Option<Place> {
        None
    }
}

/// A socket, with the connections that began there.
pub struct Endpoint {
    handle: Handle,
    fd: Arc<OwnedFd>,
    /// None while others receive from it.
    socket: RefCell<Option<Rc<Datagram>>>,
    /// The socket that all loops take new connections from.
    shared: RefCell<Option<(Arc<OwnedFd>, UdpSocketState)>>,
    /// Sends, also after the socket is left to others.
    sender: Datagram,
    udp: UdpSocketState,
    ids: IdKey,
    for_retry: Arc<AtomicBool>,
    place: Place,
    inner: RefCell<quinn_proto::Endpoint>,
    base: ServerConfig,
    transports: Transports,
    initial: Initial,
    scout: RefCell<Scout>,
    connections: RefCell<FxHashMap<ConnectionHandle, Rc<Connection>>>,
    marked: RefCell<VecDeque<Rc<Connection>>>,
    /// Of so many of them, from the first on, the protocol above has heard what came: of all, and of those that
    /// are marked later, once it is `usize::MAX` or little less.
    heard: Cell<usize>,
    /// Connections that go on once their streams have written more.
    later: RefCell<Vec<Rc<Connection>>>,
    deadlines: RefCell<BTreeSet<(Instant, ConnectionHandle)>>,
    waiting: RefCell<VecDeque<(Transmit, Vec<u8>)>>,
    scratch: RefCell<Vec<u8>>,
    /// Where datagrams are received. Pages that nothing was received to cost nothing.
    room: RefCell<Vec<u8>>,
    waker: RefCell<Option<Waker>>,
    accepts: OnceCell<Rc<dyn Accepts>>,
    most: usize,
    /// Connections whose clients have not shown that their address is their own.
    unshown: Cell<usize>,
    /// Connections that were told to make room, and have not ended.
    making_room: Cell<usize>,
    /// When no connection was idle that could have made room.
    all_busy: Cell<Option<Instant>>,
    window: u64,
    /// Connections that have begun.
    begun: Cell<u64>,
    /// Connections that have something to say wait for the task's next turn.
    behind: Cell<bool>,
    over: Cell<bool>,
}

/// Lets tasks go first that are to run now.
async fn step_aside() {
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
    /// Takes a socket. Nothing is received before [`Endpoint::start`].
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
        // quinn offers drafts, too, whose packets have no keys here.
        config.supported_versions(Version::ALL.map(Version::number).to_vec());
        config.cid_generator(move || {
            Box::new(Ids { key: key.clone(), place: at, for_retry: retry.clone() })
        });
        let mut seed = [0; 32];
        handle.fill_random(&mut seed)?;
        let config = Arc::new(config);
        let scout = Scout::new(config.clone(), base.clone(), initial.clone());
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
            scout: RefCell::new(scout),
            connections: RefCell::default(),
            marked: RefCell::default(),
            heard: Cell::new(0),
            later: RefCell::default(),
            deadlines: RefCell::default(),
            waiting: RefCell::default(),
            scratch: RefCell::default(),
            room: RefCell::new(vec![0; ROOM]),
            waker: RefCell::default(),
            accepts: OnceCell::new(),
            most: settings.connections,
            unshown: Cell::new(0),
            making_room: Cell::new(0),
            all_busy: Cell::new(None),
            window: settings.window(),
            begun: Cell::new(0),
            behind: Cell::new(false),
            over: Cell::new(false),
        }))
    }

    /// Also takes first packets from this socket, which all loops share: see [`Endpoint::receive_first`].
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

    /// Receives nothing more from the socket: others do. Connections go on with what [`Endpoint::deliver`] brings.
    pub fn leave_socket(&self) {
        self.socket.take();
        self.shared.take();
        self.wake();
    }

    /// Receives for its connections until the last one has ended, also if others did so meanwhile. New ones do not come from the
    /// socket that loops share.
    ///
    /// # Errors
    ///
    /// The socket cannot be watched again.
    pub fn keep_socket(&self) -> io::Result<()> {
        self.shared.take();
        if self.socket.borrow().is_none() {
            let socket = self.handle.datagram_shared(self.fd.clone())?;
            self.socket.replace(Some(Rc::new(socket)));
        }
        self.wake();
        Ok(())
    }

    /// How many connections there are, those included that are closed and still answer.
    pub fn connections(&self) -> usize {
        self.connections.borrow().len()
    }

    pub(crate) fn now(&self) -> Instant {
        self.handle.now()
    }

    pub(crate) fn mark(&self, connection: &Rc<Connection>) {
        if !connection.over.get() && !connection.marked.replace(true) {
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
            if self.over.get() && self.connections() == 0 {
                return;
            }
            // What was cut short goes on before more comes.
            if !self.behind.get() {
                self.receive();
                self.expire();
                self.heard.set(0);
            }
            if self.hear() {
                step_aside().await;
            }
            self.work();
            if self.resume() {
                step_aside().await;
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
        let over = self.over.get() && self.connections() == 0;
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
        self.over.set(true);
        self.wake();
    }

    /// All connections.
    pub fn all(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().values().cloned().collect()
    }
}

impl Drop for Endpoint {
    /// A loop may end while connections still say their last. The protocol above has its connection, and the connection has it.
    fn drop(&mut self) {
        for connection in self.connections.take().into_values() {
            drop(connection.events.take());
        }
    }
}
