//! A client's connection of HTTP/3.

mod end;
mod events;
mod own_streams;
mod requests;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use weir_log::Level;
use weir_metrics::Metric;
use weir_proto::http1::Composer;
use weir_proto::http3::ErrorCode;
use weir_proto::http3::qpack::{Decoder, FieldMemo};
use weir_quic::StreamId;

use self::end::GoawayState;
use super::control::Incoming;
use super::stream::{Stream, StreamError};
use crate::address::Address;
use crate::carrier::{Conn, Resting, Secure};
use crate::connection::presence::Presence;
use crate::event_loop::LoopState;
use crate::site::Server;
use crate::site::settings::LocationConf;

/// Received bytes beyond eight times those of field sections and bodies that make a flood. See [`Link::is_flooded`].
const FLOOD: u64 = 1 << 20;
/// SETTINGS_QPACK_MAX_TABLE_CAPACITY and SETTINGS_QPACK_BLOCKED_STREAMS. nginx: ngx_http_v3.h
const TABLE: usize = 4096;
const BLOCKED: usize = 16;

/// From so many bytes that QUIC has not accepted on, bodies are read in smaller pieces.
const HELD: usize = 256 << 10;
const SMALL_PIECE: usize = 4 << 10;

/// The server that the ClientHello names and the results of the handshake, once they are known.
pub type Found = Arc<Mutex<Option<Secure>>>;

/// The parameters of a new link.
pub struct Beginning {
    /// This loop's state.
    pub event_loop: Rc<LoopState>,
    /// The listening socket's number.
    pub listen: usize,
    /// The address of this host that the client sends to.
    pub local: Address,
    /// See [`Found`].
    pub found: Found,
    /// A socket whose peer is closed, since a [`Conn`] needs a socket.
    pub closed: Arc<OwnedFd>,
    /// Encoded fields of earlier answers of this loop.
    pub memo: Rc<RefCell<FieldMemo>>,
}

/// A connection.
pub struct Link {
    me: Weak<Link>,
    /// The QUIC connection.
    pub quic: Rc<weir_quic::Connection>,
    listen: usize,
    local: Address,
    default: Cell<&'static Server>,
    found: Found,
    closed: Arc<OwnedFd>,
    /// Encoded fields of earlier answers.
    pub memo: Rc<RefCell<FieldMemo>>,
    number: u64,
    started: Instant,
    presence: RefCell<Option<Presence>>,
    /// The connection as its requests share it. After a migration there is a new one, with the new address.
    conn: RefCell<Option<Rc<Conn>>>,
    streams: RefCell<FxHashMap<StreamId, Rc<Stream>>>,
    incoming: RefCell<FxHashMap<StreamId, Incoming>>,
    composer: RefCell<Composer>,
    decoder: RefCell<Decoder>,
    /// The server's control stream and QPACK decoder stream.
    own: Cell<Option<[StreamId; 2]>>,
    /// Bytes for each of them that QUIC has not accepted.
    unsent: RefCell<[Vec<Bytes>; 2]>,
    /// The handshake is complete.
    handshake_done: Cell<bool>,
    /// HTTP/0.9 was negotiated: there are no frames, and no unidirectional streams.
    hq: Cell<bool>,
    /// Requests may be served: the client's certificate is verified, or none is asked for.
    ready: Cell<bool>,
    /// The number of requests so far. The next request has four times this as its stream ID.
    requests: Cell<u64>,
    /// When a request last began or ended.
    active: Cell<Instant>,
    goaway: Cell<GoawayState>,
    /// The connection was closed by this end, or lost.
    over: Cell<bool>,
    /// Wakes [`Link::watch`] when the handshake or the connection ends.
    watcher: RefCell<Option<Waker>>,
    /// Since when there is no request, if there is none.
    idle: Cell<Instant>,
    /// Bytes of answers that QUIC has not accepted yet.
    held: Cell<usize>,
    /// Stream bytes received, and those of them in field sections and bodies.
    total: Cell<u64>,
    payload: Cell<u64>,
    /// `total` at the last check of [`Link::watch`].
    checked_total: Cell<u64>,
    /// Packets sent and lost that the metrics have counted.
    counted: Cell<(u64, u64)>,
    /// This loop's state with the newest site. It owns the site that `default` borrows from.
    event_loop: RefCell<Rc<LoopState>>,
}

impl Link {
    /// A link for a new QUIC connection.
    pub fn new(quic: Rc<weir_quic::Connection>, from: Beginning) -> Rc<Link> {
        let Beginning { event_loop, listen, local, found, closed, memo } = from;
        let event_loop = event_loop.newest();
        let default = event_loop.site.server(event_loop.site.default_at(listen, local.ip()));
        let now = event_loop.handle.now();
        event_loop.metrics.add(Metric::Accepted, 1);
        event_loop.metrics.add(Metric::Handled, 1);
        event_loop.metrics.add(Metric::QuicOpen, 1);
        let presence = Presence::begin(&event_loop);
        let number = event_loop.next_connection();
        let longest = default.conf.head_limits.line;
        let link = Rc::new_cyclic(|me| Link {
            me: me.clone(),
            quic,
            listen,
            local,
            default: Cell::new(default),
            found,
            closed,
            memo,
            number,
            started: now,
            presence: RefCell::new(Some(presence)),
            conn: RefCell::default(),
            streams: RefCell::default(),
            incoming: RefCell::default(),
            composer: RefCell::new(Composer::of_http3()),
            decoder: RefCell::new(Decoder::new(TABLE, BLOCKED).with_largest_field(longest)),
            own: Cell::new(None),
            unsent: RefCell::default(),
            handshake_done: Cell::new(false),
            hq: Cell::new(false),
            ready: Cell::new(false),
            requests: Cell::new(0),
            active: Cell::new(now),
            goaway: Cell::default(),
            over: Cell::new(false),
            watcher: RefCell::default(),
            idle: Cell::new(now),
            held: Cell::new(0),
            total: Cell::new(0),
            payload: Cell::new(0),
            checked_total: Cell::new(0),
            counted: Cell::default(),
            event_loop: RefCell::new(event_loop),
        });
        let known: Weak<Link> = link.me.clone();
        link.event_loop().register_link(number, known);
        link.event_loop().handle.spawn(Link::watch(link.me.clone()));
        link
    }

    /// The server that the client named in its handshake, or the default one.
    pub fn server(&self) -> &'static Server {
        let site = self.event_loop.borrow().site;
        let conn = self.conn.borrow();
        let secure = conn.as_ref().and_then(|conn| conn.tls.as_ref());
        let named = secure.filter(|secure| secure.site == site.number);
        named.map_or(self.default.get(), |secure| site.server(secure.server))
    }

    /// This loop's state with the newest site. A task must not hold it while it waits.
    pub fn event_loop(&self) -> Rc<LoopState> {
        self.event_loop.borrow().clone()
    }

    fn conf(&self) -> &'static LocationConf {
        let site = self.event_loop.borrow().site;
        &site.location(self.server().location).conf
    }

    /// HTTP/0.9 was negotiated.
    pub fn is_hq(&self) -> bool {
        self.hq.get()
    }

    /// The flow-control window of a stream.
    pub fn stream_window(&self) -> usize {
        usize::try_from(self.conf().core.http3.stream_buffer_size).unwrap_or(usize::MAX)
    }

    /// Updates `held`: a stream now has `now` bytes that QUIC has not accepted, and had `before`.
    pub fn update_held(&self, before: usize, now: usize) {
        self.held.set((self.held.get() + now).saturating_sub(before));
    }

    /// The size of the next piece of a body, `size` at most. It is small while many bytes are held, so that a client that reads
    /// nothing cannot fill memory with many answers.
    pub fn piece(&self, size: usize) -> usize {
        if self.held.get() < HELD { size } else { size.min(SMALL_PIECE) }
    }

    /// Writes to the connection's error log.
    pub fn log(&self, text: std::fmt::Arguments<'_>) {
        self.log_at(Level::Info, text);
    }

    fn log_at(&self, level: Level, text: std::fmt::Arguments<'_>) {
        let log = &self.conf().core.error_log;
        if log.enabled(level) {
            let peer = Address::Inet(self.quic.peer());
            let (client, local) = (peer.host(), &self.local);
            let doing = "while processing HTTP/3 connection";
            let text = format_args!("{text} {doing}, client: {client}, server: {local}");
            log.write(level, Some(self.number), text);
        }
    }

    /// The connection as its requests share it.
    ///
    /// # Errors
    ///
    /// The loop cannot register its socket.
    pub fn conn(&self) -> io::Result<Rc<Conn>> {
        let peer = Address::Inet(self.quic.peer());
        let mut kept = self.conn.borrow_mut();
        if let Some(conn) = kept.as_ref().filter(|conn| conn.peer == peer) {
            return Ok(conn.clone());
        }
        let resting = Resting::new(peer, self.listen, self.number, self.started);
        let stream = self.event_loop().handle.stream_in_place(self.closed.clone())?;
        let (quic, local) = (self.quic.clone(), self.local.clone());
        let mut conn = resting.over_quic(stream, quic, local);
        match kept.as_ref() {
            // The client has migrated.
            Some(before) => {
                self.event_loop().metrics.add(Metric::QuicMoved, 1);
                conn.tls = before.tls.clone();
                conn.requests.set(before.requests.get());
            }
            None => {
                let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
                conn.tls = found.take().map(Arc::new);
            }
        }
        Ok(kept.insert(Rc::new(conn)).clone())
    }

    /// Removes a stream that has ended.
    pub fn remove(&self, id: StreamId) {
        if self.streams.borrow_mut().remove(&id).is_none() {
            return;
        }
        self.active.set(self.event_loop().handle.now());
        if self.streams.borrow().is_empty() {
            self.idle.set(self.active.get());
            if self.goaway.get() == GoawayState::Final {
                self.event_loop().handle.spawn(Link::close_after_goaway(self.me.clone()));
            }
        }
    }

    /// Reads what has arrived on a stream.
    pub fn read_arrived(&self, id: StreamId) {
        let stream = self.streams.borrow().get(&id).cloned();
        if let Some(stream) = stream {
            stream.read_arrived();
        }
    }

    /// Closes the connection for an error of the client.
    pub fn connection_error(&self, error: &StreamError) {
        if !self.over.get() {
            self.log(format_args!("client sent {error}"));
            self.close(error.code());
        }
    }

    /// Counts received stream bytes, or bytes of field sections and bodies.
    pub fn count_received(&self, total: usize, payload: usize) {
        self.total.set(self.total.get() + total as u64);
        self.payload.set(self.payload.get() + payload as u64);
    }

    /// Closes the connection if nearly all received bytes are overhead. nginx: ngx_http_v3_check_flood.
    pub fn is_flooded(&self) -> bool {
        let flooded = self.total.get() / 8 > self.payload.get() + FLOOD;
        if flooded {
            self.close_for(ErrorCode::ExcessiveLoad, "floods the connection");
        }
        flooded
    }

    /// Sends Stream Cancellation for a stream that is not read to its end: RFC 9204, section 2.2.2.2.
    pub fn cancel_in_decoder(&self, id: StreamId) {
        self.decoder.borrow_mut().cancel(id.into());
        self.send_decoder_instructions();
    }

    fn close_for(&self, code: ErrorCode, text: &str) {
        if !self.over.get() {
            self.log(format_args!("client {text}"));
            self.close(code);
        }
    }
}
