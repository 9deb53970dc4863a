//! A connection to a server, shared by its streams.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weir_http2::PeerState;
use weir_proto::http2::frame::{self, ErrorCode, Setting};
use weir_upstream::{Connection, Limits};

use super::ending::Ending;
use super::links::Opening;
use super::stream::{Room, Stream, StreamState};

/// The most concurrent streams before the server's settings. RFC 9113, section 6.5.2 recommends
/// that servers allow at least 100.
pub const MOST: u32 = 100;
/// The last stream id that is used. After it, the connection takes no new streams.
const LAST: u32 = frame::MAX_WINDOW - 2;
/// How many resets a connection may have before it takes no new streams. Servers close connections
/// with too many: h2 from 20 at once, Jetty from 128 in a second, Netty from 200 in half a minute,
/// Envoy from 500.
const RESETS: u64 = 16;
/// The same limit if at least two of five streams were reset. Tomcat closes a connection after four
/// resets in a row, and one reset weighs as much as two and a half requests.
const RESETS_IN_A_ROW: u64 = 3;
/// How long a reset is delayed on a connection at its limit. By then the other streams may have
/// ended, and the connection with them.
const GRACE: Duration = Duration::from_secs(10);
/// How long a request waits at least before its end says something about the connection: see
/// [`Link::doubt`].
const SILENCE: Duration = Duration::from_secs(1);

/// A connection, shared by its streams.
pub struct Link {
    /// The socket, with its peer and TLS state.
    pub connection: Box<Connection>,
    /// The state that clients and servers have in common.
    shared: weir_http2::Link<StreamState>,
    /// A stream's initial window in this end's settings.
    announced: u32,
    /// The most concurrent streams that the server allows.
    most: Cell<u32>,
    /// The id of the newest stream.
    last: Cell<u32>,
    /// Number of streams so far.
    opened: Cell<u64>,
    /// Number of streams that this end has reset.
    resets: Cell<u64>,
    /// The server has announced the end of the connection (GOAWAY).
    is_announced: Cell<bool>,
    /// Since when there have been no streams.
    idle_since: Cell<Instant>,
    /// When the newest frame was received.
    heard: Cell<Instant>,
    /// Other requests wait for the server's settings.
    opening: RefCell<Option<Opening>>,
}

impl Deref for Link {
    type Target = weir_http2::Link<StreamState>;

    fn deref(&self) -> &Self::Target {
        &self.shared
    }
}

impl Link {
    /// A new connection. `opening` is told when the server has sent its settings. `window` is the
    /// window that most streams will have.
    pub fn new(connection: Box<Connection>, opening: Option<Opening>, window: u32) -> Rc<Link> {
        let (now, handle) = (connection.started, connection.stream.socket().handle().clone());
        let link = Link {
            connection,
            shared: weir_http2::Link::new(handle, PeerState::default(), frame::MAX_PAYLOAD),
            announced: window.max(frame::DEFAULT_WINDOW),
            most: Cell::new(MOST),
            last: Cell::new(0),
            opened: Cell::new(0),
            resets: Cell::new(0),
            is_announced: Cell::new(false),
            idle_since: Cell::new(now),
            heard: Cell::new(now),
            opening: RefCell::new(opening),
        };
        link.greet();
        Rc::new(link)
    }

    fn greet(&self) {
        let window = Setting::InitialWindowSize(self.announced);
        let settings = [Setting::HeaderTableSize(0), Setting::EnablePush(0), window];
        self.write(|out| {
            out.extend_from_slice(frame::PREFACE);
            frame::write_settings(&settings, out);
            frame::write_window_update(0, frame::MAX_WINDOW - frame::DEFAULT_WINDOW, out);
        });
    }
}

/// Room for streams.
impl Link {
    /// Notes that the server has sent its settings. From now on, other requests may use the
    /// connection.
    pub fn greeted(&self) {
        if let Some(opening) = self.opening.take() {
            opening.done();
        }
    }

    /// Whether another stream may be opened, for a request with `body` bytes: within the limits of
    /// the server and the configuration, and of the connection's window.
    pub fn has_room(&self, body: u64, limits: &Limits, now: Instant) -> bool {
        let greeted = self.opening.borrow().is_none();
        let streams = greeted && self.streams() < self.most.get() as usize;
        streams && !self.is_spent(limits, now) && self.has_window_for(body)
    }

    /// Whether the connection takes no more streams, by the server's or the configuration's limits.
    pub fn is_spent(&self, limits: &Limits, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.connection.started);
        self.is_leaving() || self.opened.get() >= limits.requests || age >= limits.time
    }

    /// The most concurrent streams that the server allows.
    pub fn most(&self) -> u32 {
        self.most.get()
    }

    /// Sets the most concurrent streams.
    pub fn set_most(&self, most: u32) {
        self.most.set(most);
    }

    /// Since when there have been no streams. `None` if there are any.
    pub fn idle_since(&self) -> Option<Instant> {
        (self.streams() == 0).then(|| self.idle_since.get())
    }

    /// Whether there has been more than one stream.
    pub fn was_shared(&self) -> bool {
        self.opened.get() > 1
    }

    /// Opens a stream with the field block `head`. `ended`: no body follows.
    pub fn open(self: &Rc<Self>, head: &[u8], ended: bool, mut room: Room) -> Stream {
        let id = self.last.get() + if self.last.get() == 0 { 1 } else { 2 };
        self.last.set(id);
        self.opened.set(self.opened.get() + 1);
        if id >= LAST {
            self.leave();
        }
        self.write(|out| {
            let begin = frame::leave_head(out);
            self.begin_block(out);
            out.extend_from_slice(head);
            let flags = if ended { frame::END_STREAM } else { 0 };
            frame::finish_headers(out, begin, id, flags, frame::MAX_PAYLOAD);
            if let Some(more) = room.body.checked_sub(self.announced).filter(|n| *n > 0) {
                frame::write_window_update(id, more, out);
            }
        });
        room.body = room.body.max(self.announced);
        let state = Rc::new(StreamState::new(self.clone(), id, ended, room, head.len()));
        self.add(state.clone());
        Stream(state)
    }
}

/// Streams.
impl Link {
    /// The id of the newest stream.
    pub fn last(&self) -> u32 {
        self.last.get()
    }

    /// Removes a stream that its request has dropped, and resets it if asked to.
    pub fn let_go(self: &Rc<Self>, id: u32, reset: Option<ErrorCode>) {
        let last = self.remove(id);
        if let Some(code) = reset {
            match self.is_strained() {
                true => self.reset_later(id, code),
                false => self.reset(id, code),
            }
        }
        if last {
            self.idle_since.set(self.handle().now());
        }
    }

    /// Notes that a frame was received.
    pub fn hear(&self) {
        self.heard.set(self.handle().now());
    }

    /// Takes no new streams if the server has sent no frame since a stream `began`, which gets no
    /// answer. The server may have stopped to read the connection, and new requests would wait in
    /// vain, too. `is_late`: the answer's time is over. Otherwise the request must have waited for
    /// [`SILENCE`].
    pub fn doubt(&self, began: Instant, is_late: bool) {
        let waited = self.handle().now().saturating_duration_since(began);
        if self.heard.get() <= began && (is_late || waited >= SILENCE) {
            self.leave();
        }
    }

    fn reset(&self, id: u32, code: ErrorCode) {
        self.write(|out| frame::write_reset(id, code, out));
        self.resets.set(self.resets.get() + 1);
        if self.is_strained() {
            self.leave();
        }
    }

    /// Whether the server might take more resets for an attack and close the connection for all
    /// streams.
    fn is_strained(&self) -> bool {
        let (resets, opened) = (self.resets.get(), self.opened.get());
        resets >= RESETS || (resets >= RESETS_IN_A_ROW && 5 * resets >= 2 * opened)
    }

    /// Resets a stream after [`GRACE`], if the connection still exists. Until then, data of the
    /// stream are dropped and it gets no window updates.
    fn reset_later(self: &Rc<Self>, id: u32, code: ErrorCode) {
        let (link, grace) = (Rc::downgrade(self), self.handle().sleep(GRACE));
        self.handle().spawn(async move {
            grace.await;
            if let Some(link) = link.upgrade() {
                link.reset(id, code);
            }
        });
    }

    /// Fails the streams above `last`, which the server has not processed and will not (GOAWAY).
    pub fn refuse(&self, last: u32, why: &Ending) {
        self.is_announced.set(true);
        self.leave();
        for stream in self.all().iter().filter(|stream| stream.id > last) {
            stream.fail(why.clone());
        }
    }

    /// Ends all streams of a failed connection. Stream `of`, or the only stream that there ever
    /// was, gets the failure itself. The others share it without their own fault. Among them it
    /// counts once, or not at all if `of` is known or the server has announced the end.
    pub fn fail(&self, why: &Ending, of: Option<u32>) {
        self.leave();
        self.opening.take();
        let of = of.filter(|id| self.stream(*id).is_some());
        let mut counts = !self.is_announced.get() && of.is_none();
        for stream in self.all() {
            let own = !self.was_shared() || of == Some(stream.id);
            stream.fail(if own { why.clone() } else { why.shared(counts) });
            counts = false;
        }
    }
}
