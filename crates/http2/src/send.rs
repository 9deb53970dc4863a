//! A stream's way to the other end: what of a body may be sent, and which tasks wait to send.

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

/// Read of a file at once, if a frame is not longer.
const READ_AHEAD: usize = 16 * 1024;

/// Room for as many frames as wait before streams do, and for the one after.
const LARGE: usize = FULL + FULL / 4;

/// What both ends have of a stream.
pub trait Stream: Sized {
    /// Its number.
    fn id(&self) -> u32;
    /// Its connection.
    fn link(&self) -> &Link<Self>;
    /// Its way out.
    fn way(&self) -> &SendWindow;
    /// Why nothing can be sent any more, if nothing can.
    fn check(&self) -> io::Result<()>;
    /// The other end wants no more of the body: what is left counts as sent.
    fn has_enough(&self) -> bool {
        false
    }
}

/// Where a stream stands among those that send on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It sends unless others wait.
    Free,
    /// It waits for the connection.
    Queued,
    /// The connection has room for so many bytes of it.
    Admitted(usize),
    /// It has sent some, and may send so many more.
    Sending(usize),
    /// It has sent all of them: others come first.
    Spent,
}

/// See the module.
#[derive(Debug)]
pub struct SendWindow {
    /// What may be sent.
    window: Cell<i64>,
    /// All was sent.
    closed: Cell<bool>,
    /// Bytes sent, heads of frames and all.
    sent: Cell<u64>,
    /// Bytes of heads of frames alone.
    framing: Cell<u64>,
    turn: Cell<Turn>,
    writer: RefCell<Option<Waker>>,
}

impl SendWindow {
    /// Of a stream that may send so much; `closed`: it has nothing to send.
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

    /// What may be sent now.
    pub fn window(&self) -> i64 {
        self.window.get()
    }

    /// All was sent.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Nothing more is to be sent.
    pub fn close(&self) {
        self.closed.set(true);
    }

    /// Bytes of bodies sent, heads of frames and all.
    pub fn sent(&self) -> u64 {
        self.sent.get()
    }

    /// Bytes of heads of frames among them.
    pub fn framing(&self) -> u64 {
        self.framing.get()
    }

    /// Wakes the task that sends: what it waits for has come, or will not.
    pub fn wake(&self) {
        wake(&self.writer);
    }

    /// The connection has room for so many bytes of it.
    pub(crate) fn admit(&self, bytes: usize) {
        self.turn.set(Turn::Admitted(bytes));
        self.wake();
    }

    /// So many bytes of a body were sent.
    fn spend(&self, bytes: usize) {
        self.window.set(self.window.get() - bytes as i64);
        if let Turn::Admitted(left) | Turn::Sending(left) = self.turn.get() {
            let left = left.saturating_sub(bytes);
            self.turn.set(if left == 0 { Turn::Spent } else { Turn::Sending(left) });
        }
    }

    /// What it may send before it is the turn of others.
    fn share(&self) -> usize {
        match self.turn.get() {
            Turn::Admitted(left) | Turn::Sending(left) => left,
            Turn::Free | Turn::Queued | Turn::Spent => usize::MAX,
        }
    }

    /// Nothing is left to be said of this.
    fn is_done(&self, chain: &Chain, last: bool) -> bool {
        chain.is_empty() && (!last || self.closed.get())
    }
}

/// Why [`send_some`] sends no more of a body for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// All of it was sent.
    Done,
    /// The other end, or the connection, takes no more: see [`poll_room`].
    Full,
    /// What is next is in a file, and so many bytes of it have to be read.
    File(usize),
}

/// Sends a body, in frames of at most `chunk` bytes; `last` ends it. Waits while the other end, or the connection, takes
/// no more, for `timeout` at most.
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

/// Sends a body as far as `some` takes it at a time: reads files ahead, and waits for `room`, each time for `timeout` at
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

/// Sends what the other end, and the connection, take now of a body.
pub fn send_some<S: Stream>(
    stream: &S,
    chain: &mut Chain,
    last: bool,
    chunk: usize,
) -> io::Result<Pause> {
    loop {
        stream.check()?;
        if stream.has_enough() {
            chain.clear();
        }
        if stream.way().is_done(chain, last) {
            stream.way().turn.set(Turn::Free);
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

/// Sends what the other end, and the connection, take now of a body in memory. True when that was all.
pub fn send_now<S: Stream>(stream: &S, chain: &mut Chain, last: bool, chunk: usize) -> bool {
    loop {
        if stream.has_enough() {
            chain.clear();
        }
        if stream.way().is_done(chain, last) {
            return true;
        }
        if !chain.is_empty() && !may_send(stream) {
            return false;
        }
        send_frame(stream, chain, last, chunk);
    }
}

fn may_send<S: Stream>(stream: &S) -> bool {
    let (link, way) = (stream.link(), stream.way());
    let turn = match way.turn.get() {
        Turn::Free => !link.is_contested(),
        Turn::Admitted(_) | Turn::Sending(_) => true,
        Turn::Queued | Turn::Spent => false,
    };
    turn && way.window.get() > 0 && link.window() > 0 && !link.out.is_full()
}

/// The other end takes so much more of a stream, or less. False if that is more than a window may be.
pub(crate) fn extend<S: Stream>(stream: &Rc<S>, by: i64) -> bool {
    let (link, way) = (stream.link(), stream.way());
    let window = way.window.get() + by;
    way.window.set(window);
    if window > 0 && way.turn.get() != Turn::Queued {
        if link.is_contested() && way.writer.borrow().is_some() {
            // Others came first. They may be let in before this one's task runs.
            queue(stream);
        } else {
            way.wake();
        }
    }
    window <= i64::from(frame::MAX_WINDOW)
}

/// The stream waits for the connection, behind those that wait already. One that was let in, and found no room, keeps its place.
fn queue<S: Stream>(stream: &Rc<S>) {
    let before = stream.way().turn.replace(Turn::Queued);
    if let Turn::Admitted(_) = before {
        return stream.link().enqueue_first(stream.clone());
    }
    stream.link().enqueue(stream.clone());
}

/// Waits until more of a body can be sent, or none at all.
pub fn poll_room<S: Stream>(stream: &Rc<S>, cx: &Context<'_>) -> Poll<()> {
    if stream.check().is_err() || stream.has_enough() || may_send(&**stream) {
        return Poll::Ready(());
    }
    let way = stream.way();
    wait(&way.writer, cx);
    // A stream that waits for its own window does not hold a place among those that wait for the connection. The place that it
    // had is used up.
    match way.turn.get() {
        Turn::Queued => {}
        _ if way.window.get() > 0 => queue(stream),
        _ => way.turn.set(Turn::Free),
    }
    Poll::Pending
}

fn send_frame<S: Stream>(stream: &S, chain: &mut Chain, last: bool, chunk: usize) {
    let (link, way) = (stream.link(), stream.way());
    let window = way.window.get().min(link.window()).max(0);
    let most = chunk.min(link.frame_size()).min(usize::try_from(window).unwrap_or(0));
    let mut len = 0;
    link.write(|out| {
        let at = frame::leave_head(out);
        let start = out.len();
        if chain.len() > most as u64 {
            // Room for what follows, too, so that nothing is moved later.
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

/// Writes the head of a frame of so many bytes of the body; `end`: it is the last one.
fn put_head<S: Stream>(stream: &S, out: &mut [u8], at: usize, len: usize, end: bool) {
    let flags = if end { frame::END_STREAM } else { 0 };
    stream.way().closed.set(end);
    frame::put_head(out, at, FrameHead { len, kind: FrameType::Data, flags, stream: stream.id() });
}

/// So many bytes of the body were sent, in so many frames.
fn count<S: Stream>(stream: &S, len: usize, frames: usize) {
    let (way, heads) = (stream.way(), frames * frame::HEAD);
    way.spend(len);
    stream.link().spend(len as i64);
    way.framing.set(way.framing.get() + heads as u64);
    way.sent.set(way.sent.get() + (len + heads) as u64);
}

/// Sends frames of the file that is first in a chain, as far as it is in memory: it is read to where the frames are. False if
/// another segment is first, or nothing of the file can be had at once.
fn send_file<S: Stream>(stream: &S, chain: &mut Chain, last: bool, chunk: usize) -> bool {
    let (link, way) = (stream.link(), stream.way());
    let Some(Segment::File { file, offset, len }) = chain.front() else { return false };
    let framing = Framing { head: frame::HEAD, body: chunk.min(link.frame_size()).max(1) };
    let window = way.window.get().min(link.window()).min(i64::try_from(*len).unwrap_or(i64::MAX));
    // The last frame may be a whole one.
    let room = link.out.room().next_multiple_of(framing.body);
    let most = usize::try_from(window).unwrap_or(0).min(way.share()).min(room);
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

/// Makes room for so many bytes more. A buffer for many frames is one of the loop's.
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

/// Moves at most so much memory from the head of a chain.
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

/// There is a file in the chain, and not memory enough for a frame before it.
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

/// Reads the first file in the chain, as far as a frame needs it, into the memory before it.
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
