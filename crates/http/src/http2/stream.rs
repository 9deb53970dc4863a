//! A stream: a request's way in and its answer's way out.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_engine::{Chain, Either, either};
use weir_http2::{SendWindow, wait, wake};
use weir_proto::http2::frame::{self, ErrorCode};
use weir_proto::http2::hpack;

use super::link::Link;

/// What a request that waits for its body lets the client send, at least.
const READING: u32 = 256 * 1024;

/// One stream of a connection.
pub struct Stream {
    /// The connection.
    pub link: Rc<Link>,
    /// Its number.
    pub id: u32,
    /// What goes.
    way: SendWindow,
    /// What the client may send of its body.
    credit: Cell<i64>,
    /// What it has announced, and not sent.
    announced: Cell<Option<u64>>,
    /// What it has sent is not what it has announced.
    malformed: Cell<bool>,
    /// What the client has sent, and the request has not read.
    incoming: RefCell<Vec<u8>>,
    /// The client has sent all.
    ended: Cell<bool>,
    /// Bytes of trailers that were sent.
    trailers: Cell<u64>,
    /// It was reset by either side, or its connection is gone.
    gone: Cell<bool>,
    /// The client took too long, or is not to be answered.
    timed_out: Cell<bool>,
    /// This side has reset it.
    reset: Cell<bool>,
    reader: RefCell<Option<Waker>>,
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
            way: SendWindow::new(link.initial_window(), false),
            credit: Cell::new(credit),
            announced: Cell::new(announced),
            malformed: Cell::new(false),
            incoming: RefCell::default(),
            ended: Cell::new(ended),
            trailers: Cell::new(0),
            gone: Cell::new(false),
            timed_out: Cell::new(false),
            reset: Cell::new(false),
            reader: RefCell::default(),
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
        self.way.is_closed()
    }

    /// Bytes sent that are neither of the answer's head nor of its body: heads of frames, and trailers.
    pub fn framing(&self) -> u64 {
        self.way.framing() + self.trailers.get()
    }

    /// The client took too long to send, or to take; or it was shut out.
    pub fn has_timed_out(&self) -> bool {
        self.timed_out.get()
    }

    /// The client gets no answer, and nothing is wrong here: told as if it had taken too long.
    pub fn shut_out(&self) {
        self.timed_out.set(true);
    }

    /// The stream is gone: what is said here is not sent.
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
        self.way.wake();
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

impl weir_http2::Stream for Stream {
    fn id(&self) -> u32 {
        self.id
    }

    fn link(&self) -> &weir_http2::Link<Stream> {
        &self.link
    }

    fn way(&self) -> &SendWindow {
        &self.way
    }

    fn check(&self) -> io::Result<()> {
        if self.gone.get() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
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
        let sleep = self.link.event_loop.handle.sleep(timeout);
        if let Either::Right(()) = either(poll_fn(|cx| self.poll_incoming(cx)), sleep).await {
            self.timed_out.set(true);
        }
    }

    /// Waits until the client has sent something that is not read yet, or has ended the stream; at
    /// most so long.
    pub async fn touched(&self, timeout: Duration) {
        if !self.has_incoming() {
            let sleep = self.link.event_loop.handle.sleep(timeout);
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
    /// Sends a head: whole frames.
    pub fn send_head(&self, frames: &[u8], last: bool) -> io::Result<()> {
        if self.gone.get() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if last {
            self.way.close();
        }
        self.link.write(|out| out.extend_from_slice(frames));
        Ok(())
    }

    /// Sends a body, in frames of at most `chunk` bytes; `last` ends it. Waits while the client, or the
    /// connection, takes no more. The answer is the number of bytes sent, framing and all, and how it ended.
    pub async fn send(
        self: &Rc<Self>,
        chain: &mut Chain,
        last: bool,
        chunk: usize,
        timeout: Duration,
    ) -> (u64, io::Result<()>) {
        let before = self.way.sent();
        let sent = weir_http2::send(self, chain, last, chunk, timeout).await;
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
            self.timed_out.set(true);
        }
        (self.way.sent() - before, sent)
    }

    /// What follows the body, as frames of their own.
    pub fn send_trailers(&self, frames: &[u8]) -> io::Result<()> {
        self.trailers.set(self.trailers.get() + frames.len() as u64);
        self.send_head(frames, true)
    }

    /// An interim answer.
    pub fn send_interim<'a>(
        &self,
        status: u16,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> io::Result<u64> {
        let mut frames = Vec::new();
        let begin = frame::leave_head(&mut frames);
        hpack::status(status, &mut frames);
        fields.for_each(|(name, value)| hpack::field(name, value, &mut frames));
        frame::finish_headers(&mut frames, begin, self.id, 0, self.link.frame_size());
        self.send_head(&frames, false)?;
        Ok(frames.len() as u64)
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
