//! A connection of a client, as its streams see it.

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

use super::control::Incoming;
use super::stream::{Stream, StreamError};
use crate::address::Address;
use crate::carrier::{Conn, Resting, Secure};
use crate::connection::presence::Presence;
use crate::event_loop::LoopState;
use crate::site::Server;
use crate::site::settings::LocationConf;

/// Bytes that are no request's, beyond an eighth of what requests are, before a client is taken for a flood.
const FLOOD: u64 = 1 << 20;
/// How large a client may make its table of fields, and how many streams may wait for it. nginx: ngx_http_v3.h
const TABLE: usize = 4096;
const BLOCKED: usize = 16;

/// Once answers hold so many bytes that QUIC has not taken, they are made in smaller pieces.
const HELD: usize = 256 << 10;
const SMALL_PIECE: usize = 4 << 10;

/// What the handshake has shown, once the client has said whom it wants.
pub type Found = Arc<Mutex<Option<Secure>>>;

/// What a link begins with.
pub struct Beginning {
    /// This loop's state.
    pub event_loop: Rc<LoopState>,
    /// The listening socket's number.
    pub listen: usize,
    /// The address of this host that the client speaks to.
    pub local: Address,
    /// See [`Found`].
    pub found: Found,
    /// A socket that nothing can be said on.
    pub closed: Arc<OwnedFd>,
    /// Fields of answers, as this loop has written them.
    pub memo: Rc<RefCell<FieldMemo>>,
}

/// A connection.
pub struct Link {
    me: Weak<Link>,
    /// The connection below.
    pub quic: Rc<weir_quic::Connection>,
    listen: usize,
    local: Address,
    default: Cell<&'static Server>,
    found: Found,
    closed: Arc<OwnedFd>,
    /// Fields of answers, as they were written.
    pub memo: Rc<RefCell<FieldMemo>>,
    number: u64,
    started: Instant,
    presence: RefCell<Option<Presence>>,
    /// What requests share of it. A new one is made when the client moves to another address.
    conn: RefCell<Option<Rc<Conn>>>,
    streams: RefCell<FxHashMap<StreamId, Rc<Stream>>>,
    incoming: RefCell<FxHashMap<StreamId, Incoming>>,
    composer: RefCell<Composer>,
    decoder: RefCell<Decoder>,
    /// Our control stream, and that of our decoder.
    own: Cell<Option<[StreamId; 2]>>,
    /// What waits for room on them.
    unsaid: RefCell<[Vec<Bytes>; 2]>,
    /// The handshake is complete.
    shaken: Cell<bool>,
    /// HTTP/0.9 was agreed on: streams have no frames, and the connection none of its own.
    hq: Cell<bool>,
    /// Requests may be served: the client's certificate was judged, if it had to be.
    ready: Cell<bool>,
    /// Requests so far; the next one's stream has this number among the client's.
    requests: Cell<u64>,
    /// The client was told which request is the last.
    leaving: Cell<bool>,
    /// Closed by this end, or lost.
    over: Cell<bool>,
    /// Waits for the connection to be idle for too long: see [`Link::watch`].
    watcher: RefCell<Option<Waker>>,
    /// Since when there is no request.
    idle: Cell<Instant>,
    /// Bytes that answers have written, and QUIC has not taken.
    held: Cell<usize>,
    /// Bytes that the client has sent on streams, and those of them that are fields or bodies.
    total: Cell<u64>,
    payload: Cell<u64>,
    /// What `total` was when it was last looked at.
    heard: Cell<u64>,
    /// Packets sent and lost that were counted.
    counted: Cell<(u64, u64)>,
    /// This loop's state with the newest site, which owns what `default` borrows from.
    event_loop: RefCell<Rc<LoopState>>,
}

impl Link {
    /// Takes a connection that has begun.
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
            unsaid: RefCell::default(),
            shaken: Cell::new(false),
            hq: Cell::new(false),
            ready: Cell::new(false),
            requests: Cell::new(0),
            leaving: Cell::new(false),
            over: Cell::new(false),
            watcher: RefCell::default(),
            idle: Cell::new(now),
            held: Cell::new(0),
            total: Cell::new(0),
            payload: Cell::new(0),
            heard: Cell::new(0),
            counted: Cell::default(),
            event_loop: RefCell::new(event_loop),
        });
        let known: Weak<Link> = link.me.clone();
        link.event_loop().register_link(number, known);
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

    /// This loop's state with the newest site. What waits does not hold it meanwhile.
    pub fn event_loop(&self) -> Rc<LoopState> {
        self.event_loop.borrow().clone()
    }

    fn conf(&self) -> &'static LocationConf {
        let site = self.event_loop.borrow().site;
        &site.location(self.server().location).conf
    }

    /// HTTP/0.9 is spoken.
    pub fn is_hq(&self) -> bool {
        self.hq.get()
    }

    /// What a client may send on a stream before it is read.
    pub fn stream_window(&self) -> usize {
        usize::try_from(self.conf().core.http3.stream_buffer_size).unwrap_or(usize::MAX)
    }

    /// A stream holds so many bytes that QUIC has not taken, and held as many `before`.
    pub fn hold(&self, before: usize, now: usize) {
        self.held.set((self.held.get() + now).saturating_sub(before));
    }

    /// How much of a body of this piece size is made next: little once much is held, so that a client that takes nothing cannot
    /// fill memory with what many answers have made.
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

    /// What requests share of the connection.
    ///
    /// # Errors
    ///
    /// The loop has no room for it.
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
            // The client has moved.
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

    /// A stream is over.
    pub fn remove(&self, id: StreamId) {
        if self.streams.borrow_mut().remove(&id).is_some() && self.streams.borrow().is_empty() {
            self.idle.set(self.event_loop().handle.now());
            if self.leaving.get() {
                self.event_loop().handle.spawn(Link::close_later(self.me.clone()));
            }
        }
    }

    /// Goes on reading a stream.
    pub fn read_on(&self, id: StreamId) {
        let stream = self.streams.borrow().get(&id).cloned();
        if let Some(stream) = stream {
            stream.read_on();
        }
    }

    /// The client broke the protocol.
    pub fn broken(&self, error: &StreamError) {
        if !self.over.get() {
            self.log(format_args!("client sent {error}"));
            self.close(error.code());
        }
    }

    /// The client has sent so many bytes, or so many bytes of fields and bodies.
    pub fn counts(&self, total: usize, payload: usize) {
        self.total.set(self.total.get() + total as u64);
        self.payload.set(self.payload.get() + payload as u64);
    }

    /// The client sends little but what means nothing: the connection ends. nginx: ngx_http_v3_check_flood.
    pub fn is_flooded(&self) -> bool {
        let flooded = self.total.get() / 8 > self.payload.get() + FLOOD;
        if flooded {
            self.wrong(ErrorCode::ExcessiveLoad, "floods the connection");
        }
        flooded
    }

    /// Nothing more is read of a stream: the client's encoder need not wait for it.
    pub fn cancelled(&self, id: StreamId) {
        self.decoder.borrow_mut().cancel(id.into());
        self.acknowledge();
    }

    fn wrong(&self, code: ErrorCode, text: &str) {
        if !self.over.get() {
            self.log(format_args!("client {text}"));
            self.close(code);
        }
    }
}
