//! What the streams of a connection share: the frames that wait to be sent, the window, and each other.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use weir_engine::Handle;
use weir_proto::http2::frame::{self, ErrorCode, Setting};
use weir_proto::http2::hpack;
use weir_upstream::{Connection, Limits};

use super::ending::Ending;
use super::links::Opening;
use super::stream::{Room, State, Stream};
use crate::http2::Outbox;

/// Until the server says how many streams it serves, no more: RFC 9113 section 6.5.2 asks servers for that many.
const MOST: u32 = 100;
/// A connection whose streams have used up this many numbers takes no new ones.
const LAST: u32 = frame::MAX_WINDOW - 2;

/// A connection, as its streams see it.
pub struct Link {
    /// The socket, whom it leads to, and how it is secured.
    pub connection: Connection,
    /// Frames to be sent.
    pub out: Outbox,
    /// How much of bodies the server takes on the whole connection.
    window: Cell<i64>,
    /// The window that the server gives to each new stream.
    initial_window: Cell<i64>,
    /// The server's table of fields is smaller than usual: it must hear that none is used.
    table_changed: Cell<bool>,
    /// How many streams the server serves at once.
    most: Cell<u32>,
    /// Those that live, by their numbers.
    streams: RefCell<Vec<Rc<State>>>,
    /// Those that wait for the connection, in the order of their coming.
    waiting: RefCell<Vec<Rc<State>>>,
    /// The number of the newest.
    last: Cell<u32>,
    /// Streams so far.
    opened: Cell<u64>,
    /// Since when there have been none.
    idle_since: Cell<Instant>,
    /// No new streams.
    leaving: Cell<bool>,
    /// Others wait until the server has said how it wants to be spoken to.
    opening: RefCell<Option<Opening>>,
}

impl Link {
    /// A connection on which nothing was said yet. `opening` hears when the server has greeted.
    pub fn new(connection: Connection, opening: Option<Opening>) -> Rc<Link> {
        let now = connection.started;
        let link = Link {
            connection,
            out: Outbox::default(),
            window: Cell::new(i64::from(frame::DEFAULT_WINDOW)),
            initial_window: Cell::new(i64::from(frame::DEFAULT_WINDOW)),
            table_changed: Cell::new(false),
            most: Cell::new(MOST),
            streams: RefCell::default(),
            waiting: RefCell::default(),
            last: Cell::new(0),
            opened: Cell::new(0),
            idle_since: Cell::new(now),
            leaving: Cell::new(false),
            opening: RefCell::new(opening),
        };
        link.greet();
        Rc::new(link)
    }

    fn greet(&self) {
        let settings = [Setting::HeaderTableSize(0), Setting::EnablePush(0)];
        self.write(|out| {
            out.extend_from_slice(frame::PREFACE);
            frame::write_settings(&settings, out);
            frame::write_window_update(0, frame::MAX_WINDOW - frame::DEFAULT_WINDOW, out);
        });
    }

    /// The loop.
    pub fn handle(&self) -> &Handle {
        self.connection.stream.socket().handle()
    }

    /// Writes frames, which leave before the loop waits again.
    pub fn write(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.write(self.handle(), write);
    }

    /// So much of what was taken is still on its way.
    pub fn set_backlog(&self, bytes: u64) {
        self.out.set_backlog(bytes);
        self.admit();
    }
}

/// Who may come.
impl Link {
    /// The server has said how it wants to be spoken to: others may use the connection, too.
    pub fn greeted(&self) {
        if let Some(opening) = self.opening.take() {
            opening.done();
        }
    }

    /// Another stream may be opened, as far as the server and the configuration say.
    pub fn has_room(&self, limits: &Limits, now: Instant) -> bool {
        let greeted = self.opening.borrow().is_none();
        greeted && !self.is_spent(limits, now) && self.streams() < self.most.get() as usize
    }

    /// No more streams: as the server wants it, or the configuration.
    pub fn is_spent(&self, limits: &Limits, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.connection.started);
        self.leaving.get() || self.opened.get() >= limits.requests || age >= limits.time
    }

    /// How many streams the server serves at once.
    pub fn set_most(&self, most: u32) {
        self.most.set(most);
    }

    /// No new streams from now on.
    pub fn leave(&self) {
        self.leaving.set(true);
        self.out.signal();
    }

    /// Whether there will be no new streams.
    pub fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// Since when there have been no streams; none if there are.
    pub fn idle_since(&self) -> Option<Instant> {
        (self.streams() == 0).then(|| self.idle_since.get())
    }

    /// Opens a stream with the block of fields `head`; `ended`: no body follows.
    pub fn open(self: &Rc<Self>, head: &[u8], ended: bool, room: Room) -> Stream {
        let id = self.last.get() + if self.last.get() == 0 { 1 } else { 2 };
        self.last.set(id);
        self.opened.set(self.opened.get() + 1);
        if id >= LAST {
            self.leaving.set(true);
        }
        self.write(|out| {
            let begin = frame::leave_head(out);
            if self.table_changed.replace(false) {
                hpack::empty_table(out);
            }
            out.extend_from_slice(head);
            let flags = if ended { frame::END_STREAM } else { 0 };
            frame::finish_headers(out, begin, id, flags, frame::MAX_PAYLOAD);
            if let Some(more) = room.body.checked_sub(frame::DEFAULT_WINDOW).filter(|n| *n > 0) {
                frame::write_window_update(id, more, out);
            }
        });
        let state = Rc::new(State::new(self.clone(), id, ended, room, head.len()));
        self.streams.borrow_mut().push(state.clone());
        Stream(state)
    }
}

/// Windows.
impl Link {
    /// What may be sent of bodies on the connection.
    pub fn window(&self) -> i64 {
        self.window.get()
    }

    /// So much of bodies was sent.
    pub fn spend(&self, bytes: i64) {
        self.window.set(self.window.get() - bytes);
    }

    /// The server takes more. False if that is more than a window may be.
    pub fn extend(&self, by: u32) -> bool {
        let window = self.window.get() + i64::from(by);
        self.window.set(window);
        self.admit();
        window <= i64::from(frame::MAX_WINDOW)
    }

    /// The window of a new stream.
    pub fn initial_window(&self) -> i64 {
        self.initial_window.get()
    }

    /// Windows of streams are of this size from now on, and change by the difference. False if that is more than a
    /// window may be.
    pub fn set_initial_window(&self, size: u32) -> bool {
        let by = i64::from(size) - self.initial_window.replace(i64::from(size));
        self.all().iter().all(|stream| stream.extend(by))
    }

    /// The server's table of fields is smaller than usual.
    pub fn change_table(&self) {
        self.table_changed.set(true);
    }

    /// The stream waits until the connection has room.
    pub fn wait(&self, stream: Rc<State>) {
        self.waiting.borrow_mut().push(stream);
    }

    /// Lets those go on that wait, if there is room. Those that find none wait behind the others.
    fn admit(&self) {
        if self.window.get() <= 0 || self.out.is_full() {
            return;
        }
        for stream in self.waiting.take() {
            stream.admit();
        }
    }
}

/// Streams.
impl Link {
    /// How many live.
    pub fn streams(&self) -> usize {
        self.streams.borrow().len()
    }

    /// The number of the newest.
    pub fn last(&self) -> u32 {
        self.last.get()
    }

    /// A living stream.
    pub fn stream(&self, id: u32) -> Option<Rc<State>> {
        let streams = self.streams.borrow();
        let at = streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        streams.get(at).cloned()
    }

    fn all(&self) -> Vec<Rc<State>> {
        self.streams.borrow().clone()
    }

    /// A request has let go of its stream.
    pub fn remove(&self, id: u32, reset: Option<ErrorCode>) {
        let mut streams = self.streams.borrow_mut();
        if let Ok(at) = streams.binary_search_by_key(&id, |stream| stream.id) {
            streams.remove(at);
        }
        let last = streams.is_empty();
        drop(streams);
        self.waiting.borrow_mut().retain(|stream| stream.id != id);
        if let Some(code) = reset {
            self.write(|out| frame::write_reset(id, code, out));
        }
        if last {
            self.idle_since.set(self.handle().now());
            self.out.signal();
        }
    }

    /// Streams above `last` were not looked at by the server, and will not be.
    pub fn refuse(&self, last: u32, why: &Ending) {
        self.leave();
        for stream in self.all().iter().filter(|stream| stream.id > last) {
            stream.fail(why.clone());
        }
    }

    /// The connection is no more: all its streams end.
    pub fn fail(&self, why: &Ending) {
        self.leaving.set(true);
        self.opening.take();
        for stream in self.all() {
            stream.fail(why.clone());
        }
    }
}
