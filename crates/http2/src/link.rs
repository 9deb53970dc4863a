//! What the streams of a connection share: the frames that wait to be sent, the windows, and each other.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use weir_engine::Handle;
use weir_proto::http2::frame;

use super::outbox::Outbox;
use super::way::{Stream, extend};

/// Streams that wait for the connection get as much of it at a time, at least: each turn of a stream costs a wake-up.
/// nginx: output_buffers, of which one is sent at a time.
const SHARE: usize = 32 * 1024;

/// What is known of the other end as long as the connection lives, whether or not there are streams.
#[derive(Debug)]
pub struct PeerState {
    /// How much of bodies it takes on the whole connection.
    window: Cell<i64>,
    /// The window that it gives to each new stream.
    initial_window: Cell<u32>,
    /// The largest payload that it takes.
    frame_size: Cell<usize>,
    /// It has changed the size of its table of fields, and must hear that none is used.
    table_changed: Cell<bool>,
}

impl Default for PeerState {
    fn default() -> PeerState {
        PeerState {
            window: Cell::new(i64::from(frame::DEFAULT_WINDOW)),
            initial_window: Cell::new(frame::DEFAULT_WINDOW),
            frame_size: Cell::new(frame::MAX_PAYLOAD),
            table_changed: Cell::new(false),
        }
    }
}

/// A connection, as its streams see it.
pub struct Link<S> {
    /// Frames to be sent.
    pub out: Outbox,
    handle: Handle,
    /// What outlives the streams.
    peer: PeerState,
    /// The largest frame of a body: a turn of a stream that waits.
    chunk: usize,
    /// The largest window that the connection has had: all of it, when nothing is unread.
    widest: Cell<i64>,
    /// Those that live, by their numbers.
    streams: RefCell<Vec<Rc<S>>>,
    /// Those that wait for the connection.
    queue: RefCell<VecDeque<Rc<S>>>,
    /// No new streams.
    leaving: Cell<bool>,
}

impl<S: Stream> Link<S> {
    /// A connection without streams. Bodies will go in frames of at most `chunk` bytes.
    pub fn new(handle: Handle, peer: PeerState, chunk: usize) -> Link<S> {
        Link {
            widest: peer.window.clone(),
            out: Outbox::default(),
            handle,
            peer,
            chunk: chunk.max(1),
            streams: RefCell::default(),
            queue: RefCell::default(),
            leaving: Cell::new(false),
        }
    }

    /// What is left when there are no streams.
    pub fn into_peer(self) -> PeerState {
        self.peer
    }

    /// The loop.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Writes frames, which leave before the loop waits again.
    pub fn write(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.write(&self.handle, write);
    }

    /// The same, but as [`Outbox::write_apart`].
    pub fn write_apart(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.write_apart(&self.handle, write);
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

    /// Whether there will be no new streams.
    pub fn is_leaving(&self) -> bool {
        self.leaving.get()
    }
}

/// Windows.
impl<S: Stream> Link<S> {
    /// What may be sent of bodies on the connection.
    pub fn window(&self) -> i64 {
        self.peer.window.get()
    }

    /// So much of bodies was sent.
    pub(crate) fn spend(&self, bytes: i64) {
        self.peer.window.set(self.peer.window.get() - bytes);
    }

    /// The other end takes more. False if that is more than a window may be.
    pub fn extend(&self, by: u32) -> bool {
        let window = self.peer.window.get() + i64::from(by);
        self.peer.window.set(window);
        self.widest.set(self.widest.get().max(window));
        self.admit();
        window <= i64::from(frame::MAX_WINDOW)
    }

    /// Whether a new stream could send a body of so many bytes though the other end reads no other stream from now on.
    /// Bodies that are unread never take more than half of the connection's window from the next one: an end may
    /// give no credit before half of its window was read.
    pub fn has_window_for(&self, body: u64) -> bool {
        if body == 0 {
            return true;
        }
        let free = self.window() - self.widest.get() / 2;
        let stream = self.initial_window();
        // It leaves at once, before any other body takes the window.
        let at_once = !self.is_contested() && !self.out.is_full();
        if at_once && i64::try_from(body).is_ok_and(|body| body <= free.min(stream)) {
            return true;
        }
        let unsent = self.unsent_windows();
        free > 0 && (unsent == 0 || unsent + stream <= free)
    }

    /// What streams with unsent bodies may send without more credit of their own.
    fn unsent_windows(&self) -> i64 {
        let streams = self.streams.borrow();
        let unsent = streams.iter().map(|stream| stream.way()).filter(|way| !way.is_closed());
        unsent.map(|way| way.window().max(1)).sum()
    }

    /// The window of a new stream.
    pub fn initial_window(&self) -> i64 {
        i64::from(self.peer.initial_window.get())
    }

    /// Windows of streams are of this size from now on, and change by the difference: those for which that is more than a
    /// window may be.
    pub fn set_initial_window(&self, size: u32) -> Vec<Rc<S>> {
        let by = i64::from(size) - i64::from(self.peer.initial_window.replace(size));
        let mut all = self.all();
        all.retain(|stream| !extend(stream, by));
        all
    }

    /// The largest payload that the other end takes.
    pub fn frame_size(&self) -> usize {
        self.peer.frame_size.get()
    }

    /// Changes it.
    pub fn set_frame_size(&self, size: u32) {
        self.peer.frame_size.set(size as usize);
    }

    /// The other end has changed the size of its table of fields.
    pub fn change_table(&self) {
        self.peer.table_changed.set(true);
    }

    /// Whether that has to be answered, once.
    pub fn table_changed(&self) -> bool {
        self.peer.table_changed.replace(false)
    }
}

/// Streams.
impl<S: Stream> Link<S> {
    /// How many live.
    pub fn streams(&self) -> usize {
        self.streams.borrow().len()
    }

    /// A living stream.
    pub fn stream(&self, id: u32) -> Option<Rc<S>> {
        let streams = self.streams.borrow();
        let at = streams.binary_search_by_key(&id, |stream| stream.id()).ok()?;
        streams.get(at).cloned()
    }

    /// All that live.
    pub fn all(&self) -> Vec<Rc<S>> {
        self.streams.borrow().clone()
    }

    /// A new stream, with a larger number than any before.
    pub fn add(&self, stream: Rc<S>) {
        self.streams.borrow_mut().push(stream);
    }

    /// One has ended. True if it was the last.
    pub fn remove(&self, id: u32) -> bool {
        let mut streams = self.streams.borrow_mut();
        if let Ok(at) = streams.binary_search_by_key(&id, |stream| stream.id()) {
            streams.remove(at);
        }
        let last = streams.is_empty();
        drop(streams);
        self.queue.borrow_mut().retain(|stream| stream.id() != id);
        // It may have been given a place that it did not use.
        self.admit();
        if last {
            self.out.signal();
        }
        last
    }

    /// The stream waits until the connection has room, behind those that wait already.
    pub(crate) fn enqueue(&self, stream: Rc<S>) {
        self.queue.borrow_mut().push_back(stream);
    }

    /// The same before all others.
    pub(crate) fn enqueue_first(&self, stream: Rc<S>) {
        self.queue.borrow_mut().push_front(stream);
    }

    /// True if others wait for the connection.
    pub(crate) fn is_contested(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Lets those go on that wait, as far as there is room for them: each for its share. One that waits alone may take all.
    fn admit(&self) {
        let waiting = self.queue.borrow().len();
        let room = self.out.room().min(usize::try_from(self.window()).unwrap_or(0));
        if waiting == 0 || room == 0 {
            return;
        }
        let least = self.chunk.max(SHARE);
        let share = if waiting == 1 { usize::MAX } else { least.max(room / waiting) };
        for _ in 0..room.div_ceil(share) {
            let Some(stream) = self.queue.borrow_mut().pop_front() else { return };
            stream.way().admit(share);
        }
    }
}
