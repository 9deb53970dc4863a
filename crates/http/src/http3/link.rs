//! A connection of a client, as its streams see it.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use weir_engine::{spend, yield_now};
use weir_log::Level;
use weir_metrics::Metric;
use weir_proto::http1::{ComposeError, Composer, HeadDraft};
use weir_proto::http3::qpack::{Decoded, Decoder, FieldLimits};
use weir_proto::http3::{ControlPart, ErrorCode, FrameError, Settings, StreamType, frame};
use weir_quic::{ConnectionError, Dir, Events, ReadOutcome, StreamId};
use weir_ssl::ocsp::WaitingConnection;
use weir_ssl::server::Judged;

use super::control::{Incoming, Typed};
use super::request;
use super::stream::{Stream, StreamError};
use crate::address::Address;
use crate::carrier::{Conn, Resting, Secure};
use crate::connection::presence::Presence;
use crate::connection::streamed::Fields;
use crate::event_loop::{LoopState, OnRetire};
use crate::site::Server;
use crate::site::settings::LocationConf;

/// Read of a stream at once.
const READ: usize = 16 * 1024;
/// What a request costs of the task's budget, beside its fields.
const REQUEST: u32 = 32;
/// So many bytes of fields cost a point.
const FIELDS: usize = 4;
/// Bytes that are no request's, beyond an eighth of what requests are, before a client is taken for a flood.
const FLOOD: u64 = 1 << 20;
/// What is closed stays counted for so long: it has something to say to the client.
const LAST_WORD: Duration = Duration::from_millis(20);
/// A connection without a request is kept for so long at least: its next request may be on its way.
const SHORTEST_IDLE: Duration = Duration::from_secs(1);
/// What a client has sent before it knew that the connection ends arrives within so long.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// A client that was silent for so long while a request is under way is asked whether it is there.
const ASK_AFTER: Duration = Duration::from_secs(10);
/// How large a client may make its table of fields, and how many streams may wait for it. nginx: ngx_http_v3.h
const TABLE: usize = 4096;
const BLOCKED: usize = 16;

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
    /// The server of that address where the client names none.
    pub default: &'static Server,
    /// See [`Found`].
    pub found: Found,
    /// A socket that nothing can be said on.
    pub closed: Arc<OwnedFd>,
}

/// A connection.
pub struct Link {
    me: Weak<Link>,
    /// The connection below.
    pub quic: Rc<weir_quic::Connection>,
    /// This loop's state.
    pub event_loop: Rc<LoopState>,
    listen: usize,
    local: Address,
    default: &'static Server,
    found: Found,
    closed: Arc<OwnedFd>,
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
    /// Requests may be served: the client's certificate was judged, if it had to be.
    ready: Cell<bool>,
    /// Requests so far; the next one's stream has this number among the client's.
    requests: Cell<u64>,
    /// The client was told which request is the last.
    leaving: Cell<bool>,
    /// Closed by this end, or lost.
    over: Cell<bool>,
    /// Since when there is no request.
    idle: Cell<Instant>,
    /// Bytes that the client has sent on streams, and those of them that are fields or bodies.
    total: Cell<u64>,
    payload: Cell<u64>,
    /// What `total` was when it was last looked at.
    heard: Cell<u64>,
    /// Packets sent and lost that were counted.
    counted: Cell<(u64, u64)>,
}

impl Link {
    /// Takes a connection that has begun.
    pub fn new(quic: Rc<weir_quic::Connection>, from: Beginning) -> Rc<Link> {
        let Beginning { event_loop, listen, local, default, found, closed } = from;
        let now = event_loop.handle.now();
        event_loop.metrics.add(Metric::Accepted, 1);
        event_loop.metrics.add(Metric::Handled, 1);
        let presence = Presence::begin(&event_loop);
        let number = event_loop.next_connection();
        let longest = default.conf.head_limits.line;
        let link = Rc::new_cyclic(|me| Link {
            me: me.clone(),
            quic,
            listen,
            local,
            default,
            found,
            closed,
            number,
            started: now,
            presence: RefCell::new(Some(presence)),
            conn: RefCell::default(),
            streams: RefCell::default(),
            incoming: RefCell::default(),
            composer: RefCell::new(Composer::of_http3()),
            decoder: RefCell::new(Decoder::new(TABLE, BLOCKED).with_largest_field(longest)),
            own: Cell::new(None),
            ready: Cell::new(false),
            requests: Cell::new(0),
            leaving: Cell::new(false),
            over: Cell::new(false),
            idle: Cell::new(now),
            total: Cell::new(0),
            payload: Cell::new(0),
            heard: Cell::new(0),
            counted: Cell::default(),
            event_loop,
        });
        let known: Weak<Link> = link.me.clone();
        link.event_loop.register_link(number, known);
        link
    }

    /// The server that the client named in its handshake, or the default one.
    pub fn server(&self) -> &'static Server {
        let site = self.event_loop.site;
        let conn = self.conn.borrow();
        let secure = conn.as_ref().and_then(|conn| conn.tls.as_ref());
        let named = secure.filter(|secure| secure.site == site.number);
        named.map_or(self.default, |secure| site.server(secure.server))
    }

    fn conf(&self) -> &'static LocationConf {
        &self.event_loop.site.location(self.server().location).conf
    }

    /// What a client may send on a stream before it is read.
    pub fn stream_window(&self) -> usize {
        usize::try_from(self.conf().core.http3.stream_buffer_size).unwrap_or(usize::MAX)
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
        let stream = self.event_loop.handle.stream_in_place(self.closed.clone())?;
        let (quic, local) = (self.quic.clone(), self.local.clone());
        let mut conn = resting.over_quic(stream, quic, local);
        match kept.as_ref() {
            // The client has moved.
            Some(before) => {
                self.event_loop.metrics.add(Metric::QuicMoved, 1);
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
            self.idle.set(self.event_loop.handle.now());
            if self.leaving.get() {
                self.event_loop.handle.spawn(Link::close_later(self.me.clone()));
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

    /// Ends the connection; streams end with it. What was said before goes first.
    fn close(&self, code: ErrorCode) {
        if self.over.get() {
            return;
        }
        let reason: &[u8] = if code == ErrorCode::NoError { b"" } else { b"stream error" };
        self.end();
        let quic = self.quic.clone();
        self.event_loop.handle.spawn(async move {
            yield_now().await;
            quic.close(code as u64, reason);
        });
    }

    /// Adds the packets since the last time to the loop's counters.
    fn count_packets(&self) {
        let path = self.quic.stats().path;
        let now = (path.sent_packets, path.lost_packets);
        let before = self.counted.replace(now);
        let metrics = &self.event_loop.metrics;
        metrics.add(Metric::QuicSent, now.0.saturating_sub(before.0));
        metrics.add(Metric::QuicLost, now.1.saturating_sub(before.1));
    }

    /// The connection is no more.
    fn end(&self) {
        if self.over.replace(true) {
            return;
        }
        self.count_packets();
        let all: Vec<_> = self.streams.borrow().values().cloned().collect();
        for stream in all.iter().filter(|stream| !stream.has_begun()) {
            self.cancelled(stream.id);
        }
        all.iter().for_each(|stream| stream.fail());
        self.event_loop.unregister_link(self.number);
        if let Some(presence) = self.presence.take() {
            presence.quiet(&self.event_loop);
            let handle = self.event_loop.handle.clone();
            let sleep = handle.sleep(LAST_WORD);
            handle.spawn(async move {
                sleep.await;
                drop(presence);
            });
        }
    }

    /// Begins to end the connection. A client that has asked for nothing yet may be about to: it may ask once.
    fn depart(&self) {
        // A connection in its handshake begins with this once it has one.
        if self.own.get().is_none() || self.leaving.get() {
            return;
        }
        if self.requests.get() > 0 {
            return self.announce_last();
        }
        let (me, until) = (self.me.clone(), self.idle.get() + UNDER_WAY);
        let sleep = self.event_loop.handle.sleep_until(until);
        self.event_loop.handle.spawn(async move {
            sleep.await;
            if let Some(link) = me.upgrade() {
                link.announce_last();
            }
        });
    }

    /// What a client asks for before it knows which request was the last is refused, and not lost: it may ask again elsewhere.
    async fn close_later(link: Weak<Link>) {
        let Some(found) = link.upgrade() else { return };
        let sleep = found.event_loop.handle.sleep(UNDER_WAY);
        drop(found);
        sleep.await;
        if let Some(link) = link.upgrade().filter(|link| link.streams.borrow().is_empty()) {
            link.close(ErrorCode::NoError);
        }
    }

    /// Writes on one of our own streams. What they carry is little, and windows for it are large: what does not fit ends the
    /// connection.
    fn write_own(&self, which: usize, bytes: Vec<u8>) {
        let Some(id) = self.own.get().and_then(|own| own.get(which).copied()) else { return };
        let mut parts = [Bytes::from(bytes)];
        while parts.iter().any(|part| !part.is_empty()) {
            match self.quic.write(id, &mut parts) {
                Ok(0) => return self.close(ErrorCode::ExcessiveLoad),
                Ok(_) => {}
                Err(_) => {
                    let text = "stopped a stream of the connection";
                    return self.wrong(ErrorCode::ClosedCriticalStream, text);
                }
            }
        }
    }

    /// Opens our own streams, and says our settings.
    fn greet(&self) {
        if self.own.get().is_some() || self.over.get() {
            return;
        }
        let (Some(control), Some(decoder)) = (self.quic.open(Dir::Uni), self.quic.open(Dir::Uni))
        else {
            return self.wrong(ErrorCode::StreamCreation, "permits no streams of the connection");
        };
        self.own.set(Some([control, decoder]));
        let mut out = Vec::new();
        frame::write_stream_type(StreamType::Control, &mut out);
        let settings = Settings {
            qpack_table: TABLE as u64,
            qpack_blocked: BLOCKED as u64,
            ..Settings::default()
        };
        settings.write(&mut out);
        self.write_own(0, out);
        let mut out = Vec::new();
        frame::write_stream_type(StreamType::QpackDecoder, &mut out);
        self.write_own(1, out);
    }

    /// The client's certificate, if it had to show one, was judged.
    fn judge(&self) {
        let context = {
            let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.as_ref().and_then(|secure| secure.shown.context)
        };
        let judged =
            context.and_then(|context| self.quic.tls(|tls| context.look_at(tls)).flatten());
        match (context, judged) {
            (Some(context), Some(Ok(path))) if context.ocsp.is_some() => {
                let Some(link) = self.me.upgrade() else { return };
                let event_loop = self.event_loop.clone();
                self.event_loop.handle.spawn(async move {
                    let waiting = WaitingConnection {
                        handle: &event_loop.handle,
                        log: &link.conf().core.error_log,
                        number: link.number,
                        until: event_loop.handle.now() + link.default.conf.client_header_timeout,
                    };
                    let fault = context.ask(Some(Ok(path)), waiting).await;
                    link.judged(fault);
                });
            }
            (_, Some(judged @ Err(_))) => self.judged(Judged::err(judged)),
            _ => self.judged(None),
        }
    }

    fn judged(&self, fault: Option<weir_tls::x509::VerifyError>) {
        {
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(secure) = found.as_mut() {
                secure.shown.fault = fault;
            }
        }
        self.ready.set(true);
        self.accept();
    }

    /// Takes the streams that the client has opened.
    fn accept(&self) {
        if !self.ready.get() {
            return;
        }
        while let Some(id) = self.quic.accept(Dir::Bi) {
            let Some(link) = self.me.upgrade() else { return };
            // What requests share must be there before the first.
            if self.conn().is_err() {
                self.close(ErrorCode::Internal);
            }
            if self.over.get() {
                return;
            }
            if self.leaving.get() {
                self.quic.stop(id, ErrorCode::RequestRejected as u64);
                self.quic.reset(id, ErrorCode::RequestRejected as u64);
                continue;
            }
            self.count_request();
            let stream = Stream::new(link, id);
            self.streams.borrow_mut().insert(id, stream.clone());
            stream.read_on();
            if !stream.has_begun() && !stream.is_gone() {
                self.expect_head(stream);
            }
        }
    }

    /// `keepalive_requests` and `keepalive_time`: the client is told which request is the last.
    fn count_request(&self) {
        self.requests.set(self.requests.get() + 1);
        let core = &self.conf().core;
        let age = self.event_loop.handle.now().saturating_duration_since(self.started);
        if core.keepalive_timeout.is_zero()
            || self.requests.get() >= core.keepalive_requests
            || age > core.keepalive_time
            || self.event_loop.retiring()
        {
            self.announce_last();
        }
    }

    /// Tells the client that the latest request is the last. RFC 9114, section 5.2.
    fn announce_last(&self) {
        if self.over.get() || self.leaving.replace(true) {
            return;
        }
        let mut out = Vec::new();
        frame::write_goaway(self.requests.get() * 4, &mut out);
        self.write_own(0, out);
        if self.streams.borrow().is_empty() {
            self.event_loop.handle.spawn(Link::close_later(self.me.clone()));
        }
    }

    /// A head must come within `client_header_timeout`.
    fn expect_head(&self, stream: Rc<Stream>) {
        let timeout = self.server().conf.client_header_timeout;
        let sleep = self.event_loop.handle.sleep(timeout);
        self.event_loop.handle.spawn(async move {
            sleep.await;
            if !stream.has_begun() && !stream.is_gone() {
                stream.link.log(format_args!("{}", crate::carrier::TIMED_OUT));
                stream.reset(ErrorCode::RequestIncomplete);
            }
        });
    }

    /// A head has come in whole. False if it refers to what has not come yet.
    pub fn head(&self, stream: &Rc<Stream>, section: &[u8]) -> Result<bool, StreamError> {
        spend(REQUEST + (section.len() / FIELDS) as u32);
        let limits = &self.server().conf.head_limits;
        let sizes = FieldLimits { field: limits.line, block: limits.total };
        let mut scratch = self.event_loop.take_scratch();
        let (parser, buf) = scratch.head();
        let mut draft = HeadDraft { limits, parser, buf };
        let mut composer = self.composer.borrow_mut();
        let decoded =
            self.decoder.borrow_mut().decode(stream.id.into(), section, sizes, |name, value| {
                composer.field(name, value, &mut draft)
            });
        match decoded {
            Ok(Decoded::Whole | Decoded::TooLarge) => {}
            Ok(Decoded::Blocked(_)) => {
                self.event_loop.give_scratch(scratch);
                return Ok(false);
            }
            Err(error) => {
                self.event_loop.give_scratch(scratch);
                return Err(StreamError::Fields(error));
            }
        }
        let ended = stream.sees_end();
        let verdict = match composer.finish(ended, &mut draft) {
            Ok(()) if decoded == Ok(Decoded::TooLarge) => Err(ComposeError::TooLarge),
            verdict => verdict,
        };
        drop(composer);
        let announced = draft.parser.head().content_length.filter(|_| verdict.is_ok());
        stream.begin(announced);
        self.acknowledge();
        let len = section.len() as u64;
        request::start(stream.clone(), Fields { scratch, verdict, len, ended });
        Ok(true)
    }

    /// The client gave a request up before its head could be read.
    pub fn cut(&self, stream: &Rc<Stream>) {
        let limits = &self.server().conf.head_limits;
        let mut scratch = self.event_loop.take_scratch();
        let (parser, buf) = scratch.head();
        let _ = self.composer.borrow_mut().finish(true, &mut HeadDraft { limits, parser, buf });
        stream.begin(None);
        let verdict = Err(ComposeError::Cut);
        request::start(stream.clone(), Fields { scratch, verdict, len: 0, ended: true });
    }

    /// Trailers have come in whole. Only their form is of interest.
    pub fn trailers(&self, stream: &Rc<Stream>, section: &[u8]) -> Result<bool, StreamError> {
        let limits = &self.server().conf.head_limits;
        let sizes = FieldLimits { field: limits.line, block: limits.total };
        let mut pseudo = false;
        let decoded =
            self.decoder.borrow_mut().decode(stream.id.into(), section, sizes, |name, _| {
                pseudo |= name.starts_with(b":");
            });
        match decoded {
            Ok(Decoded::Whole) => {}
            Ok(Decoded::Blocked(_)) => return Ok(false),
            Ok(Decoded::TooLarge) => {
                self.acknowledge();
                self.too_large(stream);
                return Ok(true);
            }
            Err(error) => return Err(StreamError::Fields(error)),
        }
        self.acknowledge();
        if pseudo {
            self.log(format_args!("client sent pseudo-header fields behind a body"));
            stream.reset(ErrorCode::Message);
        }
        Ok(true)
    }

    /// A section is larger than `large_client_header_buffers` permit.
    pub fn too_large(&self, stream: &Stream) {
        self.log(format_args!("client sent too large header"));
        stream.reset(ErrorCode::ExcessiveLoad);
    }

    /// Sends what our decoder has to say.
    fn acknowledge(&self) {
        let mut out = Vec::new();
        self.decoder.borrow_mut().write_feedback(&mut out);
        if !out.is_empty() {
            self.write_own(1, out);
        }
    }

    /// Reads what came on a stream in one direction.
    fn read_incoming(&self, id: StreamId) {
        loop {
            if self.over.get() {
                return;
            }
            let bytes = match self.quic.read(id, READ) {
                ReadOutcome::Bytes(bytes) => bytes,
                ReadOutcome::Wait => return,
                ReadOutcome::End | ReadOutcome::Reset(_) | ReadOutcome::Gone => {
                    let ended = self.incoming.borrow_mut().remove(&id);
                    if matches!(
                        ended,
                        Some(Incoming::Control(_) | Incoming::Encoder | Incoming::Decoder(_))
                    ) {
                        let text = "closed a stream of the connection";
                        self.wrong(ErrorCode::ClosedCriticalStream, text);
                    }
                    return;
                }
            };
            self.counts(bytes.len(), 0);
            if let Err(error) = self.understand(id, bytes) {
                return self.broken(&error);
            }
            if self.is_flooded() {
                return;
            }
        }
    }

    fn understand(&self, id: StreamId, bytes: Bytes) -> Result<(), StreamError> {
        let mut all = self.incoming.borrow_mut();
        let Some(incoming) = all.get_mut(&id) else { return Ok(()) };
        let mut bytes = bytes;
        if let Incoming::Untyped(number) = incoming {
            match Incoming::read_type(number, bytes) {
                Typed::More => return Ok(()),
                Typed::Is(kind, rest) => {
                    bytes = rest;
                    drop(all);
                    if !self.typed(id, kind) {
                        return Ok(());
                    }
                    all = self.incoming.borrow_mut();
                }
            }
        }
        let Some(incoming) = all.get_mut(&id) else { return Ok(()) };
        match incoming {
            Incoming::Control(frames) => {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (taken, part) = frames.read(rest).map_err(StreamError::Frame)?;
                    rest = rest.get(taken..).unwrap_or_default();
                    if let ControlPart::Goaway(_) = part {
                        // The client takes no pushes, of which there are none.
                    }
                }
                Ok(())
            }
            Incoming::Encoder => {
                drop(all);
                self.decoder.borrow_mut().read_encoder(&bytes).map_err(StreamError::Fields)?;
                self.acknowledge();
                loop {
                    let next = self.decoder.borrow_mut().next_unblocked();
                    let Some(next) = next else { return Ok(()) };
                    let streams = self.streams.borrow();
                    let stream = streams.values().find(|stream| u64::from(stream.id) == next);
                    let stream = stream.cloned();
                    drop(streams);
                    stream.iter().for_each(Stream::unblock);
                }
            }
            Incoming::Decoder(feedback) => feedback.read(&bytes).map_err(StreamError::Fields),
            Incoming::Other | Incoming::Untyped(_) => Ok(()),
        }
    }

    /// A stream in one direction has said what it is. False if it is not wanted.
    fn typed(&self, id: StreamId, kind: StreamType) -> bool {
        let new = Incoming::of(kind);
        let twice = match &new {
            Incoming::Other | Incoming::Untyped(_) => false,
            new => {
                let same =
                    |old: &Incoming| std::mem::discriminant(old) == std::mem::discriminant(new);
                self.incoming.borrow().values().any(same)
            }
        };
        if twice || kind == StreamType::Push {
            let text =
                if twice { "opened a stream of the connection twice" } else { "sent a push" };
            self.wrong(ErrorCode::StreamCreation, text);
            return false;
        }
        let wanted = !matches!(new, Incoming::Other);
        if !wanted {
            self.quic.stop(id, ErrorCode::StreamCreation as u64);
        }
        self.incoming.borrow_mut().insert(id, new);
        wanted
    }

    /// Closes the connection once it has had no request for `keepalive_timeout`. While a request is under way that neither
    /// end has anything to say of, the client is asked whether it is still there.
    async fn watch(link: Weak<Link>) {
        loop {
            let sleep = {
                let Some(link) = link.upgrade().filter(|link| !link.over.get()) else { return };
                link.count_packets();
                let now = link.event_loop.handle.now();
                let until = if link.streams.borrow().is_empty() {
                    let timeout = link.conf().core.keepalive_timeout.max(SHORTEST_IDLE);
                    let until = link.idle.get() + timeout;
                    if until <= now {
                        return link.close(ErrorCode::NoError);
                    }
                    until
                } else {
                    if link.total.get() == link.heard.replace(link.total.get()) {
                        link.quic.ping();
                    }
                    now + ASK_AFTER
                };
                link.event_loop.handle.sleep_until(until)
            };
            sleep.await;
        }
    }
}

impl OnRetire for Link {
    fn retiring(&self) {
        self.depart();
    }
}

impl Events for Link {
    fn negotiated(&self) {
        let context = {
            let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.as_ref().and_then(|secure| secure.shown.context)
        };
        if context.is_some_and(|context| !context.asks_client()) {
            self.ready.set(true);
        }
    }

    fn connected(&self) {
        let metrics = &self.event_loop.metrics;
        metrics.add(Metric::TlsHandshakes, 1);
        metrics.add(Metric::QuicConnections, 1);
        let resumed = self.quic.tls(|tls| tls.is_resumed()).unwrap_or_default();
        metrics.add(Metric::TlsResumed, resumed.into());
        if let Some(presence) = &*self.presence.borrow() {
            presence.quiet(&self.event_loop);
        }
        self.greet();
        self.idle.set(self.event_loop.handle.now());
        if self.event_loop.retiring() {
            self.depart();
        }
        if self.ready.get() {
            self.accept();
        } else {
            self.judge();
        }
        self.event_loop.handle.spawn(Link::watch(self.me.clone()));
    }

    fn opened(&self, dir: Dir) {
        match dir {
            Dir::Bi => self.accept(),
            Dir::Uni => {
                while let Some(id) = self.quic.accept(Dir::Uni) {
                    self.incoming.borrow_mut().insert(id, Incoming::new());
                    self.read_incoming(id);
                }
            }
        }
    }

    fn readable(&self, id: StreamId) {
        match id.dir() {
            Dir::Bi => self.read_on(id),
            Dir::Uni => self.read_incoming(id),
        }
    }

    fn writable(&self, id: StreamId) {
        let stream = self.streams.borrow().get(&id).cloned();
        if let Some(stream) = stream {
            stream.writable();
        }
    }

    fn finished(&self, id: StreamId) {
        self.remove(id);
    }

    fn stopped(&self, id: StreamId, _: u64) {
        let stream = self.streams.borrow().get(&id).cloned();
        match stream {
            Some(stream) => stream.stopped(),
            None if self.own.get().is_some_and(|own| own.contains(&id)) => {
                let text = "stopped a stream of the connection";
                self.wrong(ErrorCode::ClosedCriticalStream, text);
            }
            None => self.quic.reset(id, ErrorCode::RequestCancelled as u64),
        }
    }

    fn lost(&self, why: &ConnectionError) {
        let was_shaken = self.own.get().is_some();
        match why {
            ConnectionError::LocallyClosed | ConnectionError::ApplicationClosed(_) => {}
            why if was_shaken => self.log(format_args!("{why}")),
            why => {
                self.event_loop.metrics.add(Metric::TlsFailed, 1);
                self.log(format_args!("{why} in the handshake"));
            }
        }
        self.end();
    }
}

impl From<FrameError> for StreamError {
    fn from(error: FrameError) -> StreamError {
        StreamError::Frame(error)
    }
}
