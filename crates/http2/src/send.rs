//! Sends the body of a stream, within the flow-control windows and in turn with the other streams.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_engine::{Chain, Either, Framing, Handle, Segment, copies, either};
use weir_proto::http2::frame::{self, FrameHead, FrameType};

use super::link::Link;
use super::outbox::{FULL, wait, wake};

/// The least bytes of a file per read.
const READ_AHEAD: usize = 16 * 1024;

/// The size of a buffer for all frames that may wait, and for the frame that exceeds the limit.
const LARGE: usize = FULL + FULL / 4;

/// The part of a stream that clients and servers share.
pub trait Stream: Sized {
    /// The stream ID.
    fn id(&self) -> u32;
    /// Its connection.
    fn link(&self) -> &Link<Self>;
    /// The state of its sending direction.
    fn send_window(&self) -> &SendWindow;
    /// Fails if the stream can send nothing any more.
    fn check(&self) -> io::Result<()>;
    /// The peer wants no more of the body. The rest counts as sent.
    fn body_is_unwanted(&self) -> bool {
        false
    }
}

/// The turn of a stream among those that send on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The stream may send unless others wait.
    Free,
    /// The stream is in the connection's queue.
    Queued,
    /// The stream may send so many bytes, and has sent none of them.
    Admitted(usize),
    /// The stream has sent some of them, and may send so many more.
    Sending(usize),
    /// The stream has sent all of them. It must queue again.
    Spent,
}

/// The sending direction of a stream: its flow-control window, its turn and its counters.
#[derive(Debug)]
pub struct SendWindow {
    /// The stream's flow-control window.
    window: Cell<i64>,
    /// END_STREAM was sent.
    closed: Cell<bool>,
    /// Bytes of DATA frames sent, with frame headers.
    sent: Cell<u64>,
    /// Bytes of these frame headers.
    framing: Cell<u64>,
    turn: Cell<Turn>,
    writer: RefCell<Option<Waker>>,
}

impl SendWindow {
    /// The sending direction of a new stream. With `closed` it has nothing to send.
    pub fn new(window: i64, closed: bool) -> SendWindow {
        SendWindow {
            window: Cell::new(window),
            closed: Cell::new(closed),
            sent: Cell::new(0),
            framing: Cell::new(0),
            turn: Cell::new(Turn::Free),
            writer: RefCell::default(),
        }
    }

    /// The stream's flow-control window.
    pub fn window(&self) -> i64 {
        self.window.get()
    }

    /// END_STREAM was sent.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// END_STREAM is sent outside of this module.
    pub fn close(&self) {
        self.closed.set(true);
    }

    /// Bytes of DATA frames sent, with frame headers.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Bytes of these frame headers.
    pub fn framing(&self) -> u64 {
        self.framing.get()
    }

    /// Wakes the task that sends: it can go on, or the stream has failed.
    pub fn wake(&self) {
        wake(&self.writer);
    }

    /// Lets the stream send so many bytes.
    pub(crate) fn admit(&self, bytes: usize) {
        self.turn.set(Turn::Admitted(bytes));
        self.wake();
    }

    /// Counts sent bytes of the body.
    fn spend(&self, bytes: usize) {
        self.window.set(self.window.get() - bytes as i64);
        if let Turn::Admitted(left) | Turn::Sending(left) = self.turn.get() {
            let left = left.saturating_sub(bytes);
            self.turn.set(if left == 0 { Turn::Spent } else { Turn::Sending(left) });
        }
    }

    /// The number of bytes that the stream may send in its turn.
    fn share(&self) -> usize {
        match self.turn.get() {
            Turn::Admitted(left) | Turn::Sending(left) => left,
            Turn::Free | Turn::Queued | Turn::Spent => usize::MAX,
        }
    }

    /// The chain is sent, and END_STREAM if it is the last.
    fn is_done(&self, chain: &Chain, last: bool) -> bool {
        chain.is_empty() && (!last || self.closed.get())
    }
}

/// Why [`send_some`] sends no more of a body for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// All of it was sent.
    Done,
    /// A window or the outbox is full, or other streams are first: see [`poll_room`].
    Full,
    /// The next bytes are in a file. So many of them have to be read.
    File(usize),
}

/// Sends a body, in frames of at most `chunk` bytes. `last` ends the stream. Each wait for room takes `timeout` at most.
pub async fn send<S: Stream>(
    stream: &Rc<S>,
    chain: &mut Chain,
    last: bool,
    chunk: usize,
    timeout: Duration,
) -> io::Result<()> {
    let some = |chain: &mut Chain| send_some(&**stream, chain, last, chunk);
    let room = |cx: &mut Context<'_>| poll_room(stream, cx);
    send_with(stream.link().handle(), chain, timeout, some, room).await
}

/// Sends a body by repeated calls of `some`. Between them, reads from files, or waits for `room`, each time for `timeout` at
/// most.
pub async fn send_with(
    handle: &Handle,
    chain: &mut Chain,
    timeout: Duration,
    some: impl Fn(&mut Chain) -> io::Result<Pause>,
    room: impl Fn(&mut Context<'_>) -> Poll<()>,
) -> io::Result<()> {
    loop {
        match some(chain)? {
            Pause::Done => return Ok(()),
            Pause::Full => {
                let sleep = handle.sleep(timeout);
                if let Either::Right(()) = either(poll_fn(&room), sleep).await {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            Pause::File(len) => read_ahead(handle, chain, len).await?,
        }
    }
}

/// Sends as much of a body as the windows and the outbox permit now.
pub fn send_some<S: Stream>(
    stream: &S,
    chain: &mut Chain,
    last: bool,
    chunk: usize,
) -> io::Result<Pause> {
    loop {
        stream.check()?;
        if stream.body_is_unwanted() {
            chain.clear();
        }
        if stream.send_window().is_done(chain, last) {
            end_turn(stream);
            return Ok(Pause::Done);
        }
        if !chain.is_empty() && !may_send(stream) {
            return Ok(Pause::Full);
        }
        if send_file(stream, chain, last, chunk) {
            continue;
        }
        if needs_file(chain, chunk) {
            return Ok(Pause::File(READ_AHEAD.max(chunk)));
        }
        send_frame(stream, chain, last, chunk);
    }
}

/// Ends the turn of a stream that has nothing to send for now. If it has sent nothing in its turn,
/// since its body is unwanted, the next stream gets the turn: nothing else would admit that one.
fn end_turn<S: Stream>(stream: &S) {
    match stream.send_window().turn.replace(Turn::Free) {
        Turn::Queued => stream.link().dequeue(stream.id()),
        Turn::Admitted(_) => stream.link().admit(),
        Turn::Free | Turn::Sending(_) | Turn::Spent => {}
    }
}

/// Sends as much of a body in memory as the windows and the outbox permit now. True if that was all.
pub fn send_now<S: Stream>(stream: &S, chain: &mut Chain, last: bool, chunk: usize) -> bool {
    loop {
        if stream.body_is_unwanted() {
            chain.clear();
        }
        if stream.send_window().is_done(chain, last) {
            return true;
        }
        if !chain.is_empty() && !may_send(stream) {
            return false;
        }
        send_frame(stream, chain, last, chunk);
    }
}

fn may_send<S: Stream>(stream: &S) -> bool {
    let (link, own) = (stream.link(), stream.send_window());
    let turn = match own.turn.get() {
        Turn::Free => !link.is_contested(),
        Turn::Admitted(_) | Turn::Sending(_) => true,
        Turn::Queued | Turn::Spent => false,
    };
    turn && own.window.get() > 0 && link.window() > 0 && !link.out.is_full()
}

/// Changes a stream's window. False if it is then larger than a window may be.
pub(crate) fn extend<S: Stream>(stream: &Rc<S>, by: i64) -> bool {
    let (link, own) = (stream.link(), stream.send_window());
    let window = own.window.get() + by;
    own.window.set(window);
    if window > 0 && own.turn.get() != Turn::Queued {
        if link.is_contested() && own.writer.borrow().is_some() {
            // The stream queues at once, since others could be admitted before its task runs.
            queue(stream);
        } else {
            own.wake();
        }
    }
    window <= i64::from(frame::MAX_WINDOW)
}

/// Puts a stream into the queue. A stream that was admitted but could send nothing goes to the front.
fn queue<S: Stream>(stream: &Rc<S>) {
    let before = stream.send_window().turn.replace(Turn::Queued);
    if let Turn::Admitted(_) = before {
        return stream.link().enqueue_first(stream.clone());
    }
    stream.link().enqueue(stream.clone());
}

/// Ready when the stream may send more, or can send nothing any more.
pub fn poll_room<S: Stream>(stream: &Rc<S>, cx: &Context<'_>) -> Poll<()> {
    if stream.check().is_err() || stream.body_is_unwanted() || may_send(&**stream) {
        return Poll::Ready(());
    }
    let own = stream.send_window();
    wait(&own.writer, cx);
    // A stream without window of its own does not wait in the queue. It loses the turn that it had to the next.
    match own.turn.get() {
        Turn::Queued => {}
        _ if own.window.get() > 0 => queue(stream),
        turn => {
            own.turn.set(Turn::Free);
            if matches!(turn, Turn::Admitted(_) | Turn::Sending(_)) {
                stream.link().admit();
            }
        }
    }
    Poll::Pending
}

fn send_frame<S: Stream>(stream: &S, chain: &mut Chain, last: bool, chunk: usize) {
    let (link, own) = (stream.link(), stream.send_window());
    let window = own.window.get().min(link.window()).max(0);
    let most = chunk.min(link.frame_size()).min(usize::try_from(window).unwrap_or(0));
    let mut len = 0;
    link.write(|out| {
        let at = frame::leave_head(out);
        let start = out.len();
        if chain.len() > most as u64 {
            // Reserves room for the next frames, too, so that the buffer is not moved later.
            let more = usize::try_from(chain.len()).unwrap_or(usize::MAX);
            make_room(link.handle(), out, (FULL + most).saturating_sub(start).min(more));
        }
        gather(link.handle(), chain, most, out);
        len = out.len() - start;
        let end = last && chain.is_empty();
        put_head(stream, out, at, len, end);
    });
    count(stream, len, 1);
}

/// Writes the header of a DATA frame of this length. `end` sets END_STREAM.
fn put_head<S: Stream>(stream: &S, out: &mut [u8], at: usize, len: usize, end: bool) {
    let flags = if end { frame::END_STREAM } else { 0 };
    stream.send_window().closed.set(end);
    frame::put_head(out, at, FrameHead { len, kind: FrameType::Data, flags, stream: stream.id() });
}

/// Counts sent bytes of the body, and their frames.
fn count<S: Stream>(stream: &S, len: usize, frames: usize) {
    let (own, heads) = (stream.send_window(), frames * frame::HEAD);
    own.spend(len);
    stream.link().spend(len);
    own.framing.set(own.framing.get() + heads as u64);
    own.sent.set(own.sent.get() + (len + heads) as u64);
}

/// Sends frames of the file at the front of a chain, as far as the page cache has it. The file is read directly between the
/// frame headers. False if another segment is first, or nothing can be read without waiting.
fn send_file<S: Stream>(stream: &S, chain: &mut Chain, last: bool, chunk: usize) -> bool {
    let (link, own) = (stream.link(), stream.send_window());
    let Some(Segment::File { file, offset, len }) = chain.front() else { return false };
    let framing = Framing { head: frame::HEAD, body: chunk.min(link.frame_size()).max(1) };
    let window = own.window.get().min(link.window()).min(i64::try_from(*len).unwrap_or(i64::MAX));
    // The last frame may exceed the room.
    let room = link.out.room().next_multiple_of(framing.body);
    let most = usize::try_from(window).unwrap_or(0).min(own.share()).min(room);
    let files = link.handle().files();
    let mut read = None;
    let mut frames = 0;
    link.write(|out| {
        let start = out.len();
        make_room(link.handle(), out, most + framing.head * framing.frames(most));
        read = files.read_framed_now(file, out, *offset, most, framing);
        let Some(read) = read else { return };
        frames = framing.frames(read);
        let end = last && chain.len() == read as u64;
        for n in 0..frames {
            let at = start + n * (framing.head + framing.body);
            let len = (read - n * framing.body).min(framing.body);
            put_head(stream, out, at, len, end && n + 1 == frames);
        }
    });
    let Some(read) = read else { return false };
    chain.advance(read as u64);
    count(stream, read, frames);
    true
}

/// Reserves room for so many more bytes. A large buffer is taken from the loop's pool.
fn make_room(handle: &Handle, out: &mut Vec<u8>, more: usize) {
    if out.capacity() - out.len() >= more {
        return;
    }
    if more > FULL / 4 {
        let mut large = handle.take_buf(FULL);
        let room = LARGE.max(out.len() + more);
        if large.capacity() < room {
            handle.give_buf(std::mem::replace(&mut large, Vec::with_capacity(room)));
        }
        large.extend_from_slice(out);
        handle.give_buf(std::mem::replace(out, large));
    }
    out.reserve(more);
}

/// Moves at most `most` bytes of memory from the front of a chain.
pub fn gather(handle: &Handle, chain: &mut Chain, most: usize, out: &mut Vec<u8>) {
    let mut left = most;
    while left > 0 {
        let Some(memory) = chain.front().and_then(Segment::memory) else { return };
        let now = memory.get(..left).unwrap_or(memory);
        let len = now.len();
        copies::append(out, now);
        left -= len;
        chain.consume(len as u64, |buf| handle.give_buf(buf));
    }
}

/// The chain has a file, and too little memory before it for a frame.
pub fn needs_file(chain: &Chain, chunk: usize) -> bool {
    let mut ahead = 0;
    for segment in chain.segments() {
        let Some(memory) = segment.memory() else { return true };
        ahead += memory.len();
        if ahead >= chunk {
            return false;
        }
    }
    false
}

/// Reads from the first file of the chain, and inserts the bytes before the file.
async fn read_ahead(handle: &Handle, chain: &mut Chain, most: usize) -> io::Result<()> {
    let before = chain.segments().take_while(|segment| segment.memory().is_some()).count();
    let memory: Vec<Segment> = (0..before).filter_map(|_| chain.pop()).collect();
    if let Some(Segment::File { file, offset, len }) = chain.pop() {
        let room = usize::try_from(len).unwrap_or(usize::MAX).min(most);
        let (read, mut buf) = handle.files().read_at(&file, handle.take_buf(room), offset).await;
        buf.truncate(read?.min(room));
        let read = buf.len() as u64;
        if read == 0 {
            return Err(weir_engine::truncated(&file));
        }
        chain.push_front(Segment::File { file, offset: offset + read, len: len - read });
        chain.push_front(buf);
    }
    memory.into_iter().rev().for_each(|segment| chain.push_front(segment));
    Ok(())
}
