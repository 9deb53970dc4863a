//! A stream: a request's way in and its answer's way out.

mod carried;
mod hq;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_engine::{Either, either};
use weir_http2::{wait, wake};
use weir_proto::http1::ComposeError;
use weir_proto::http3::qpack::QpackError;
use weir_proto::http3::{ErrorCode, FrameError, RequestFrames, RequestPart, Role};
use weir_quic::{ReadOutcome, StreamGone, StreamId};

use super::link::Link;
use crate::carrier::RequestStream;

/// Read of a stream at once.
const READ: usize = 64 * 1024;
/// Fields may take so much more as they come than they do in text: Huffman's code is never that bad.
const SECTION_SLACK: usize = 16 * 1024;

/// One stream of a connection.
pub struct Stream {
    /// The connection.
    pub link: Rc<Link>,
    /// Its number.
    pub id: StreamId,
    frames: RefCell<RequestFrames>,
    /// Bytes that have come.
    came: Cell<u64>,
    /// When the first of them came.
    first: Cell<Option<Instant>>,
    /// A section of fields, as far as it has come.
    section: RefCell<Vec<u8>>,
    /// The head was read, and the request has begun.
    begun: Cell<bool>,
    /// The request has ended; the last of its answer may still be on its way.
    over: Cell<bool>,
    /// A section waits for what it refers to.
    blocked: Cell<bool>,
    /// What came, and was not looked at while a section is blocked, or the request does not read.
    unread: RefCell<Bytes>,
    /// What the client has sent of the body, and the request has not read.
    incoming: RefCell<Vec<u8>>,
    /// How much of that may wait.
    room: Cell<usize>,
    /// What it has announced of the body, and not sent.
    announced: Cell<Option<u64>>,
    /// What it has sent is not what it has announced.
    malformed: Cell<bool>,
    /// The body is complete: trailers have come behind it, or the end.
    complete: Cell<bool>,
    /// The client has sent all.
    ended: Cell<bool>,
    /// A written head that leaves with the piece of the body that follows.
    head: RefCell<Vec<u8>>,
    /// Written, and not taken by QUIC yet.
    outgoing: RefCell<Vec<Bytes>>,
    /// The bytes of it that the link counts.
    held: Cell<usize>,
    /// QUIC has taken some since a request last waited for room.
    moved: Cell<bool>,
    /// All was written that there is.
    closed: Cell<bool>,
    /// QUIC was told that nothing follows.
    finished: Cell<bool>,
    /// The client has all of the answer.
    acknowledged: Cell<bool>,
    /// It was given up by either side, or its connection is gone.
    gone: Cell<bool>,
    timed_out: Cell<bool>,
    sent: Cell<u64>,
    framing: Cell<u64>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
    watchers: RefCell<Vec<Waker>>,
}

impl Stream {
    /// A stream that the client has opened.
    pub fn new(link: Rc<Link>, id: StreamId) -> Rc<Stream> {
        let largest = link.server().conf.head_limits.total * 2 + SECTION_SLACK;
        let room = link.stream_window();
        Rc::new(Stream {
            id,
            frames: RefCell::new(RequestFrames::new(Role::Server, largest)),
            came: Cell::new(0),
            first: Cell::new(None),
            section: RefCell::default(),
            begun: Cell::new(false),
            over: Cell::new(false),
            blocked: Cell::new(false),
            unread: RefCell::default(),
            incoming: RefCell::default(),
            room: Cell::new(room),
            announced: Cell::new(None),
            malformed: Cell::new(false),
            complete: Cell::new(false),
            ended: Cell::new(false),
            head: RefCell::default(),
            outgoing: RefCell::default(),
            held: Cell::new(0),
            moved: Cell::new(false),
            closed: Cell::new(false),
            finished: Cell::new(false),
            acknowledged: Cell::new(false),
            gone: Cell::new(false),
            timed_out: Cell::new(false),
            sent: Cell::new(0),
            framing: Cell::new(0),
            reader: RefCell::default(),
            writer: RefCell::default(),
            watchers: RefCell::default(),
            link,
        })
    }

    /// The request has begun; `announced` is what its body is said to be long.
    pub fn begin(&self, announced: Option<u64>) {
        self.begun.set(true);
        self.announced.set(announced);
    }

    /// No request has the stream: it has not begun, or has ended.
    pub fn is_free(&self) -> bool {
        !self.begun.get() || self.over.get()
    }

    /// Bytes that have come on it, without those that wait to be looked at.
    pub fn understood(&self) -> u64 {
        self.came.get().saturating_sub(self.unread.borrow().len() as u64)
    }

    /// The head was read.
    pub fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// The request has ended. The connection keeps the stream until the client has all of the answer.
    pub fn request_is_over(&self) {
        self.over.set(true);
        if self.gone.get() || self.acknowledged.get() {
            self.link.remove(self.id);
        }
    }

    /// The client has all of the answer. The request may still throw away what it sends.
    pub fn answer_arrived(&self) {
        self.acknowledged.set(true);
        if self.is_free() {
            self.link.remove(self.id);
        }
    }

    /// The client has sent all.
    pub fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// All was written.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// What is said here is not sent.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// The body is not as long as it was said to be.
    pub fn is_malformed(&self) -> bool {
        self.malformed.get()
    }

    /// Ends at once, without a word.
    pub fn fail(&self) {
        self.gone.set(true);
        self.ended.set(true);
        wake(&self.reader);
        wake(&self.writer);
        for waker in self.watchers.take() {
            waker.wake();
        }
        if self.is_free() {
            self.link.remove(self.id);
        }
    }

    /// Gives up what comes and what goes, and tells the client why.
    pub fn reset(&self, code: ErrorCode) {
        if !self.gone.get() {
            let quic = &self.link.quic;
            if !self.ended.get() {
                quic.stop(self.id, code as u64);
                self.link.cancelled(self.id);
            }
            if !self.finished.get() {
                quic.reset(self.id, code as u64);
            }
        }
        self.fail();
    }

    /// Throws the rest of the body away, until it ends or the client pauses for `silence`; for `most` altogether. Chromium
    /// shows its page an answer only once it has sent all, and never if it was told to stop.
    pub async fn throw_away(&self, silence: Duration, most: Duration) {
        if self.has_whole_body() {
            return;
        }
        let handle = &self.link.event_loop().handle;
        let rest = async {
            while !self.has_whole_body() {
                self.incoming.borrow_mut().clear();
                self.link.read_on(self.id);
                let came = poll_fn(|cx| self.poll_incoming(cx));
                if let Either::Right(()) = either(came, handle.sleep(silence)).await {
                    return;
                }
            }
        };
        let _ = either(rest, handle.sleep(most)).await;
    }

    /// The answer is complete: what the client still sends is not wanted.
    pub fn stop(&self) {
        if !self.gone.get() && !self.ended.get() {
            self.link.quic.stop(self.id, ErrorCode::NoError as u64);
            self.link.cancelled(self.id);
        }
    }

    /// The client wants no more of the answer.
    pub fn stopped(self: &Rc<Self>) {
        if !self.gone.get() {
            self.link.cut(self, ComposeError::Cut);
            self.link.quic.reset(self.id, ErrorCode::RequestCancelled as u64);
            self.finished.set(true);
            self.fail();
        }
    }

    /// A section that was blocked may be readable now.
    pub fn unblock(self: &Rc<Self>) {
        if self.blocked.replace(false) && !self.gone.get() {
            let section = self.section.take();
            match self.whole_section(&section) {
                Ok(()) => self.read_on(),
                Err(error) => self.link.broken(&error),
            }
        }
    }

    /// Reads what came, as far as the request wants it. An error of the protocol ends the connection.
    pub fn read_on(self: &Rc<Self>) {
        if let Err(error) = self.read_frames() {
            self.link.broken(&error);
        }
    }

    fn read_frames(self: &Rc<Self>) -> Result<(), StreamError> {
        if self.blocked.get() && !self.gone.get() && self.link.quic.was_reset(self.id) {
            self.blocked.set(false);
            self.ended.set(true);
            self.link.cancelled(self.id);
            self.link.cut(self, ComposeError::Cut);
        }
        while !self.gone.get() && !self.ended.get() && !self.blocked.get() {
            if self.incoming.borrow().len() >= self.room.get() {
                return Ok(());
            }
            let kept = std::mem::take(&mut *self.unread.borrow_mut());
            let bytes = if kept.is_empty() {
                match self.link.quic.read(self.id, READ) {
                    ReadOutcome::Bytes(bytes) => {
                        self.arrived(bytes.len());
                        bytes
                    }
                    ReadOutcome::Wait => return Ok(()),
                    ReadOutcome::End => return self.end(),
                    ReadOutcome::Reset(_) | ReadOutcome::Gone => {
                        self.given_up();
                        return Ok(());
                    }
                }
            } else {
                kept
            };
            self.understand(bytes)?;
            if self.link.is_flooded() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// When its first bytes came.
    pub fn first_bytes(&self) -> Option<Instant> {
        self.first.get()
    }

    fn arrived(&self, len: usize) {
        self.link.counts(len, 0);
        if self.first.get().is_none() {
            self.first.set(Some(self.link.event_loop().handle.now()));
        }
        self.came.set(self.came.get() + len as u64);
    }

    /// The client gives its request up.
    fn given_up(self: &Rc<Self>) {
        self.link.cut(self, ComposeError::Cut);
        if !self.finished.get() {
            self.link.quic.reset(self.id, ErrorCode::RequestCancelled as u64);
        }
        self.finished.set(true);
        if !self.ended.get() {
            self.link.cancelled(self.id);
        }
        self.fail();
    }

    /// The client has sent all.
    fn end(self: &Rc<Self>) -> Result<(), StreamError> {
        let whole = match self.link.is_hq() {
            true if self.begun.get() => Ok(()),
            true => Err(FrameError::NoHead),
            false => self.frames.borrow().finish(),
        };
        match whole {
            Ok(()) => {}
            Err(FrameError::NoHead) => {
                self.link.cut(self, ComposeError::Cut);
                self.reset(ErrorCode::RequestIncomplete);
                return Ok(());
            }
            Err(error) => return Err(StreamError::Frame(error)),
        }
        self.ended.set(true);
        self.body_is_complete();
        Ok(())
    }

    /// Nothing of the body is to come.
    fn has_whole_body(&self) -> bool {
        self.complete.get() || self.ended.get()
    }

    /// Trailers may come before the end does, but nothing of the body comes behind them (RFC 9114, section 4.1).
    fn body_is_complete(&self) {
        self.complete.set(true);
        if self.announced.get().is_some_and(|left| left > 0) {
            self.malformed.set(true);
        }
        wake(&self.reader);
    }

    fn understand(self: &Rc<Self>, bytes: Bytes) -> Result<(), StreamError> {
        if self.link.is_hq() {
            self.read_line(&bytes);
            return Ok(());
        }
        let mut rest = bytes;
        while !rest.is_empty() && !self.gone.get() {
            if self.blocked.get() || self.incoming.borrow().len() >= self.room.get() {
                *self.unread.borrow_mut() = rest;
                return Ok(());
            }
            let read = self.frames.borrow_mut().read(&rest);
            let (taken, part) = match read {
                Err(FrameError::LargeSection(_)) => {
                    self.link.too_large(self);
                    return Ok(());
                }
                Err(error) => return Err(StreamError::Frame(error)),
                Ok(read) => read,
            };
            let now = rest.split_to(taken.min(rest.len()));
            match part {
                RequestPart::Nothing => {}
                RequestPart::Data { piece, .. } => {
                    self.take(now.get(piece).unwrap_or_default());
                }
                RequestPart::Fields { piece, left, .. } => {
                    let (piece, mut section) =
                        (now.get(piece).unwrap_or_default(), self.section.take());
                    if left > 0 || !section.is_empty() {
                        section.extend_from_slice(piece);
                    }
                    if left > 0 {
                        self.section.replace(section);
                        continue;
                    }
                    // The end may have come with it: a request without a body.
                    *self.unread.borrow_mut() = std::mem::take(&mut rest);
                    self.whole_section(if section.is_empty() { piece } else { &section })?;
                    rest = std::mem::take(&mut *self.unread.borrow_mut());
                }
            }
        }
        Ok(())
    }

    /// Takes a piece of the body.
    fn take(&self, data: &[u8]) {
        self.incoming.borrow_mut().extend_from_slice(data);
        self.link.counts(0, data.len());
        if let Some(left) = self.announced.get() {
            match left.checked_sub(data.len() as u64) {
                Some(left) => self.announced.set(Some(left)),
                None => self.malformed.set(true),
            }
        }
        wake(&self.reader);
    }

    fn whole_section(self: &Rc<Self>, section: &[u8]) -> Result<(), StreamError> {
        self.link.counts(0, section.len());
        let is_behind = self.begun.get();
        let is_read = match is_behind {
            false => self.link.head(self, section)?,
            true => self.link.trailers(self, section)?,
        };
        if !is_read {
            self.section.replace(section.to_vec());
            self.blocked.set(true);
        } else if is_behind {
            self.body_is_complete();
        }
        Ok(())
    }

    /// Nothing follows what has come so far, as far as is known already. A request without a body is complete with its head.
    pub fn sees_end(self: &Rc<Self>) -> bool {
        // Not before the head is understood: a client may still reset a stream whose head is blocked.
        if !self.ended.get() && self.unread.borrow().is_empty() {
            match self.link.quic.read(self.id, READ) {
                ReadOutcome::Bytes(bytes) => {
                    self.arrived(bytes.len());
                    *self.unread.borrow_mut() = bytes;
                }
                ReadOutcome::End => self.ended.set(true),
                ReadOutcome::Wait | ReadOutcome::Reset(_) | ReadOutcome::Gone => {}
            }
        }
        self.ended.get()
    }

    /// QUIC takes more of what waits.
    pub fn writable(&self) {
        if self.flush() || self.moved.get() {
            wake(&self.writer);
        }
    }

    /// True if nothing waits any more.
    fn flush(&self) -> bool {
        let all = self.write();
        let waits = self.outgoing.borrow().iter().map(Bytes::len).sum();
        self.link.hold(self.held.replace(waits), waits);
        all
    }

    fn write(&self) -> bool {
        let mut outgoing = self.outgoing.borrow_mut();
        while !outgoing.is_empty() && !self.gone.get() {
            match self.link.quic.write(self.id, &mut outgoing) {
                Ok(0) => return false,
                Ok(_) => {
                    self.moved.set(true);
                    outgoing.retain(|part| !part.is_empty());
                }
                Err(StreamGone(_)) => {
                    outgoing.clear();
                    drop(outgoing);
                    // The client may have stopped it, and waits for the answer to that (RFC 9000, section 3.5).
                    self.link.quic.reset(self.id, ErrorCode::RequestCancelled as u64);
                    self.finished.set(true);
                    self.fail();
                    return true;
                }
            }
        }
        if self.closed.get() && !self.gone.get() && !self.finished.replace(true) {
            self.link.quic.finish(self.id);
        }
        true
    }

    fn put(&self, bytes: Vec<u8>, last: bool) -> io::Result<()> {
        if self.gone.get() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if !bytes.is_empty() {
            self.outgoing.borrow_mut().push(bytes.into());
        }
        if last {
            self.closed.set(true);
        }
        self.flush();
        if self.gone.get() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    /// Hands over all that was written, a head included that waits for its body. False if there is nothing that a client could lack.
    pub fn hand_over(&self) -> bool {
        let head = self.head.take();
        let any = !head.is_empty() || !self.outgoing.borrow().is_empty() || self.sent.get() > 0;
        self.put(head, false).is_ok() && any
    }

    /// What waits has left, and more can: nothing is read of a file before.
    fn may_write(&self) -> bool {
        self.flush() && (self.gone.get() || self.link.quic.may_write(self.id))
    }

    /// Waits until QUIC has all that was written.
    pub fn poll_all_taken(&self, cx: &Context<'_>) -> Poll<()> {
        if self.may_write() {
            return Poll::Ready(());
        }
        wait(&self.writer, cx);
        Poll::Pending
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.link.hold(self.held.get(), 0);
    }
}

/// Why the connection ends.
#[derive(Debug)]
pub enum StreamError {
    /// Frames.
    Frame(FrameError),
    /// Fields.
    Fields(QpackError),
}

impl StreamError {
    /// What the client is told.
    pub fn code(&self) -> ErrorCode {
        match self {
            StreamError::Frame(error) => error.code(),
            StreamError::Fields(error) => error.code,
        }
    }
}

impl std::fmt::Display for StreamError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StreamError::Frame(error) => error.fmt(f),
            StreamError::Fields(error) => error.fmt(f),
        }
    }
}

impl From<FrameError> for StreamError {
    fn from(error: FrameError) -> StreamError {
        StreamError::Frame(error)
    }
}
