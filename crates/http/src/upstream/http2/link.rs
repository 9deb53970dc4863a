//! A connection to a server, as its streams see it.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weir_http2::PeerState;
use weir_proto::http2::frame::{self, ErrorCode, Setting};
use weir_proto::http2::hpack;
use weir_upstream::{Connection, Limits};

use super::ending::Ending;
use super::links::Opening;
use super::stream::{Room, Stream, StreamState};

/// Until the server says how many streams it serves, no more: RFC 9113 section 6.5.2 asks servers for that many.
pub const MOST: u32 = 100;
/// A connection with this many used numbers of streams takes no new ones.
const LAST: u32 = frame::MAX_WINDOW - 2;
/// After so many resets a connection takes no new streams. Servers close connections with too many: h2 from 20 at once,
/// Jetty from 128 in a second, Netty from 200 in half a minute, Envoy from 500.
const RESETS: u64 = 16;
/// After so many, if two of five streams were reset: Tomcat closes a connection after four resets in a row, and takes
/// two and a half requests to make good for one.
const RESETS_IN_A_ROW: u64 = 3;
/// So long a reset waits on a connection that has had as many as it may, for the other streams to end and the
/// connection with them.
const GRACE: Duration = Duration::from_secs(10);

/// A connection, as its streams see it.
pub struct Link {
    /// The socket, the server at its other end, and how it is secured.
    pub connection: Box<Connection>,
    /// What both ends have of it.
    shared: weir_http2::Link<StreamState>,
    /// A stream's window in the own settings.
    announced: u32,
    /// How many streams the server serves at once.
    most: Cell<u32>,
    /// The number of the newest.
    last: Cell<u32>,
    /// Streams so far.
    opened: Cell<u64>,
    /// Those of them that were reset from here.
    resets: Cell<u64>,
    /// The server has said that it will close the connection.
    is_announced: Cell<bool>,
    /// Since when there have been none.
    idle_since: Cell<Instant>,
    /// Others wait until the server has said how it wants to be spoken to.
    opening: RefCell<Option<Opening>>,
}

impl Deref for Link {
    type Target = weir_http2::Link<StreamState>;

    fn deref(&self) -> &Self::Target {
        &self.shared
    }
}

impl Link {
    /// A connection on which nothing was said yet. `opening` hears when the server has greeted; `window` is what most of
    /// its streams will have room for.
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

/// Which streams may come.
impl Link {
    /// The server has said how it wants to be spoken to: others may use the connection, too.
    pub fn greeted(&self) {
        if let Some(opening) = self.opening.take() {
            opening.done();
        }
    }

    /// Another stream may be opened for a request with so much of a body: as far as the server and the configuration
    /// say, and as the bodies of others leave room for it.
    pub fn has_room(&self, body: u64, limits: &Limits, now: Instant) -> bool {
        let greeted = self.opening.borrow().is_none();
        let streams = greeted && self.streams() < self.most.get() as usize;
        streams && !self.is_spent(limits, now) && self.has_window_for(body)
    }

    /// No more streams: as the server wants it, or the configuration.
    pub fn is_spent(&self, limits: &Limits, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.connection.started);
        self.is_leaving() || self.opened.get() >= limits.requests || age >= limits.time
    }

    /// How many streams the server serves at once.
    pub fn most(&self) -> u32 {
        self.most.get()
    }

    /// The server says how many.
    pub fn set_most(&self, most: u32) {
        self.most.set(most);
    }

    /// Since when there have been no streams; none if there are.
    pub fn idle_since(&self) -> Option<Instant> {
        (self.streams() == 0).then(|| self.idle_since.get())
    }

    /// There has been more than one stream.
    pub fn was_shared(&self) -> bool {
        self.opened.get() > 1
    }

    /// Opens a stream with the block of fields `head`; `ended`: no body follows.
    pub fn open(self: &Rc<Self>, head: &[u8], ended: bool, mut room: Room) -> Stream {
        let id = self.last.get() + if self.last.get() == 0 { 1 } else { 2 };
        self.last.set(id);
        self.opened.set(self.opened.get() + 1);
        if id >= LAST {
            self.leave();
        }
        self.write(|out| {
            let begin = frame::leave_head(out);
            if self.table_changed() {
                hpack::empty_table(out);
            }
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
    /// The number of the newest.
    pub fn last(&self) -> u32 {
        self.last.get()
    }

    /// A request has let go of its stream.
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

    fn reset(&self, id: u32, code: ErrorCode) {
        self.write(|out| frame::write_reset(id, code, out));
        self.resets.set(self.resets.get() + 1);
        if self.is_strained() {
            self.leave();
        }
    }

    /// Whether with more resets the server might take the connection for an attack, and end it for all.
    fn is_strained(&self) -> bool {
        let (resets, opened) = (self.resets.get(), self.opened.get());
        resets >= RESETS || (resets >= RESETS_IN_A_ROW && 5 * resets >= 2 * opened)
    }

    /// Resets a stream after [`GRACE`], if the connection is still there. Until then, what the server sends on it is
    /// dropped, and it gets no credit for more.
    fn reset_later(self: &Rc<Self>, id: u32, code: ErrorCode) {
        let (link, grace) = (Rc::downgrade(self), self.handle().sleep(GRACE));
        self.handle().spawn(async move {
            grace.await;
            if let Some(link) = link.upgrade() {
                link.reset(id, code);
            }
        });
    }

    /// Streams above `last` were not looked at by the server, and will not be.
    pub fn refuse(&self, last: u32, why: &Ending) {
        self.is_announced.set(true);
        self.leave();
        for stream in self.all().iter().filter(|stream| stream.id > last) {
            stream.fail(why.clone());
        }
    }

    /// The connection is no more: all its streams end. The end is the failure of stream `of`, if it is known to be, or of the
    /// only one that there ever was. The others share it without a fault of theirs: it counts once, or not at all if
    /// the server has announced it.
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
