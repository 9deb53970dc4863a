//! The state that the streams of a connection share: unsent frames, flow-control windows, and the streams themselves.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use weir_engine::Handle;
use weir_proto::http2::{frame, hpack};

use super::outbox::Outbox;
use super::send::{Stream, extend};

/// The least bytes that a waiting stream may send at a time, since each time costs a wake-up. nginx: output_buffers, of which
/// one is sent at a time.
const SHARE: usize = 32 * 1024;

/// The state of the peer that a connection keeps also without streams.
#[derive(Debug)]
pub struct PeerState {
    /// The connection's flow-control window for sending.
    window: Cell<i64>,
    /// SETTINGS_INITIAL_WINDOW_SIZE: the window of a new stream.
    initial_window: Cell<u32>,
    /// SETTINGS_MAX_FRAME_SIZE: the largest payload of a frame.
    frame_size: Cell<usize>,
    /// The peer has lowered SETTINGS_HEADER_TABLE_SIZE.
    small_table: Cell<bool>,
    /// Bytes of bodies that were sent, and of what [`Link::count_payload`] was told of.
    payload: Cell<u64>,
}

impl Default for PeerState {
    fn default() -> PeerState {
        PeerState {
            window: Cell::new(i64::from(frame::DEFAULT_WINDOW)),
            initial_window: Cell::new(frame::DEFAULT_WINDOW),
            frame_size: Cell::new(frame::MAX_PAYLOAD),
            small_table: Cell::new(false),
            payload: Cell::new(0),
        }
    }
}

/// The state that the streams of a connection share.
pub struct Link<S> {
    /// Frames to be sent.
    pub out: Outbox,
    handle: Handle,
    /// The state of the peer.
    peer: PeerState,
    /// The largest payload of a DATA frame.
    chunk: usize,
    /// The largest connection window so far: the window when the peer has read everything.
    widest: Cell<i64>,
    /// The open streams, in the order of their IDs.
    streams: RefCell<Vec<Rc<S>>>,
    /// The streams that wait for the connection's window or for room in the outbox.
    queue: RefCell<VecDeque<Rc<S>>>,
    /// No new streams begin.
    leaving: Cell<bool>,
}

impl<S: Stream> Link<S> {
    /// A connection without streams. `chunk` is the largest payload of its DATA frames.
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

    /// The state of the peer, after the last stream has ended.
    pub fn into_peer(self) -> PeerState {
        self.peer
    }

    /// The loop.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Writes frames. They are sent before the loop waits again.
    pub fn write(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.write(&self.handle, write);
    }

    /// Writes frames by [`Outbox::write_apart`].
    pub fn write_apart(&self, write: impl FnOnce(&mut Vec<u8>)) {
        self.out.write_apart(&self.handle, write);
    }

    /// Sets how many bytes taken from the outbox the socket has not accepted.
    pub fn set_backlog(&self, bytes: u64) {
        self.out.set_backlog(bytes);
        self.admit();
    }

    /// Lets no new streams begin from now on.
    pub fn leave(&self) {
        self.leaving.set(true);
        self.out.signal();
    }

    /// No new streams begin.
    pub fn is_leaving(&self) -> bool {
        self.leaving.get()
    }
}

/// Flow-control windows.
impl<S: Stream> Link<S> {
    /// The connection's window for sending.
    pub fn window(&self) -> i64 {
        self.peer.window.get()
    }

    /// Subtracts sent DATA from the connection's window.
    pub(crate) fn spend(&self, bytes: usize) {
        self.peer.window.set(self.peer.window.get() - bytes as i64);
        self.count_payload(bytes);
    }

    /// Counts bytes of a received body or field block.
    pub fn count_payload(&self, bytes: usize) {
        self.peer.payload.set(self.peer.payload.get() + bytes as u64);
    }

    /// Bytes of sent and received bodies, and of received field blocks.
    pub fn payload(&self) -> u64 {
        self.peer.payload.get()
    }

    /// Extends the connection's window. False if it is then larger than a window may be.
    pub fn extend(&self, by: u32) -> bool {
        let window = self.peer.window.get() + i64::from(by);
        self.peer.window.set(window);
        self.widest.set(self.widest.get().max(window));
        self.admit();
        window <= i64::from(frame::MAX_WINDOW)
    }

    /// Whether a new stream could send a body of this size even if the peer reads no other stream from now on. Unread bodies may
    /// take at most half of the connection's window from it: a peer may send no WINDOW_UPDATE before half of the window was read.
    pub fn has_window_for(&self, body: u64) -> bool {
        if body == 0 {
            return true;
        }
        let free = self.window() - self.widest.get() / 2;
        let stream = self.initial_window();
        // The body is sent at once, before another takes the window.
        let at_once = !self.is_contested() && !self.out.is_full();
        if at_once && i64::try_from(body).is_ok_and(|body| body <= free.min(stream)) {
            return true;
        }
        let unsent = self.unsent_windows();
        free > 0 && (unsent == 0 || unsent + stream <= free)
    }

    /// The sum of the windows of streams with unsent bodies.
    fn unsent_windows(&self) -> i64 {
        let streams = self.streams.borrow();
        let unsent =
            streams.iter().map(|stream| stream.send_window()).filter(|own| !own.is_closed());
        unsent.map(|own| own.window().max(1)).sum()
    }

    /// The window of a new stream.
    pub fn initial_window(&self) -> i64 {
        i64::from(self.peer.initial_window.get())
    }

    /// Sets the initial window, and changes the windows of all streams by the difference (RFC 9113, section 6.9.2). Returns the
    /// streams whose window is then too large.
    pub fn set_initial_window(&self, size: u32) -> Vec<Rc<S>> {
        let by = i64::from(size) - i64::from(self.peer.initial_window.replace(size));
        let mut all = self.all();
        all.retain(|stream| !extend(stream, by));
        all
    }

    /// The largest payload of a frame that the peer accepts.
    pub fn frame_size(&self) -> usize {
        self.peer.frame_size.get()
    }

    /// Sets SETTINGS_MAX_FRAME_SIZE.
    pub fn set_frame_size(&self, size: u32) {
        self.peer.frame_size.set(size as usize);
    }

    /// The peer has sent SETTINGS_HEADER_TABLE_SIZE.
    pub fn set_table_size(&self, size: u32) {
        if size < frame::DEFAULT_TABLE {
            self.peer.small_table.set(true);
        }
    }

    /// Begins a field block. The first block after the peer has lowered its table must begin with a table size update (RFC 7541,
    /// section 4.2). Blocks may be sent in another order than they are written, so each begins with one.
    pub fn begin_block(&self, out: &mut Vec<u8>) {
        if self.peer.small_table.get() {
            hpack::empty_table(out);
        }
    }
}

/// Streams.
impl<S: Stream> Link<S> {
    /// The number of open streams.
    pub fn streams(&self) -> usize {
        self.streams.borrow().len()
    }

    /// An open stream.
    pub fn stream(&self, id: u32) -> Option<Rc<S>> {
        let streams = self.streams.borrow();
        let at = streams.binary_search_by_key(&id, |stream| stream.id()).ok()?;
        streams.get(at).cloned()
    }

    /// All open streams.
    pub fn all(&self) -> Vec<Rc<S>> {
        self.streams.borrow().clone()
    }

    /// Adds a stream. Its ID is larger than any before.
    pub fn add(&self, stream: Rc<S>) {
        self.streams.borrow_mut().push(stream);
    }

    /// Removes a stream that has ended. True if it was the last.
    pub fn remove(&self, id: u32) -> bool {
        let mut streams = self.streams.borrow_mut();
        if let Ok(at) = streams.binary_search_by_key(&id, |stream| stream.id()) {
            streams.remove(at);
        }
        let last = streams.is_empty();
        drop(streams);
        self.dequeue(id);
        // The stream may have been admitted without sending yet.
        self.admit();
        if last {
            self.out.signal();
        }
        last
    }

    /// Puts a stream at the end of the queue.
    pub(crate) fn enqueue(&self, stream: Rc<S>) {
        self.queue.borrow_mut().push_back(stream);
    }

    /// Puts a stream at the front of the queue.
    pub(crate) fn enqueue_first(&self, stream: Rc<S>) {
        self.queue.borrow_mut().push_front(stream);
    }

    /// Removes a stream from the queue.
    pub(crate) fn dequeue(&self, id: u32) {
        self.queue.borrow_mut().retain(|stream| stream.id() != id);
    }

    /// True if streams are in the queue.
    pub(crate) fn is_contested(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    /// Admits streams from the queue, as far as the window and the outbox have room. Each gets a share; a single one gets all.
    pub(crate) fn admit(&self) {
        let waiting = self.queue.borrow().len();
        let room = self.out.room().min(usize::try_from(self.window()).unwrap_or(0));
        if waiting == 0 || room == 0 {
            return;
        }
        let least = self.chunk.max(SHARE);
        let share = if waiting == 1 { usize::MAX } else { least.max(room / waiting) };
        for _ in 0..room.div_ceil(share) {
            let Some(stream) = self.queue.borrow_mut().pop_front() else { return };
            stream.send_window().admit(share);
        }
    }
}
