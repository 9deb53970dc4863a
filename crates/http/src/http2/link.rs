//! What the streams of a connection share: the frames that wait to be sent, the window, and each other.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use weir_proto::http2::frame::{self, ErrorCode};

use super::outbox::{FULL, Outbox};
use super::stream::{Stream, WrongLength, still_announced};
use crate::config::site::Server;
use crate::connection::Conn;
use crate::modules::v2;
use crate::worker::Worker;

/// The largest payload that a frame may have: RFC 9113 section 4.1.
const MOST_PAYLOAD: usize = (1 << 24) - 1;

/// Of the streams that this end has given up, so many are remembered.
const RESETS: usize = 128;

/// A stream that this end has given up.
struct Past {
    id: u32,
    /// What is still to come of its body, if that was announced.
    announced: Option<u64>,
}

/// What a frame for a stream that does not live any more is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// It was on its way.
    Expected,
    /// It makes the body longer or shorter than it was said to be.
    WrongLength,
    /// The client had ended the stream itself.
    Unexpected,
}

/// What is known of the client as long as the connection lives, whether or not there are streams.
pub struct Ledger {
    /// How much of bodies the client takes on the whole connection.
    window: Cell<i64>,
    /// The window that the client gives to each new stream.
    initial_window: Cell<u32>,
    /// The largest payload that the client takes.
    frame_size: Cell<usize>,
    /// The client has changed the size of its table, and must hear that none is used.
    table_changed: Cell<bool>,
    /// Streams that this end has given up: frames for them may still be on their way.
    resets: RefCell<VecDeque<Past>>,
    /// Answers that were begun.
    pub answers: Cell<u64>,
    /// Requests as large as they are: what flood is measured against.
    pub payload: Cell<u64>,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger {
            window: Cell::new(i64::from(frame::DEFAULT_WINDOW)),
            initial_window: Cell::new(frame::DEFAULT_WINDOW),
            frame_size: Cell::new(frame::MAX_PAYLOAD),
            table_changed: Cell::new(false),
            resets: RefCell::default(),
            answers: Cell::new(0),
            payload: Cell::new(0),
        }
    }
}

/// A connection, as its streams see it.
pub struct Link {
    /// The connection.
    pub conn: Rc<Conn>,
    /// This loop's state.
    pub worker: Rc<Worker>,
    /// Whose settings hold for the connection as a whole.
    pub server: &'static Server,
    /// Frames to be sent.
    pub out: Outbox,
    /// What outlives the streams.
    pub ledger: Ledger,
    /// Those that live, by their numbers.
    streams: RefCell<Vec<Rc<Stream>>>,
    /// Those that wait for the connection.
    queue: RefCell<VecDeque<Rc<Stream>>>,
    /// Room for the values of fields while they are written.
    room: RefCell<Vec<u8>>,
    /// No new streams.
    leaving: Cell<bool>,
}

impl Link {
    /// A connection without streams.
    pub fn new(conn: Rc<Conn>, worker: Rc<Worker>, ledger: Ledger) -> Rc<Link> {
        let server = worker.site.default_server(&conn);
        Rc::new(Link {
            server,
            out: Outbox::default(),
            ledger,
            streams: RefCell::default(),
            queue: RefCell::default(),
            room: RefCell::default(),
            leaving: Cell::new(false),
            conn,
            worker,
        })
    }

    /// Settings of the connection.
    pub fn conf(&self) -> &'static crate::modules::LocationConf {
        &self.worker.site.location(self.server.location).conf
    }

    /// `http2_*` of the connection.
    pub fn v2(&self) -> &'static v2::Conf {
        &self.conf().v2
    }

    /// The largest payload that is taken: where a field may be larger than any frame must be, so may a frame.
    pub fn largest_frame(&self) -> usize {
        self.server.conf.head_limits.line.clamp(frame::MAX_PAYLOAD, MOST_PAYLOAD)
    }

    /// Writes frames, which leave before the loop waits again.
    pub fn write(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.write(&self.worker.handle, write);
    }

    /// Room for a value, to be given back.
    pub fn take_room(&self) -> Vec<u8> {
        self.room.take()
    }

    /// Gives it back.
    pub fn give_room(&self, room: Vec<u8>) {
        self.room.replace(room);
    }

    /// So much of what was taken is still on its way.
    pub fn set_backlog(&self, bytes: u64) {
        self.out.set_backlog(bytes);
        self.admit();
    }

    /// No new streams from now on.
    pub fn leave(&self) {
        self.leaving.set(true);
        self.out.signal();
    }

    /// Whether new streams are refused.
    pub fn is_leaving(&self) -> bool {
        self.leaving.get()
    }
}

/// Windows.
impl Link {
    /// What may be sent of bodies on the connection.
    pub fn window(&self) -> i64 {
        self.ledger.window.get()
    }

    /// So much of bodies was sent.
    pub fn spend(&self, bytes: i64) {
        self.ledger.window.set(self.ledger.window.get() - bytes);
    }

    /// The client takes more. False if that is more than a window may be.
    pub fn extend(&self, by: u32) -> bool {
        let window = self.ledger.window.get() + i64::from(by);
        self.ledger.window.set(window);
        if window > 0 {
            self.admit();
        }
        window <= i64::from(frame::MAX_WINDOW)
    }

    /// The window of a new stream.
    pub fn initial_window(&self) -> i64 {
        i64::from(self.ledger.initial_window.get())
    }

    /// Windows of streams are of this size from now on, and change by the difference.
    pub fn set_initial_window(&self, size: u32) {
        let by = i64::from(size) - i64::from(self.ledger.initial_window.replace(size));
        for stream in &self.all() {
            if !stream.extend(by) {
                stream.reset(ErrorCode::FlowControl);
            }
        }
    }

    /// The largest payload that the client takes.
    pub fn frame_size(&self) -> usize {
        self.ledger.frame_size.get()
    }

    /// Changes it.
    pub fn set_frame_size(&self, size: u32) {
        self.ledger.frame_size.set(size as usize);
    }

    /// The client has changed the size of its table of fields.
    pub fn change_table(&self) {
        self.ledger.table_changed.set(true);
    }

    /// Whether that has to be answered, once.
    pub fn table_changed(&self) -> bool {
        self.ledger.table_changed.replace(false)
    }
}

/// Streams.
impl Link {
    /// How many live.
    pub fn streams(&self) -> usize {
        self.streams.borrow().len()
    }

    /// A living stream.
    pub fn stream(&self, id: u32) -> Option<Rc<Stream>> {
        let streams = self.streams.borrow();
        let at = streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        streams.get(at).cloned()
    }

    /// All that live.
    pub fn all(&self) -> Vec<Rc<Stream>> {
        self.streams.borrow().clone()
    }

    /// A new one, whose number is larger than any before.
    pub fn add(&self, stream: Rc<Stream>) {
        self.streams.borrow_mut().push(stream);
    }

    /// One has ended.
    pub fn remove(&self, id: u32) {
        let mut streams = self.streams.borrow_mut();
        if let Ok(at) = streams.binary_search_by_key(&id, |stream| stream.id) {
            streams.remove(at);
        }
        let last = streams.is_empty();
        drop(streams);
        self.queue.borrow_mut().retain(|stream| stream.id != id);
        // It may have been given a place that it did not use.
        self.admit();
        if last {
            self.out.signal();
        }
    }

    /// The stream waits until the connection has room, behind those that wait already.
    pub fn enqueue(&self, stream: Rc<Stream>) {
        self.queue.borrow_mut().push_back(stream);
    }

    /// True if others wait for the connection.
    pub fn is_contested(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Lets those go on that wait, as far as there is room for them.
    fn admit(&self) {
        if self.queue.borrow().is_empty() || self.out.is_full() || self.ledger.window.get() <= 0 {
            return;
        }
        let chunk = usize::try_from(self.v2().chunk_size).unwrap_or(FULL).max(1);
        for _ in 0..self.out.room().div_ceil(chunk) {
            let Some(stream) = self.queue.borrow_mut().pop_front() else { return };
            stream.admit();
        }
    }

    /// Frames for the stream may come for a while; `announced` is what its body still lacks.
    pub fn note_reset(&self, id: u32, announced: Option<u64>) {
        let mut resets = self.ledger.resets.borrow_mut();
        if resets.len() >= RESETS {
            resets.pop_front();
        }
        resets.push_back(Past { id, announced });
    }

    /// The client has given the stream up itself: nothing is on its way any more.
    pub fn forget_reset(&self, id: u32) {
        self.ledger.resets.borrow_mut().retain(|past| past.id != id);
    }

    /// A piece of a body came for a stream that does not live.
    pub fn late_data(&self, id: u32, len: usize, last: bool) -> Late {
        let mut resets = self.ledger.resets.borrow_mut();
        let Some(past) = resets.iter_mut().find(|past| past.id == id) else {
            return Late::Unexpected;
        };
        match still_announced(past.announced, len, last) {
            Ok(left) => {
                past.announced = left;
                Late::Expected
            }
            Err(WrongLength) => {
                past.announced = None;
                Late::WrongLength
            }
        }
    }

    /// Takes connection and ledger apart, if nobody else has to do with them.
    pub fn part(self: Rc<Self>) -> Option<(Conn, Ledger)> {
        let Link { conn, ledger, .. } = Rc::into_inner(self)?;
        ledger.resets.borrow_mut().shrink_to_fit();
        Some((Rc::into_inner(conn)?, ledger))
    }

    /// The connection is no more: all its streams end.
    pub fn fail(&self) {
        for stream in self.all() {
            stream.fail();
        }
    }
}
