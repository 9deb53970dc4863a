//! A stream: a request's way in and its answer's way out.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_engine::{Chain, Either, Handle, Segment, either};
use weir_proto::http2::frame::{self, ErrorCode, FrameHead, Kind};
use weir_proto::http2::hpack;

use super::link::Link;
use super::outbox::{wait, wake};

/// What a request that waits for its body lets the client send, at least.
const READING: u32 = 256 * 1024;
/// Read of a file at once, if a frame is not longer.
const READ_AHEAD: usize = 16 * 1024;

/// One stream of a connection.
pub struct Stream {
    /// The connection.
    pub link: Rc<Link>,
    /// Its number.
    pub id: u32,
    /// What may be sent of its body.
    window: Cell<i64>,
    /// What the client may send of its body.
    credit: Cell<i64>,
    /// What it has announced, and not sent.
    announced: Cell<Option<u64>>,
    /// What it has sent is not what it has announced.
    malformed: Cell<bool>,
    /// What it has sent, and nobody has read.
    incoming: RefCell<Vec<u8>>,
    /// The client has sent all.
    ended: Cell<bool>,
    /// All was sent to the client.
    closed: Cell<bool>,
    /// Bytes sent that are neither of the head nor of the body.
    framing: Cell<u64>,
    /// It was reset by either side, or its connection is gone.
    gone: Cell<bool>,
    /// The client took too long, or is not to be answered.
    timed_out: Cell<bool>,
    /// This side has reset it.
    reset: Cell<bool>,
    /// It waits for the connection.
    queued: Cell<bool>,
    /// The connection has room for it now.
    admitted: Cell<bool>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
    watchers: RefCell<Vec<Waker>>,
}

impl Stream {
    /// A new stream; `credit` is what the client may send, `announced` what it has said it will.
    pub fn new(
        link: Rc<Link>,
        id: u32,
        ended: bool,
        credit: i64,
        announced: Option<u64>,
    ) -> Rc<Stream> {
        Rc::new(Stream {
            id,
            window: Cell::new(link.initial_window()),
            credit: Cell::new(credit),
            announced: Cell::new(announced),
            malformed: Cell::new(false),
            incoming: RefCell::default(),
            ended: Cell::new(ended),
            closed: Cell::new(false),
            framing: Cell::new(0),
            gone: Cell::new(false),
            timed_out: Cell::new(false),
            reset: Cell::new(false),
            queued: Cell::new(false),
            admitted: Cell::new(false),
            reader: RefCell::default(),
            writer: RefCell::default(),
            watchers: RefCell::default(),
            link,
        })
    }

    /// The client has sent all.
    pub fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// All was sent to the client.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Bytes sent that are neither of the answer's head nor of its body: heads of frames, and trailers.
    pub fn framing(&self) -> u64 {
        self.framing.get()
    }

    /// The client took too long to send, or to take; or it was shut out.
    pub fn has_timed_out(&self) -> bool {
        self.timed_out.get()
    }

    /// The client gets no answer, and nothing is wrong here: told as if it had taken too long.
    pub fn shut_out(&self) {
        self.timed_out.set(true);
    }

    /// Nobody hears what is said here.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// This end has given it up.
    pub fn was_reset(&self) -> bool {
        self.reset.get()
    }

    /// Waits until the client gives the stream up, or the connection ends.
    pub async fn gone(&self) {
        poll_fn(|cx| {
            if self.gone.get() {
                return Poll::Ready(());
            }
            let mut watchers = self.watchers.borrow_mut();
            if !watchers.iter().any(|waker| waker.will_wake(cx.waker())) {
                watchers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// The stream ends at once.
    pub fn fail(&self) {
        self.gone.set(true);
        self.ended.set(true);
        wake(&self.reader);
        wake(&self.writer);
        for waker in self.watchers.take() {
            waker.wake();
        }
    }

    /// Ends the stream at once, and tells the client why.
    pub fn reset(&self, code: ErrorCode) {
        if !self.gone.get() && !self.reset.replace(true) {
            self.link.note_reset(self.id, self.announced.get());
            self.link.write(|out| frame::write_reset(self.id, code, out));
        }
        self.fail();
    }
}

/// What comes.
impl Stream {
    /// What the client may send still.
    pub fn credit(&self) -> i64 {
        self.credit.get()
    }

    /// Takes a piece of the body; `last` marks its end.
    pub fn take(&self, data: &[u8], framed: usize, last: bool) {
        self.credit.set(self.credit.get() - framed as i64);
        self.incoming.borrow_mut().extend_from_slice(data);
        let left = still_announced(self.announced.get(), data.len(), last);
        self.announced.set(left.unwrap_or_default());
        self.malformed.set(self.malformed.get() || left.is_err());
        if last {
            self.ended.set(true);
        }
        if !data.is_empty() || last {
            wake(&self.reader);
        }
    }

    /// The body is not as long as it was said to be.
    pub fn is_malformed(&self) -> bool {
        self.malformed.get()
    }

    /// All of the body was read, or it was given up.
    pub fn is_drained(&self) -> bool {
        self.ended.get() && self.incoming.borrow().is_empty()
    }

    /// Something is there to be received, or nothing more will come.
    pub fn has_incoming(&self) -> bool {
        self.ended.get() || !self.incoming.borrow().is_empty()
    }

    /// Receives what is there, or waits for it; 0 at the end. Lets the client send on, `window` bytes at least.
    pub async fn receive(
        &self,
        buf: &mut Vec<u8>,
        window: u64,
        timeout: Duration,
    ) -> io::Result<usize> {
        self.readable(window, timeout).await;
        if self.timed_out.get() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.gone.get() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let mut incoming = self.incoming.borrow_mut();
        let received = incoming.len();
        buf.append(&mut incoming);
        Ok(received)
    }

    /// Waits until there is something to receive, or until the client has taken too long.
    pub async fn readable(&self, window: u64, timeout: Duration) {
        if self.has_incoming() || self.timed_out.get() {
            return;
        }
        self.invite(window);
        let sleep = self.link.worker.handle.sleep(timeout);
        if let Either::Right(()) = either(poll_fn(|cx| self.poll_incoming(cx)), sleep).await {
            self.timed_out.set(true);
        }
    }

    /// Waits until the client has sent something that nobody has read, or has ended the stream; at most so long.
    pub async fn touched(&self, timeout: Duration) {
        if !self.has_incoming() {
            let sleep = self.link.worker.handle.sleep(timeout);
            let _ = either(poll_fn(|cx| self.poll_incoming(cx)), sleep).await;
        }
    }

    fn poll_incoming(&self, cx: &Context<'_>) -> Poll<()> {
        if self.has_incoming() {
            return Poll::Ready(());
        }
        wait(&self.reader, cx);
        Poll::Pending
    }

    /// All that came was read: the client may send on.
    fn invite(&self, window: u64) {
        let window = i64::from(u32::try_from(window).unwrap_or(frame::MAX_WINDOW).max(READING));
        let window = window.min(i64::from(frame::MAX_WINDOW));
        let credit = self.credit.get();
        if credit <= window / 2 {
            let by = (window - credit) as u32;
            self.credit.set(window);
            self.link.write(|out| frame::write_window_update(self.id, by, out));
        }
    }
}

/// What goes.
impl Stream {
    /// The client takes so much more, or less. False if that is more than a window may be.
    pub fn extend(&self, by: i64) -> bool {
        let window = self.window.get() + by;
        self.window.set(window);
        if window > 0 && !self.queued.get() {
            wake(&self.writer);
        }
        window <= i64::from(frame::MAX_WINDOW)
    }

    /// The connection has room for it.
    pub fn admit(&self) {
        self.queued.set(false);
        self.admitted.set(true);
        wake(&self.writer);
    }

    /// Sends a head: whole frames.
    pub fn send_head(&self, frames: &[u8], last: bool) -> io::Result<()> {
        if self.gone.get() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if last {
            self.closed.set(true);
        }
        self.link.write(|out| out.extend_from_slice(frames));
        Ok(())
    }

    /// Sends a body, in frames of at most `chunk` bytes; `last` ends it. Waits while the client, or the
    /// connection, takes no more. The answer is the number of bytes sent, framing and all.
    pub async fn send(
        self: &Rc<Self>,
        chain: &mut Chain,
        last: bool,
        chunk: usize,
        timeout: Duration,
    ) -> io::Result<u64> {
        let mut sent = 0;
        loop {
            if self.gone.get() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if chain.is_empty() && (!last || self.closed.get()) {
                self.admitted.set(false);
                return Ok(sent);
            }
            if !chain.is_empty() && !self.may_send() {
                let sleep = self.link.worker.handle.sleep(timeout);
                let room = poll_fn(|cx| self.poll_room(cx));
                if let Either::Right(()) = either(room, sleep).await {
                    self.timed_out.set(true);
                    return Err(io::ErrorKind::TimedOut.into());
                }
                continue;
            }
            self.fill(chain, chunk).await?;
            sent += self.send_frame(chain, last, chunk);
        }
    }

    /// What follows the body, as frames of their own.
    pub fn send_trailers(&self, frames: &[u8]) -> io::Result<()> {
        self.framing.set(self.framing.get() + frames.len() as u64);
        self.send_head(frames, true)
    }

    /// An interim answer.
    pub fn send_hints<'a>(
        &self,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> io::Result<u64> {
        let mut frames = Vec::new();
        let begin = frame::leave_head(&mut frames);
        hpack::status(103, &mut frames);
        fields.for_each(|(name, value)| hpack::field(name, value, &mut frames));
        frame::finish_headers(&mut frames, begin, self.id, 0, self.link.frame_size());
        self.send_head(&frames, false)?;
        Ok(frames.len() as u64)
    }

    /// Reads files at the head of the chain, if there is not memory enough for a frame before them.
    async fn fill(&self, chain: &mut Chain, chunk: usize) -> io::Result<()> {
        let (mut ahead, mut before) = (0, 0);
        for segment in chain.segments() {
            let Some(memory) = segment.memory() else { break };
            (ahead, before) = (ahead + memory.len(), before + 1);
            if ahead >= chunk {
                return Ok(());
            }
        }
        if before == chain.segments().count() {
            return Ok(());
        }
        let handle = &self.link.worker.handle;
        let memory: Vec<Segment> = (0..before).filter_map(|_| chain.pop()).collect();
        if let Some(Segment::File { file, offset, len }) = chain.pop() {
            let room = usize::try_from(len).unwrap_or(usize::MAX).min(READ_AHEAD.max(chunk));
            let (read, mut buf) =
                handle.files().read_at(&file, handle.take_buf(room), offset).await;
            buf.truncate(read?.min(room));
            let read = buf.len() as u64;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            chain.push_front(Segment::File { file, offset: offset + read, len: len - read });
            chain.push_front(buf);
        }
        memory.into_iter().rev().for_each(|segment| chain.push_front(segment));
        Ok(())
    }

    fn may_send(&self) -> bool {
        let link = &self.link;
        let turn = self.admitted.get() || !link.is_contested();
        turn && self.window.get() > 0 && link.window() > 0 && !link.out.is_full()
    }

    fn poll_room(self: &Rc<Self>, cx: &Context<'_>) -> Poll<()> {
        if self.gone.get() || self.may_send() {
            return Poll::Ready(());
        }
        wait(&self.writer, cx);
        // Who waits for its own window does not hold a place among those who wait for the connection.
        if self.window.get() > 0 && !self.queued.replace(true) {
            self.admitted.set(false);
            self.link.enqueue(self.clone());
        }
        Poll::Pending
    }

    fn send_frame(&self, chain: &mut Chain, last: bool, chunk: usize) -> u64 {
        let link = &self.link;
        let window = self.window.get().min(link.window()).max(0);
        let most = chunk.min(link.frame_size()).min(usize::try_from(window).unwrap_or(0));
        let mut len = 0;
        link.write(|out| {
            let at = frame::leave_head(out);
            let start = out.len();
            gather(&link.worker.handle, chain, most, out);
            len = out.len() - start;
            let end = last && chain.is_empty();
            let flags = if end { frame::END_STREAM } else { 0 };
            self.closed.set(end);
            let head = FrameHead { len, kind: Kind::Data, flags, stream: self.id };
            frame::put_head(out, at, head);
        });
        self.window.set(self.window.get() - len as i64);
        link.spend(len as i64);
        self.framing.set(self.framing.get() + frame::HEAD as u64);
        (len + frame::HEAD) as u64
    }
}

/// What a body of an announced length still lacks after a piece of it.
pub fn still_announced(
    announced: Option<u64>,
    len: usize,
    last: bool,
) -> Result<Option<u64>, WrongLength> {
    let Some(announced) = announced else { return Ok(None) };
    match announced.checked_sub(len as u64) {
        None => Err(WrongLength),
        Some(left) if last && left > 0 => Err(WrongLength),
        left => Ok(left),
    }
}

/// A body is longer or shorter than it was said to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongLength;

/// Moves at most so much memory from the head of a chain.
fn gather(handle: &Handle, chain: &mut Chain, most: usize, out: &mut Vec<u8>) {
    let mut left = most;
    while left > 0 {
        let Some(memory) = chain.front().and_then(Segment::memory) else { return };
        let now = memory.get(..left).unwrap_or(memory);
        let len = now.len();
        out.extend_from_slice(now);
        left -= len;
        chain.consume(len as u64, |buf| handle.give_buf(buf));
    }
}
