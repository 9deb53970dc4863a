//! A loop's socket for an address, and the task that drives all connections of it.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use aws_lc_rs::{hkdf, hmac, rand};
use bytes::BytesMut;
use quinn_proto::congestion::{BbrConfig, ControllerFactory, CubicConfig};
use quinn_proto::{
    ConnectionHandle, DatagramEvent, EcnCodepoint, EndpointConfig, Incoming, MtuDiscoveryConfig,
    ServerConfig, Transmit, TransportConfig, VarInt,
};
use quinn_udp::{RecvMeta, UdpSocketState};
use rustc_hash::FxHashMap;
use weir_engine::{Datagram, Handle, is_spent, spend};

use crate::connection::{Connection, Events};
use crate::crypto::{Chooser, Initial, OneSession};
use crate::ids::{IdKey, Ids, Place, destination};
use crate::packet::Packet;

/// Datagrams of one sender that the kernel may put together, and that are sent with one call.
const BATCH: usize = 65_535;
/// So many batches are received with one call.
const BATCHES: usize = 8;
/// So many datagrams are sent with one call: as many as the kernel takes in 64 KiB.
const SEGMENTS: usize = 40;
/// What a received datagram costs of the task's budget, and what one costs that is sent.
const DATAGRAM: u32 = 4;
/// What a look at a connection costs.
const LOOK: u32 = 1;
/// So many datagrams wait for room in the socket before connections have to.
const MOST_WAITING: usize = 64;

/// A secret that all workers of a server share, and keep over reloads: what ids, tokens and resets are made with.
#[derive(Clone)]
pub struct HostKey([u8; 32]);

impl HostKey {
    /// From a file's bytes, whatever their length.
    pub fn new(bytes: &[u8]) -> HostKey {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
        HostKey(hash.as_ref().first_chunk().copied().unwrap_or_default())
    }

    /// One that nobody knows.
    ///
    /// # Errors
    ///
    /// The system gives no randomness.
    pub fn random() -> io::Result<HostKey> {
        let mut key = [0; 32];
        rand::fill(&mut key).map_err(|_| io::Error::other("no randomness"))?;
        Ok(HostKey(key))
    }

    /// It, for another process.
    pub fn bytes(&self) -> [u8; 32] {
        self.0
    }

    /// A secret for one purpose.
    fn derive<const N: usize>(&self, purpose: &[u8]) -> [u8; N] {
        let key = hmac::Key::new(hmac::HMAC_SHA512, &self.0);
        let tag = hmac::sign(&key, purpose);
        let mut out = [0; N];
        for (to, from) in out.iter_mut().zip(tag.as_ref()) {
            *to = *from;
        }
        out
    }
}

impl From<[u8; 32]> for HostKey {
    fn from(bytes: [u8; 32]) -> HostKey {
        HostKey(bytes)
    }
}

impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostKey")
    }
}

/// What decides how fast a connection sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Loss says that the path is full. RFC 9438.
    #[default]
    Cubic,
    /// The path's rate and round-trip time are measured.
    Bbr,
}

/// What holds for all connections of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointSettings {
    /// The loop's place.
    pub place: Place,
    /// What tokens and ids are made with.
    pub host_key: HostKey,
    /// Any configuration of TLS.
    pub tls: Arc<weir_tls::ServerConfig>,
    /// A connection that is silent for so long is closed.
    pub idle_timeout: Duration,
    /// Streams for requests at once.
    pub streams: u64,
    /// What a client may send on a stream before it is read.
    pub stream_window: u64,
    /// Sends many datagrams with one call, where the kernel can.
    pub gso: bool,
    /// What decides how fast connections send.
    pub congestion: Congestion,
    /// Connections at once, and handshakes among them.
    pub connections: usize,
}

impl EndpointSettings {
    /// What a client may send on a connection before it is read.
    const fn window(&self) -> u64 {
        self.stream_window.saturating_mul(STREAMS_AT_ONCE)
    }
}

/// A connection that a client asks for.
#[derive(Debug, Clone, Copy)]
pub struct NewConnection {
    /// The client's address, which may be forged until `validated`.
    pub peer: SocketAddr,
    /// The address of this host that it was sent to, where the socket tells.
    pub local: Option<IpAddr>,
    /// The client has shown that it receives what is sent to this address.
    pub validated: bool,
}

/// Takes a connection that has begun, and hears of it from then on.
pub type Begin = Box<dyn FnOnce(&Rc<Connection>) -> Rc<dyn Events>>;

/// What is done with it.
pub enum Admission {
    /// It begins; the chooser gets the client's first message.
    Accept(Chooser, Begin),
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
    /// A client got no answer, since there are as many connections as there may be.
    fn ignored(&self) {}
    /// A packet belongs to the connection of another loop; nothing is done with it here.
    fn misplaced(&self, _: Place, _: &Packet<'_>) {}
}

/// A socket, with the connections that began there.
pub struct Endpoint {
    handle: Handle,
    socket: RefCell<Option<Rc<Datagram>>>,
    /// Sends, also after the socket is left to others.
    sender: Datagram,
    udp: UdpSocketState,
    ids: IdKey,
    place: Place,
    inner: RefCell<quinn_proto::Endpoint>,
    base: ServerConfig,
    initial: Initial,
    connections: RefCell<FxHashMap<ConnectionHandle, Rc<Connection>>>,
    marked: RefCell<VecDeque<Rc<Connection>>>,
    deadlines: RefCell<BTreeSet<(Instant, ConnectionHandle)>>,
    waiting: RefCell<VecDeque<(Transmit, Vec<u8>)>>,
    scratch: RefCell<Vec<u8>>,
    /// Where datagrams are received. Pages that nothing was received to cost nothing.
    room: RefCell<Vec<u8>>,
    waker: RefCell<Option<Waker>>,
    accepts: OnceCell<Rc<dyn Accepts>>,
    most: usize,
    window: u64,
    over: Cell<bool>,
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
        let udp = UdpSocketState::new((&**fd).into())?;
        let socket = Rc::new(handle.datagram_shared(fd.clone())?);
        let sender = handle.datagram_sender(fd.clone())?;
        let other = |_| io::Error::other("the cryptography of QUIC is missing");
        let EndpointSettings { host_key, place, .. } = &settings;
        let ids = IdKey::new(&host_key.derive(b"ids")).map_err(other)?;
        let initial = Initial::new(settings.tls.clone());
        let initial =
            initial.ok_or_else(|| io::Error::other("TLS_AES_128_GCM_SHA256 is missing"))?;
        let base = server_config(&settings, &initial);
        let (key, at) = (ids.clone(), *place);
        let reset = hmac::Key::new(hmac::HMAC_SHA256, &host_key.derive::<64>(b"resets"));
        let mut config = EndpointConfig::new(Arc::new(reset));
        config.cid_generator(move || Box::new(Ids { key: key.clone(), place: at }));
        let mut seed = [0; 32];
        rand::fill(&mut seed).map_err(other)?;
        let inner = quinn_proto::Endpoint::new(
            Arc::new(config),
            Some(Arc::new(base.clone())),
            true,
            Some(seed),
        );
        Ok(Rc::new(Endpoint {
            handle: handle.clone(),
            socket: RefCell::new(Some(socket)),
            sender,
            udp,
            ids,
            place: *place,
            inner: RefCell::new(inner),
            base,
            initial,
            connections: RefCell::default(),
            marked: RefCell::default(),
            deadlines: RefCell::default(),
            waiting: RefCell::default(),
            scratch: RefCell::default(),
            room: RefCell::new(vec![0; BATCH * BATCHES]),
            waker: RefCell::default(),
            accepts: OnceCell::new(),
            most: settings.connections,
            window: settings.window(),
            over: Cell::new(false),
        }))
    }

    /// Serves the socket from now on.
    pub fn start(self: &Rc<Self>, accepts: Rc<dyn Accepts>) {
        if self.accepts.set(accepts).is_ok() {
            self.handle.spawn(self.clone().run());
        }
    }

    /// Receives nothing more from the socket. Connections go on with what [`Endpoint::deliver`] brings.
    pub fn leave_socket(&self) {
        self.socket.take();
        self.wake();
    }

    /// How many connections there are, those included that are closed and still answer.
    pub fn connections(&self) -> usize {
        self.connections.borrow().len()
    }

    pub(crate) fn now(&self) -> Instant {
        self.handle.now()
    }

    pub(crate) fn mark(&self, connection: &Rc<Connection>) {
        if !connection.marked.replace(true) {
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
            self.receive();
            self.expire();
            self.work();
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

    /// Receives until nothing is there, or the task has done enough for this turn.
    fn receive(self: &Rc<Self>) {
        let Some(socket) = self.socket.borrow().clone() else { return };
        let mut room = self.room.take();
        room.resize(BATCH * BATCHES, 0);
        while !is_spent() {
            let mut metas = [RecvMeta::default(); BATCHES];
            let received = socket.try_receive(|fd| {
                let mut parts = room.chunks_mut(BATCH);
                let mut slices: [IoSliceMut<'_>; BATCHES] =
                    std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
                self.udp.recv((&fd).into(), &mut slices, &mut metas)
            });
            let n = match received {
                Ok(Some(n)) => n,
                // An error is an earlier datagram's: its receiver is gone.
                Ok(None) | Err(_) => break,
            };
            for (meta, part) in metas.iter().zip(room.chunks(BATCH)).take(n) {
                let bytes = part.get(..meta.len).unwrap_or(part);
                for packet in bytes.chunks(meta.stride.max(1)) {
                    let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
                    self.came(&Packet { from: meta.addr, to: meta.dst_ip, ecn, bytes: packet });
                }
            }
        }
        self.room.replace(room);
    }

    /// A packet that another loop has received for a connection of this one.
    pub fn deliver(self: &Rc<Self>, packet: &Packet<'_>) {
        self.take(packet);
        self.wake();
    }

    fn came(self: &Rc<Self>, packet: &Packet<'_>) {
        if let Some(place) = destination(packet.bytes).and_then(|id| self.ids.read(id))
            && place != self.place
            && let Some(accepts) = self.accepts.get()
        {
            return accepts.misplaced(place, packet);
        }
        self.take(packet);
    }

    fn take(self: &Rc<Self>, packet: &Packet<'_>) {
        spend(DATAGRAM);
        let Packet { from, to, ecn, bytes } = *packet;
        let (now, mut answer) = (self.now(), Vec::new());
        let ecn = EcnCodepoint::from_bits(ecn);
        let (len, bytes) = (bytes.len(), BytesMut::from(bytes));
        let event = self.inner.borrow_mut().handle(now, from, to, ecn, bytes, &mut answer);
        match event {
            None => {}
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let connection = self.connections.borrow().get(&handle).cloned();
                if let Some(connection) = connection {
                    connection.receives(from, len);
                    connection.inner.borrow_mut().handle_event(event);
                    connection.look_for_client(len);
                    self.mark(&connection);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.asked(incoming, len, &mut answer),
            Some(DatagramEvent::Response(transmit)) => self.say(transmit, answer),
        }
    }

    fn asked(self: &Rc<Self>, incoming: Incoming, len: usize, answer: &mut Vec<u8>) {
        let new = NewConnection {
            peer: incoming.remote_address(),
            local: incoming.local_ip(),
            validated: incoming.remote_address_validated(),
        };
        let Some(accepts) = self.accepts.get() else {
            return self.inner.borrow_mut().ignore(incoming);
        };
        let admission = match self.connections() < self.most {
            true => accepts.admit(&new),
            false => {
                accepts.ignored();
                Admission::Ignore
            }
        };
        let transmit = match admission {
            Admission::Accept(chooser, begin) => {
                let forged = (!new.validated).then_some(len);
                return self.accept(incoming, forged, chooser, begin, answer);
            }
            Admission::Retry => match self.inner.borrow_mut().retry(incoming, answer) {
                Ok(transmit) => transmit,
                Err(_) => return,
            },
            Admission::Refuse => self.inner.borrow_mut().refuse(incoming, answer),
            Admission::Ignore => return self.inner.borrow_mut().ignore(incoming),
        };
        self.say(transmit, std::mem::take(answer));
    }

    fn accept(
        self: &Rc<Self>,
        incoming: Incoming,
        forged: Option<usize>,
        chooser: Chooser,
        begin: Begin,
        answer: &mut Vec<u8>,
    ) {
        let (session, secure) = OneSession::new(self.initial.clone(), chooser);
        let mut config = self.base.clone();
        config.crypto = session;
        let config = Arc::new(config);
        let now = self.now();
        let accepted = self.inner.borrow_mut().accept(incoming, now, answer, Some(config));
        match accepted {
            Ok((handle, inner)) => {
                let connection = Connection::new(
                    Rc::downgrade(self),
                    handle,
                    inner,
                    secure,
                    self.window,
                    forged,
                );
                let connection = Rc::new(connection);
                self.connections.borrow_mut().insert(handle, connection.clone());
                let _ = connection.events.set(begin(&connection));
                self.mark(&connection);
            }
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.say(transmit, std::mem::take(answer));
                }
            }
        }
    }

    /// Tells connections whose time has come.
    fn expire(&self) {
        let now = self.now();
        loop {
            let first = self.deadlines.borrow().first().copied();
            let Some((_, handle)) = first.filter(|(at, _)| *at <= now) else { return };
            self.deadlines.borrow_mut().pop_first();
            let Some(connection) = self.connections.borrow().get(&handle).cloned() else {
                continue;
            };
            connection.deadline.set(None);
            connection.expire(now);
            self.mark(&connection);
        }
    }

    /// Lets connections that were touched say what they have to say.
    fn work(self: &Rc<Self>) {
        if !self.send_waiting() {
            return;
        }
        while !is_spent() {
            let Some(connection) = self.marked.borrow_mut().pop_front() else { return };
            connection.marked.set(false);
            if !self.drive(&connection) {
                self.mark(&connection);
                return;
            }
        }
    }

    /// False if the socket is full.
    fn drive(&self, connection: &Rc<Connection>) -> bool {
        // The clock stands still in a turn, and a deadline of pacing may be this very moment again and again.
        spend(LOOK);
        let handle = connection.handle;
        connection.dispatch();
        let mut sent = self.transmit(connection);
        connection.grow_window(SEND_WINDOW);
        while sent && connection.go_on() && !is_spent() {
            sent = self.transmit(connection);
        }
        // What it tells the endpoint may have an answer, and what it has sent may be the last.
        loop {
            let Some(event) = connection.inner.borrow_mut().poll_endpoint_events() else { break };
            let drained = event.is_drained();
            let answer = self.inner.borrow_mut().handle_event(handle, event);
            if let Some(answer) = answer {
                connection.inner.borrow_mut().handle_event(answer);
                self.mark(connection);
            }
            if drained {
                connection.dispatch();
                self.forget(connection);
                return sent;
            }
        }
        connection.dispatch();
        let next = connection.inner.borrow_mut().poll_timeout();
        let before = connection.deadline.replace(next);
        if before != next {
            let mut deadlines = self.deadlines.borrow_mut();
            if let Some(before) = before {
                deadlines.remove(&(before, handle));
            }
            if let Some(next) = next {
                deadlines.insert((next, handle));
            }
        }
        sent
    }

    fn forget(&self, connection: &Connection) {
        if let Some(before) = connection.deadline.take() {
            self.deadlines.borrow_mut().remove(&(before, connection.handle));
        }
        self.connections.borrow_mut().remove(&connection.handle);
        if self.over.get() {
            self.wake();
        }
    }

    fn transmit(&self, connection: &Connection) -> bool {
        let mut out = self.scratch.take();
        let most = self.udp.max_gso_segments().min(SEGMENTS);
        let done = loop {
            if !self.waiting.borrow().is_empty() {
                break false;
            }
            out.clear();
            let now = self.now();
            let transmit = connection.poll_transmit(now, most, &mut out);
            let Some(mut transmit) = transmit else { break true };
            transmit.size = connection.sends(&transmit);
            if transmit.size > 0 {
                self.send(transmit, &mut out);
            }
        };
        self.scratch.replace(out);
        done
    }

    /// Sends an answer that belongs to no connection; it is lost if the socket is full.
    fn say(&self, transmit: Transmit, mut bytes: Vec<u8>) {
        if self.waiting.borrow().len() < MOST_WAITING {
            self.send(transmit, &mut bytes);
        }
    }

    /// Sends it, or takes its bytes to be sent as soon as there is room.
    fn send(&self, transmit: Transmit, bytes: &mut Vec<u8>) {
        if !self.try_send(&transmit, bytes) {
            self.waiting.borrow_mut().push_back((transmit, std::mem::take(bytes)));
        }
    }

    /// False if the socket is full. What cannot be sent at all is lost: the protocol repeats it.
    fn try_send(&self, transmit: &Transmit, bytes: &[u8]) -> bool {
        spend(DATAGRAM);
        let ecn = transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8));
        let message = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn,
            contents: bytes.get(..transmit.size).unwrap_or(bytes),
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        !matches!(self.sender.try_send_by(|fd| self.udp.try_send((&fd).into(), &message)), Ok(None))
    }

    /// False if the socket is still full.
    fn send_waiting(&self) -> bool {
        loop {
            let Some((transmit, bytes)) = self.waiting.borrow_mut().pop_front() else {
                return true;
            };
            if !self.try_send(&transmit, &bytes) {
                self.waiting.borrow_mut().push_front((transmit, bytes));
                return false;
            }
        }
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

fn server_config(settings: &EndpointSettings, initial: &Initial) -> ServerConfig {
    let mut transport = TransportConfig::default();
    let varint = |n: u64| VarInt::from_u64(n).unwrap_or(VarInt::MAX);
    let idle = settings.idle_timeout.try_into().ok();
    transport.max_idle_timeout(idle);
    transport.max_concurrent_bidi_streams(varint(settings.streams));
    // Control, and the two of QPACK; some more for those that mean nothing.
    transport.max_concurrent_uni_streams(varint(UNI_STREAMS));
    transport.stream_receive_window(varint(settings.stream_window));
    transport.receive_window(varint(settings.window()));
    transport.send_window(SEND_WINDOW);
    let controller: Arc<dyn ControllerFactory + Send + Sync> = match settings.congestion {
        Congestion::Cubic => Arc::new(CubicConfig::default()),
        Congestion::Bbr => Arc::new(BbrConfig::default()),
    };
    transport.congestion_controller_factory(controller);
    transport.datagram_receive_buffer_size(None);
    transport.enable_segmentation_offload(settings.gso);
    transport.mtu_discovery_config(Some(MtuDiscoveryConfig::default()));
    let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]);
    let tokens = salt.extract(&settings.host_key.derive::<64>(b"tokens"));
    let crypto = initial.any();
    let mut config = ServerConfig::new(crypto, Arc::new(tokens));
    config.transport_config(Arc::new(transport));
    config.max_incoming(settings.connections.clamp(1, MOST_INCOMING));
    config.incoming_buffer_size(INCOMING).incoming_buffer_size_total(INCOMING * 256);
    config
}

/// Streams of the client's that carry no request.
const UNI_STREAMS: u64 = 16;
/// A connection's window is that of so many streams.
const STREAMS_AT_ONCE: u64 = 16;
/// What a connection takes at first to be sent; it grows with what the path holds: see [`Connection::grow_window`].
const SEND_WINDOW: u64 = 256 << 10;
/// Handshakes that have just begun.
const MOST_INCOMING: usize = 4096;
/// Early packets of one of them that are kept.
const INCOMING: u64 = 64 * 1024;
