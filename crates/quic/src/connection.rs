//! One connection, as the protocol above has it.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use quinn_proto::{
    ConnectionError, ConnectionHandle, ConnectionStats, Dir, Event, ReadError, StreamEvent,
    StreamId, Transmit, VarInt, WriteError,
};
use weir_tls::Negotiated;

use crate::congestion::release;
use crate::crypto::Secure;
use crate::endpoint::Endpoint;

/// What the protocol above hears of a connection. All hooks default to nothing; each may use the connection.
pub trait Events {
    /// Both ends have agreed on a protocol: it may be said what the server says first.
    fn negotiated(&self) {}
    /// The handshake is complete.
    fn connected(&self) {}
    /// The client has opened streams: see [`Connection::accept`].
    fn opened(&self, _: Dir) {}
    /// Something came on a stream, or its end.
    fn readable(&self, _: StreamId) {}
    /// A stream that was full takes more, or will take nothing any more.
    fn writable(&self, _: StreamId) {}
    /// The client wants no more of a stream.
    fn stopped(&self, _: StreamId, _code: u64) {}
    /// All of a stream was acknowledged.
    fn finished(&self, _: StreamId) {}
    /// The connection is no more.
    fn lost(&self, _: &ConnectionError) {}
    /// Since when nothing is under way on the connection; none while something is.
    fn idle_since(&self) -> Option<Instant> {
        None
    }
    /// The connection is to end, since others need its place.
    fn make_room(&self) {}
}

/// What reading a stream comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadOutcome {
    /// These bytes are the next.
    Bytes(Bytes),
    /// More must come.
    Wait,
    /// The client has ended the stream.
    End,
    /// The client has given it up, with this code.
    Reset(u64),
    /// There is no such stream any more.
    Gone,
}

/// A stream takes nothing: the client wants no more of it, with this code, or it is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamGone(pub Option<u64>);

/// A connection.
pub struct Connection {
    endpoint: Weak<Endpoint>,
    pub(crate) handle: ConnectionHandle,
    pub(crate) inner: RefCell<quinn_proto::Connection>,
    /// The protocol above, which has this connection as well: the endpoint takes it out when the connection has ended.
    pub(crate) events: RefCell<Option<Rc<dyn Events>>>,
    /// The endpoint has forgotten it.
    pub(crate) over: Cell<bool>,
    /// It was told to make room.
    pub(crate) makes_room: Cell<bool>,
    /// It stands among those that the endpoint looks at next.
    pub(crate) marked: Cell<bool>,
    /// A packet has come for it since the protocol above has heard of it.
    pub(crate) came: Cell<bool>,
    /// When quinn wants to be asked next.
    pub(crate) deadline: Cell<Option<Instant>>,
    /// When the endpoint looks at it: not later.
    pub(crate) listed: Cell<Option<Instant>>,
    secure: Arc<Secure>,
    /// The client has not shown yet that its first address is its own.
    unshown: Cell<bool>,
    /// The client's address, of which it has shown that it receives there.
    address: Cell<SocketAddr>,
    /// The address that its packets come from.
    latest: Cell<SocketAddr>,
    /// What may be sent to an address that may be forged; none where the client has shown that it is its own.
    budget: Cell<Option<Budget>>,
    /// What has come from anywhere, and what went to addresses where the client was not known to be.
    lent: Cell<Budget>,
    /// Bytes that the client may send unread.
    window: Cell<u64>,
    /// Bytes that may be taken to be sent, and were not acknowledged.
    send_window: Cell<u64>,
    /// Bytes that streams have written, and that had left when that was last looked at.
    written: Cell<u64>,
    left: Cell<u64>,
    /// Streams that wait until enough of what was written has left.
    held: RefCell<Vec<StreamId>>,
    /// ACK frames that had come when the handshake was complete; none before.
    acks_at_first: Cell<Option<u64>>,
    /// So many of the next packets are probes that carry nothing again.
    probes: Cell<u8>,
}

/// Bytes that came, and that went to where they came from. RFC 9000 section 8.1.
#[derive(Debug, Clone, Copy)]
struct Budget {
    received: u64,
    sent: u64,
}

impl Budget {
    /// So many bytes may still be sent.
    fn left(self) -> u64 {
        (self.received * AMPLIFICATION).saturating_sub(self.sent)
    }
}

/// So many times as much as came may be sent.
const AMPLIFICATION: u64 = 3;

/// The least that a packet needs beside its frames (RFC 9000 section 17.3.1), and a STREAM frame beside its data (section 19.8).
const LEAST_PACKET: u64 = 1 + 1 + 16;
const LEAST_FRAME: u64 = 1 + 1;
/// Bytes that are written ahead of what leaves.
const AHEAD: u64 = 64 << 10;
/// What a connection takes at most to be sent: 10 Gbit/s at a round-trip time of 12 ms, or 1 Gbit/s at 120 ms.
const MOST_UNSENT: u64 = 16 << 20;
/// The priority of a stream that goes before others: theirs is 0.
const HURRIED: i32 = 1;
/// Probes after a timeout. RFC 9002 section 6.2.4.
const PROBES: u8 = 2;

impl Connection {
    /// One whose first datagram, of this length, may have come from a `forged` address.
    pub(crate) fn new(
        endpoint: Weak<Endpoint>,
        handle: ConnectionHandle,
        inner: quinn_proto::Connection,
        secure: Arc<Secure>,
        window: u64,
        forged: Option<usize>,
    ) -> Connection {
        let address = inner.remote_address();
        Connection {
            address: Cell::new(address),
            latest: Cell::new(address),
            endpoint,
            handle,
            inner: RefCell::new(inner),
            events: RefCell::default(),
            over: Cell::new(false),
            makes_room: Cell::new(false),
            marked: Cell::new(false),
            came: Cell::new(false),
            deadline: Cell::new(None),
            listed: Cell::new(None),
            secure,
            unshown: Cell::new(forged.is_some()),
            budget: Cell::new(forged.map(|len| Budget { received: len as u64, sent: 0 })),
            lent: Cell::new(Budget { received: 0, sent: 0 }),
            window: Cell::new(window),
            send_window: Cell::new(0),
            written: Cell::new(0),
            left: Cell::new(0),
            held: RefCell::default(),
            acks_at_first: Cell::new(None),
            probes: Cell::new(0),
        }
    }

    /// Tells quinn that a deadline has passed.
    ///
    /// Until the client has acknowledged the first packet after the handshake, session tickets are what quinn would
    /// send again. A client that is silent for so short a time has mostly got them and says so with its next packet.
    pub(crate) fn expire(&self, now: Instant) {
        self.inner.borrow_mut().handle_timeout(now);
        let acks = self.inner.borrow().stats().frame_rx.acks;
        if self.acks_at_first.get() == Some(acks) {
            self.probes.set(PROBES);
        }
    }

    /// The longest datagrams that the path is known to carry.
    pub(crate) fn longest(&self) -> usize {
        usize::from(self.inner.borrow().current_mtu()).max(1)
    }

    /// The next packets for the client.
    pub(crate) fn poll_transmit(
        &self,
        now: Instant,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let mut inner = self.inner.borrow_mut();
        if self.probes.get() > 0 {
            // A probe takes a frame that waits before it takes one of a packet under way: a window of a byte more is one.
            self.probes.update(|probes| probes - 1);
            self.window.update(|window| window + 1);
            inner.set_receive_window(varint(self.window.get()));
        }
        if inner.is_closed() {
            release(inner.congestion_state());
        }
        inner.poll_transmit(now, most, out)
    }

    /// Takes more to be sent than the path holds, so that it is never empty, but not much more: what a slow client does not
    /// take is not made either. What is taken is still warm when it leaves.
    pub(crate) fn grow_window(&self, least: u64) {
        let mut inner = self.inner.borrow_mut();
        let wanted = inner.congestion_state().window().saturating_mul(2).clamp(least, MOST_UNSENT);
        let now = self.send_window.get().max(least);
        // In steps: each is a word to all streams.
        if wanted > now.saturating_add(now / 4) || wanted < now / 4 {
            self.send_window.set(wanted);
            inner.set_send_window(wanted);
        }
    }

    /// The endpoint's task looks at it next.
    pub(crate) fn touch(self: &Rc<Self>) {
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.mark(self);
        }
    }

    fn now(&self) -> Instant {
        self.endpoint.upgrade().map_or_else(Instant::now, |endpoint| endpoint.now())
    }

    /// The client's address. When it moves, the old one counts until it has shown that it receives at the new one.
    pub fn peer(&self) -> SocketAddr {
        self.address.get()
    }

    /// The endpoint counts it among those whose client may have forged its address.
    pub(crate) fn is_unshown(&self) -> bool {
        self.unshown.get()
    }

    /// The client has shown its address: it is not counted any more.
    pub(crate) fn has_shown(&self) -> bool {
        let shown = self.secure.paths.is_shown();
        self.unshown.set(self.unshown.get() && !shown);
        shown
    }

    /// A packet of this sender is for the connection.
    pub(crate) fn receives(&self, sender: SocketAddr, len: usize) {
        self.secure.paths.listen(sender == self.latest.get());
        self.lent.update(|lent| Budget { received: lent.received + len as u64, ..lent });
        if let Some(budget) = self.budget.get().filter(|_| sender == self.latest.get()) {
            let received = budget.received + len as u64;
            self.budget.set(Some(Budget { received, ..budget }));
        }
    }

    /// Packets were written for this destination. How many of these bytes may be sent: quinn goes up to a packet beyond what it may.
    pub(crate) fn sends(&self, transmit: &Transmit) -> usize {
        let to = transmit.destination;
        self.secure.paths.went(to == self.latest.get());
        let size = self.may_send(transmit);
        if to != self.address.get() {
            self.lent.update(|lent| Budget { sent: lent.sent + size as u64, ..lent });
        }
        size
    }

    fn may_send(&self, transmit: &Transmit) -> usize {
        let (to, size) = (transmit.destination, transmit.size);
        if to != self.latest.get() {
            // An answer to a client that looks whether another path carries its packets, unless the client was there.
            let may = to == self.address.get() || size as u64 <= self.lent.get().left();
            return if may { size } else { 0 };
        }
        let Some(budget) = self.budget.get() else { return size };
        if self.secure.paths.is_shown() && !self.secure.paths.is_on() {
            self.budget.set(None);
            return size;
        }
        let left = usize::try_from(budget.left()).unwrap_or(usize::MAX);
        let segment = transmit.segment_size.unwrap_or(size).max(1);
        let size = if size <= left { size } else { left / segment * segment };
        self.budget.set(Some(Budget { sent: budget.sent + size as u64, ..budget }));
        size
    }

    /// Looks where the client is, after a packet of this length was received.
    pub(crate) fn look_for_client(&self, len: usize) {
        let (now, paths) = (self.inner.borrow().remote_address(), &self.secure.paths);
        if now != self.latest.replace(now) {
            if now == self.address.get() {
                paths.end();
                self.budget.set(None);
            } else {
                paths.begin();
                // What asks the client for its address is one datagram, padded, or full where data goes with it. It is sent
                // however little has come from there, since a client that only receives has no other reason to send, but not
                // to more and more addresses: all of them together get three times what the client sends.
                let one = u64::from(self.inner.borrow().current_mtu()).min(self.lent.get().left());
                let received = (len as u64).max(one.div_ceil(AMPLIFICATION));
                self.budget.set(Some(Budget { received, sent: 0 }));
            }
        } else if paths.is_answered() {
            self.address.set(now);
            paths.end();
            self.budget.set(None);
        }
    }

    /// The address of this host that the client speaks to, where the socket tells.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.inner.borrow().local_ip()
    }

    /// What both ends have agreed on; none before the client's first message is whole.
    pub fn tls<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T> {
        self.secure.with(look)
    }

    /// Counts of packets, frames and losses, and the path's times.
    pub fn stats(&self) -> ConnectionStats {
        let inner = self.inner.borrow();
        let mut stats = inner.stats();
        // What a closed connection may send does not count: see `release`.
        stats.path.cwnd = inner.congestion_state().metrics().congestion_window;
        stats
    }

    /// The handshake is not complete.
    pub fn is_handshaking(&self) -> bool {
        self.inner.borrow().is_handshaking()
    }

    /// Closed by either end.
    pub fn is_closed(&self) -> bool {
        self.inner.borrow().is_closed()
    }

    /// The next stream that the client has opened.
    pub fn accept(&self, dir: Dir) -> Option<StreamId> {
        self.inner.borrow_mut().streams().accept(dir)
    }

    /// Opens a stream; none if the client permits no more.
    pub fn open(&self, dir: Dir) -> Option<StreamId> {
        self.inner.borrow_mut().streams().open(dir)
    }

    /// Reads what came next of a stream, `most` bytes at most.
    pub fn read(self: &Rc<Self>, id: StreamId, most: usize) -> ReadOutcome {
        let (outcome, transmit) = {
            let mut inner = self.inner.borrow_mut();
            let mut stream = inner.recv_stream(id);
            let Ok(mut chunks) = stream.read(true) else { return ReadOutcome::Gone };
            let outcome = match chunks.next(most) {
                Ok(Some(chunk)) => ReadOutcome::Bytes(chunk.bytes),
                Ok(None) => ReadOutcome::End,
                Err(ReadError::Blocked) => ReadOutcome::Wait,
                Err(ReadError::Reset(code)) => ReadOutcome::Reset(code.into_inner()),
            };
            (outcome, chunks.finalize().should_transmit())
        };
        if transmit {
            self.touch();
        }
        outcome
    }

    /// The client has given the stream up; said once.
    pub fn was_reset(&self, id: StreamId) -> bool {
        matches!(self.inner.borrow_mut().recv_stream(id).received_reset(), Ok(Some(_)))
    }

    /// Whether a stream may write now, as far as the connection is concerned. If not: see [`Events::writable`].
    pub fn takes(self: &Rc<Self>, id: StreamId) -> bool {
        if id.dir() == Dir::Uni || !self.is_ahead(AHEAD) {
            return true;
        }
        let mut held = self.held.borrow_mut();
        if !held.contains(&id) {
            held.push(id);
        }
        drop(held);
        self.touch();
        false
    }

    /// Takes of `parts` what the stream takes now; what is left stays in them. The number of bytes; 0: see
    /// [`Events::writable`].
    ///
    /// # Errors
    ///
    /// The stream takes nothing any more.
    pub fn write(self: &Rc<Self>, id: StreamId, parts: &mut [Bytes]) -> Result<usize, StreamGone> {
        if !self.takes(id) {
            return Ok(0);
        }
        let written = self.inner.borrow_mut().send_stream(id).write_chunks(parts);
        match written {
            Ok(written) => {
                self.written.update(|all| all + written.bytes as u64);
                self.touch();
                Ok(written.bytes)
            }
            Err(WriteError::Blocked) => {
                self.touch();
                Ok(0)
            }
            Err(WriteError::Stopped(code)) => Err(StreamGone(Some(code.into_inner()))),
            Err(WriteError::ClosedStream) => Err(StreamGone(None)),
        }
    }

    /// More than so many bytes were written and have not left. What is made just before it leaves is still in the
    /// processor's caches.
    fn is_ahead(&self, most: u64) -> bool {
        let ahead = |left: u64| self.written.get().saturating_sub(left) > most;
        if !ahead(self.left.get()) {
            return false;
        }
        let left = self.look_what_left();
        self.written.set(self.written.get().max(left));
        ahead(left)
    }

    /// The most that can have left of what streams have written: a stream is never held back while nothing waits to leave.
    fn look_what_left(&self) -> u64 {
        // Packets hold more beside the data than this, and some data again.
        let stats = self.inner.borrow().stats();
        let beside = stats.udp_tx.datagrams * LEAST_PACKET + stats.frame_tx.stream * LEAST_FRAME;
        let left = stats.udp_tx.bytes.saturating_sub(beside);
        self.left.set(left);
        left
    }

    /// A stream was given up. What has not left of it never will, and quinn does not tell how much that is: it counts as nothing, and so
    /// does what other streams have written. quinn has a limit for all of it.
    fn starts_anew(&self) {
        self.written.set(self.look_what_left());
    }

    /// Lets streams go on that were held back, once little is left of what was written. True if there were any.
    pub(crate) fn go_on(&self) -> bool {
        if self.held.borrow().is_empty() || self.is_ahead(AHEAD) {
            return false;
        }
        let held = self.held.take();
        let events = self.events.borrow().clone();
        if let Some(events) = events {
            held.into_iter().for_each(|id| events.writable(id));
        }
        true
    }

    /// What a stream has written, and will write, leaves before what others have written.
    pub fn hurry(&self, id: StreamId) {
        // A stream that is gone has nothing to send.
        let _ = self.inner.borrow_mut().send_stream(id).set_priority(HURRIED);
    }

    /// Nothing follows on a stream.
    pub fn finish(self: &Rc<Self>, id: StreamId) {
        let _ = self.inner.borrow_mut().send_stream(id).finish();
        self.touch();
    }

    /// Gives up what was to be sent on a stream.
    pub fn reset(self: &Rc<Self>, id: StreamId, code: u64) {
        let _ = self.inner.borrow_mut().send_stream(id).reset(varint(code));
        self.starts_anew();
        self.touch();
    }

    /// Wants no more of what comes on a stream.
    pub fn stop(self: &Rc<Self>, id: StreamId, code: u64) {
        let _ = self.inner.borrow_mut().recv_stream(id).stop(varint(code));
        self.touch();
    }

    /// Asks the client whether it is still there: one that is answers, and the connection is not idle.
    pub fn ping(self: &Rc<Self>) {
        self.inner.borrow_mut().ping();
        self.touch();
    }

    /// Closes the connection with a code of the protocol above. The client is told; no event follows.
    pub fn close(self: &Rc<Self>, code: u64, reason: &'static [u8]) {
        let now = self.now();
        self.inner.borrow_mut().close(now, varint(code), Bytes::from_static(reason));
        self.touch();
    }

    /// Tells the protocol above what has happened; false if nothing has.
    pub(crate) fn dispatch(&self) -> bool {
        let mut told = false;
        loop {
            let Some(event) = self.inner.borrow_mut().poll() else { return told };
            told = true;
            let Some(events) = self.events.borrow().clone() else { continue };
            match event {
                Event::HandshakeDataReady => events.negotiated(),
                Event::Connected => {
                    self.acks_at_first.set(Some(self.stats().frame_rx.acks));
                    events.connected();
                }
                Event::ConnectionLost { reason } => events.lost(&reason),
                Event::Stream(StreamEvent::Opened { dir }) => events.opened(dir),
                Event::Stream(StreamEvent::Readable { id }) => events.readable(id),
                Event::Stream(StreamEvent::Writable { id }) => events.writable(id),
                Event::Stream(StreamEvent::Finished { id }) => events.finished(id),
                Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                    events.stopped(id, error_code.into_inner());
                }
                Event::Stream(StreamEvent::Available { .. })
                | Event::DatagramReceived
                | Event::DatagramsUnblocked => {}
            }
        }
    }
}

fn varint(n: u64) -> VarInt {
    VarInt::from_u64(n).unwrap_or(VarInt::MAX)
}
