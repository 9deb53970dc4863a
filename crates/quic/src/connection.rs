//! A connection, as the application protocol uses it.

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

/// Events of a connection, for the application protocol. All hooks default to nothing. Each may call the connection.
pub trait Events {
    /// TLS has processed the ClientHello: [`Connection::tls`] knows the application protocol.
    fn negotiated(&self) {}
    /// The handshake is complete.
    fn connected(&self) {}
    /// The client has opened streams: see [`Connection::accept`].
    fn opened(&self, _: Dir) {}
    /// A stream has received data, its end or a reset.
    fn readable(&self, _: StreamId) {}
    /// A stream that could not write may try again. [`Connection::write`] says if it is closed by now.
    fn writable(&self, _: StreamId) {}
    /// The client sent STOP_SENDING.
    fn stopped(&self, _: StreamId, _code: u64) {}
    /// The client has acknowledged all data of a stream, and its end.
    fn finished(&self, _: StreamId) {}
    /// The connection has ended: by a CONNECTION_CLOSE, a reset, a timeout, an error or a panic.
    fn lost(&self, _: &ConnectionError) {}
    /// Since when the connection is idle. `None` while it is not.
    fn idle_since(&self) -> Option<Instant> {
        None
    }
    /// The connection is idle and must close: the endpoint needs its place for new ones.
    fn make_room(&self) {}
}

/// The result of [`Connection::read`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The next bytes.
    Bytes(Bytes),
    /// No data yet: [`Events::readable`] follows.
    Wait,
    /// The end of the stream.
    End,
    /// The client sent RESET_STREAM with this code.
    Reset(u64),
    /// The stream is closed.
    Gone,
}

/// A stream takes no bytes any more: the client sent STOP_SENDING with this code, or (`None`) the stream is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamGone(pub Option<u64>);

/// A connection.
pub struct Connection {
    endpoint: Weak<Endpoint>,
    pub(crate) handle: ConnectionHandle,
    pub(crate) inner: RefCell<quinn_proto::Connection>,
    /// The application protocol. It also has a reference to this connection: [`Endpoint::forget`] breaks the cycle.
    pub(crate) events: RefCell<Option<Rc<dyn Events>>>,
    /// The endpoint has removed the connection.
    pub(crate) forgotten: Cell<bool>,
    /// [`Events::make_room`] was called.
    pub(crate) makes_room: Cell<bool>,
    /// The connection is in the endpoint's `marked` queue.
    pub(crate) marked: Cell<bool>,
    /// A packet was received since the endpoint last dispatched the connection's events.
    pub(crate) undispatched: Cell<bool>,
    /// quinn's next timeout.
    pub(crate) deadline: Cell<Option<Instant>>,
    /// The key of the connection in the endpoint's `deadlines`. It is never later than `deadline`.
    pub(crate) queued_deadline: Cell<Option<Instant>>,
    secure: Arc<Secure>,
    /// The client's first address is not validated yet (RFC 9000, section 8.1). The endpoint counts such connections.
    unvalidated: Cell<bool>,
    /// The client's first address, or the last one for which path validation succeeded.
    address: Cell<SocketAddr>,
    /// quinn's address of the client. It changes with the first non-probing packet from a new address, before path validation.
    latest: Cell<SocketAddr>,
    /// The anti-amplification limit of `latest`; `None` once that address is validated.
    path_limit: Cell<Option<AmplificationLimit>>,
    /// The limit of all unvalidated addresses together: bytes received from any address, bytes sent to other ones than `address`.
    total_limit: Cell<AmplificationLimit>,
    /// The connection's flow-control window: bytes that the client may send before they are read.
    receive_window: Cell<u64>,
    /// quinn's send window: bytes of streams that may be written and not acknowledged. 0 until it is set for the first time.
    send_window: Cell<u64>,
    /// Stream bytes that quinn has accepted.
    written: Cell<u64>,
    /// How many of them were sent, as of the last call of `estimate_sent`.
    sent: Cell<u64>,
    /// Streams that may not write until enough of the written bytes were sent.
    paused: RefCell<Vec<StreamId>>,
    /// The number of received ACK frames when the handshake was complete; `None` before.
    acks_at_handshake: Cell<Option<u64>>,
    /// How many of the next packets must not retransmit data: see [`Connection::handle_timeout`].
    probes: Cell<u8>,
}

/// The anti-amplification limit of an unvalidated address: RFC 9000, section 8.1. Both counts are bytes of datagrams.
#[derive(Debug, Clone, Copy)]
struct AmplificationLimit {
    received: u64,
    sent: u64,
}

impl AmplificationLimit {
    /// The number of bytes that may still be sent.
    fn remaining(self) -> u64 {
        (self.received * AMPLIFICATION).saturating_sub(self.sent)
    }
}

/// The ratio of the anti-amplification limit.
const AMPLIFICATION: u64 = 3;

/// The least overhead of a 1-RTT packet (RFC 9000, section 17.3.1) and of a STREAM frame (section 19.8).
const LEAST_PACKET: u64 = 1 + 1 + 16;
const LEAST_FRAME: u64 = 1 + 1;
/// Streams may write while at most so many stream bytes of the connection are unsent.
const AHEAD: u64 = 64 << 10;
/// The largest send window: 10 Gbit/s at a round-trip time of 12 ms, or 1 Gbit/s at 120 ms.
const LARGEST_SEND_WINDOW: u64 = 16 << 20;
/// quinn's priority of a stream whose data goes first. The default is 0.
const PRIORITIZED: i32 = 1;
/// Loss probes after a probe timeout: RFC 9002, section 6.2.4.
const PROBES: u8 = 2;

impl Connection {
    /// `unvalidated_len` is the length of the client's first datagram, or `None` if a token has validated its address.
    pub(crate) fn new(
        endpoint: Weak<Endpoint>,
        handle: ConnectionHandle,
        inner: quinn_proto::Connection,
        secure: Arc<Secure>,
        receive_window: u64,
        unvalidated_len: Option<usize>,
    ) -> Connection {
        let address = inner.remote_address();
        Connection {
            address: Cell::new(address),
            latest: Cell::new(address),
            endpoint,
            handle,
            inner: RefCell::new(inner),
            events: RefCell::default(),
            forgotten: Cell::new(false),
            makes_room: Cell::new(false),
            marked: Cell::new(false),
            undispatched: Cell::new(false),
            deadline: Cell::new(None),
            queued_deadline: Cell::new(None),
            secure,
            unvalidated: Cell::new(unvalidated_len.is_some()),
            path_limit: Cell::new(
                unvalidated_len.map(|len| AmplificationLimit { received: len as u64, sent: 0 }),
            ),
            total_limit: Cell::new(AmplificationLimit { received: 0, sent: 0 }),
            receive_window: Cell::new(receive_window),
            send_window: Cell::new(0),
            written: Cell::new(0),
            sent: Cell::new(0),
            paused: RefCell::default(),
            acks_at_handshake: Cell::new(None),
            probes: Cell::new(0),
        }
    }

    /// Handles quinn's timeout.
    ///
    /// If no ACK frame has come since the handshake, quinn's loss probes would retransmit the session tickets. The client mostly
    /// has them, and acknowledges them with its next packet. So these probes carry MAX_DATA instead.
    pub(crate) fn handle_timeout(&self, now: Instant) {
        self.inner.borrow_mut().handle_timeout(now);
        let acks = self.inner.borrow().stats().frame_rx.acks;
        if self.acks_at_handshake.get() == Some(acks) {
            self.probes.set(PROBES);
        }
    }

    /// The largest datagrams that the path is known to carry, in bytes.
    pub(crate) fn mtu(&self) -> usize {
        usize::from(self.inner.borrow().current_mtu()).max(1)
    }

    /// Writes the next packets for the client into `out`, up to `most` datagrams.
    pub(crate) fn poll_transmit(
        &self,
        now: Instant,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let mut inner = self.inner.borrow_mut();
        if self.probes.get() > 0 {
            // quinn retransmits data in a loss probe only if no other frame is pending. A window of one byte more makes MAX_DATA pending.
            self.probes.update(|probes| probes - 1);
            self.receive_window.update(|window| window + 1);
            inner.set_receive_window(varint(self.receive_window.get()));
        }
        if inner.is_closed() {
            release(inner.congestion_state());
        }
        inner.poll_transmit(now, most, out)
    }

    /// Sets quinn's send window to twice the congestion window, and to `least` at least. So the path does not run empty, and an
    /// answer is not made far ahead of a slow client. Written bytes are mostly still in the processor's caches when they are sent.
    pub(crate) fn adjust_send_window(&self, least: u64) {
        let mut inner = self.inner.borrow_mut();
        let wanted =
            inner.congestion_state().window().saturating_mul(2).clamp(least, LARGEST_SEND_WINDOW);
        let now = self.send_window.get().max(least);
        // Smaller changes are left out, so that the window does not change with each acknowledgement.
        if wanted > now.saturating_add(now / 4) || wanted < now / 4 {
            self.send_window.set(wanted);
            inner.set_send_window(wanted);
        }
    }

    /// Queues the connection for the endpoint's task.
    pub(crate) fn mark(self: &Rc<Self>) {
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.mark(self);
        }
    }

    fn now(&self) -> Instant {
        self.endpoint.upgrade().map_or_else(Instant::now, |endpoint| endpoint.now())
    }

    /// The client's address. During a migration it is the old one, until the new one is validated.
    pub fn peer(&self) -> SocketAddr {
        self.address.get()
    }

    /// The endpoint counts the connection as unvalidated.
    pub(crate) fn is_unvalidated(&self) -> bool {
        self.unvalidated.get()
    }

    /// Clears `unvalidated` if a packet of the client has validated its first address. True in that case.
    pub(crate) fn check_validated(&self) -> bool {
        let validated = self.secure.paths.is_validated();
        self.unvalidated.set(self.unvalidated.get() && !validated);
        validated
    }

    /// Counts a received datagram for the anti-amplification limits, before quinn decrypts it.
    pub(crate) fn count_received(&self, sender: SocketAddr, len: usize) {
        self.secure.paths.receiving(sender == self.latest.get());
        self.total_limit
            .update(|limit| AmplificationLimit { received: limit.received + len as u64, ..limit });
        if let Some(limit) = self.path_limit.get().filter(|_| sender == self.latest.get()) {
            let received = limit.received + len as u64;
            self.path_limit.set(Some(AmplificationLimit { received, ..limit }));
        }
    }

    /// Counts a transmit for the anti-amplification limits. Returns how many of its bytes may be sent: quinn exceeds the limit
    /// by up to a packet.
    pub(crate) fn limit_transmit(&self, transmit: &Transmit) -> usize {
        let to = transmit.destination;
        self.secure.paths.sent(to == self.latest.get());
        let size = self.sendable(transmit);
        if to != self.address.get() {
            self.total_limit
                .update(|limit| AmplificationLimit { sent: limit.sent + size as u64, ..limit });
        }
        size
    }

    fn sendable(&self, transmit: &Transmit) -> usize {
        let (to, size) = (transmit.destination, transmit.size);
        if to != self.latest.get() {
            // A packet for another path: it answers a probe there, or validates the previous path. The validated address has no limit.
            let may = to == self.address.get() || size as u64 <= self.total_limit.get().remaining();
            return if may { size } else { 0 };
        }
        let Some(limit) = self.path_limit.get() else { return size };
        if self.secure.paths.is_validated() && !self.secure.paths.is_migrating() {
            self.path_limit.set(None);
            return size;
        }
        let left = usize::try_from(limit.remaining()).unwrap_or(usize::MAX);
        let segment = transmit.segment_size.unwrap_or(size).max(1);
        let size = if size <= left { size } else { left / segment * segment };
        self.path_limit.set(Some(AmplificationLimit { sent: limit.sent + size as u64, ..limit }));
        size
    }

    /// Follows the client's migrations. Called after quinn has processed a datagram of this length.
    pub(crate) fn update_path(&self, len: usize) {
        let (now, paths) = (self.inner.borrow().remote_address(), &self.secure.paths);
        if now != self.latest.replace(now) {
            if now == self.address.get() {
                paths.end();
                self.path_limit.set(None);
            } else {
                paths.begin();
                // One full datagram may be sent to a new address, however little came from there: the PATH_CHALLENGE is padded.
                // A client that only receives would send nothing more. `total_limit` bounds these datagrams over all addresses.
                let one = u64::from(self.inner.borrow().current_mtu())
                    .min(self.total_limit.get().remaining());
                let received = (len as u64).max(one.div_ceil(AMPLIFICATION));
                self.path_limit.set(Some(AmplificationLimit { received, sent: 0 }));
            }
        } else if paths.new_address_is_validated() {
            self.address.set(now);
            paths.end();
            self.path_limit.set(None);
        }
    }

    /// The address of this host that the client sends to, if the socket reports it.
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.inner.borrow().local_ip()
    }

    /// Calls `look` with the negotiated TLS parameters. `None` before the ClientHello is complete.
    pub fn tls<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T> {
        self.secure.with(look)
    }

    #[cfg(test)]
    pub(crate) fn handshake_is_dropped(&self) -> bool {
        self.secure.handshake_is_dropped()
    }

    /// quinn's statistics of the connection.
    pub fn stats(&self) -> ConnectionStats {
        let inner = self.inner.borrow();
        let mut stats = inner.stats();
        // `release` makes the window of a closed connection huge. This is the controller's own window.
        stats.path.cwnd = inner.congestion_state().metrics().congestion_window;
        stats
    }

    /// The handshake is not complete.
    pub fn is_handshaking(&self) -> bool {
        self.inner.borrow().is_handshaking()
    }

    /// The connection was closed by either end.
    pub fn is_closed(&self) -> bool {
        self.inner.borrow().is_closed()
    }

    /// The next stream that the client has opened.
    pub fn accept(&self, dir: Dir) -> Option<StreamId> {
        self.inner.borrow_mut().streams().accept(dir)
    }

    /// Opens a stream. `None` at the client's limit of streams.
    pub fn open(&self, dir: Dir) -> Option<StreamId> {
        self.inner.borrow_mut().streams().open(dir)
    }

    /// Reads the next bytes of a stream, `most` at most.
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
            self.mark();
        }
        outcome
    }

    /// The client sent RESET_STREAM. True only once for a stream.
    pub fn was_reset(&self, id: StreamId) -> bool {
        matches!(self.inner.borrow_mut().recv_stream(id).received_reset(), Ok(Some(_)))
    }

    /// Whether few enough stream bytes are unsent for a stream to write. If not, [`Events::writable`] follows.
    pub fn may_write(self: &Rc<Self>, id: StreamId) -> bool {
        if id.dir() == Dir::Uni || !self.is_ahead(AHEAD) {
            return true;
        }
        let mut paused = self.paused.borrow_mut();
        if !paused.contains(&id) {
            paused.push(id);
        }
        drop(paused);
        self.mark();
        false
    }

    /// Writes from `parts` what the stream takes now, and leaves the rest in them. Returns the number of bytes. After 0,
    /// [`Events::writable`] follows.
    ///
    /// # Errors
    ///
    /// The stream is stopped or closed.
    pub fn write(self: &Rc<Self>, id: StreamId, parts: &mut [Bytes]) -> Result<usize, StreamGone> {
        if !self.may_write(id) {
            return Ok(0);
        }
        let written = self.inner.borrow_mut().send_stream(id).write_chunks(parts);
        match written {
            Ok(written) => {
                self.written.update(|all| all + written.bytes as u64);
                self.mark();
                Ok(written.bytes)
            }
            Err(WriteError::Blocked) => {
                self.mark();
                Ok(0)
            }
            Err(WriteError::Stopped(code)) => Err(StreamGone(Some(code.into_inner()))),
            Err(WriteError::ClosedStream) => Err(StreamGone(None)),
        }
    }

    /// More than `most` stream bytes are written and unsent. The limit keeps bytes in the processor's caches until they are sent.
    fn is_ahead(&self, most: u64) -> bool {
        let ahead = |sent: u64| self.written.get().saturating_sub(sent) > most;
        if !ahead(self.sent.get()) {
            return false;
        }
        let sent = self.estimate_sent();
        self.written.set(self.written.get().max(sent));
        ahead(sent)
    }

    /// An upper bound of the stream bytes that were sent. With a lower bound, a stream could be paused while nothing is unsent.
    fn estimate_sent(&self) -> u64 {
        // The real overhead is larger, and retransmissions count as sent bytes.
        let stats = self.inner.borrow().stats();
        let overhead = stats.udp_tx.datagrams * LEAST_PACKET + stats.frame_tx.stream * LEAST_FRAME;
        let sent = stats.udp_tx.bytes.saturating_sub(overhead);
        self.sent.set(sent);
        sent
    }

    /// Counts all written bytes as sent, after a stream was reset. quinn discards the unsent bytes of the stream, and does not
    /// report how many they were. The bytes of other streams are bounded by the send window.
    fn forget_unsent(&self) {
        self.written.set(self.estimate_sent());
    }

    /// Reports the paused streams as writable once at most `AHEAD` stream bytes are unsent. True if there were any.
    pub(crate) fn resume_paused(&self) -> bool {
        if self.paused.borrow().is_empty() || self.is_ahead(AHEAD) {
            return false;
        }
        let paused = self.paused.take();
        let events = self.events.borrow().clone();
        if let Some(events) = events {
            paused.into_iter().for_each(|id| events.writable(id));
        }
        true
    }

    /// Sends the data of this stream before that of other streams.
    pub fn prioritize(&self, id: StreamId) {
        // A closed stream has nothing to send.
        let _ = self.inner.borrow_mut().send_stream(id).set_priority(PRIORITIZED);
    }

    /// Ends a stream behind the data that was written.
    pub fn finish(self: &Rc<Self>, id: StreamId) {
        let _ = self.inner.borrow_mut().send_stream(id).finish();
        self.mark();
    }

    /// Sends RESET_STREAM. Unsent data of the stream is discarded.
    pub fn reset(self: &Rc<Self>, id: StreamId, code: u64) {
        let _ = self.inner.borrow_mut().send_stream(id).reset(varint(code));
        self.forget_unsent();
        self.mark();
    }

    /// Sends STOP_SENDING.
    pub fn stop(self: &Rc<Self>, id: StreamId, code: u64) {
        let _ = self.inner.borrow_mut().recv_stream(id).stop(varint(code));
        self.mark();
    }

    /// Sends a PING frame. Its acknowledgement keeps the idle timeout from closing the connection.
    pub fn ping(self: &Rc<Self>) {
        self.inner.borrow_mut().ping();
        self.mark();
    }

    /// Closes the connection with an application error code. No event follows.
    pub fn close(self: &Rc<Self>, code: u64, reason: &'static [u8]) {
        let now = self.now();
        self.inner.borrow_mut().close(now, varint(code), Bytes::from_static(reason));
        self.mark();
    }

    /// Passes quinn's events to the application protocol. False if there were none.
    pub(crate) fn dispatch_events(&self) -> bool {
        let mut any = false;
        loop {
            let Some(event) = self.inner.borrow_mut().poll() else { return any };
            any = true;
            let Some(events) = self.events.borrow().clone() else { continue };
            match event {
                Event::HandshakeDataReady => events.negotiated(),
                Event::Connected => {
                    self.acks_at_handshake.set(Some(self.stats().frame_rx.acks));
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
