//! A request stream: it receives the request and sends the answer.

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

/// Bytes of a stream per read.
const READ: usize = 64 * 1024;
/// The allowance for a field section that is larger encoded than as text, beyond twice the limit of heads.
const SECTION_SLACK: usize = 16 * 1024;

/// One stream of a connection.
pub struct Stream {
    /// The connection.
    pub link: Rc<Link>,
    /// The stream ID.
    pub id: StreamId,
    frames: RefCell<RequestFrames>,
    /// Bytes received.
    received_bytes: Cell<u64>,
    /// When the first of them was received.
    first_received: Cell<Option<Instant>>,
    /// An incomplete or blocked field section.
    section: RefCell<Vec<u8>>,
    /// The request has begun, with a decoded head or as a failed one.
    begun: Cell<bool>,
    /// The request has ended. The client may not have acknowledged all of the answer yet.
    request_ended: Cell<bool>,
    /// The field section is blocked: it refers to entries of the dynamic table that have not arrived.
    blocked: Cell<bool>,
    /// Bytes that were read from QUIC and not parsed: a field section is blocked, or the body's buffer is full.
    unread: RefCell<Bytes>,
    /// Bytes of the body that the request has not read.
    incoming: RefCell<Vec<u8>>,
    /// From so many bytes in `incoming` on, no more are read from QUIC.
    incoming_limit: Cell<usize>,
    /// The content-length of the body, less the received bytes.
    content_left: Cell<Option<u64>>,
    /// The body's length is not its content-length.
    malformed: Cell<bool>,
    /// The body is complete: trailers or the end of the stream have arrived.
    complete: Cell<bool>,
    /// The client has ended its direction of the stream.
    ended: Cell<bool>,
    /// An encoded head that is sent together with the first piece of the body.
    head: RefCell<Vec<u8>>,
    /// Written bytes that QUIC has not accepted yet.
    outgoing: RefCell<Vec<Bytes>>,
    /// The length of `outgoing` as the link counts it.
    held: Cell<usize>,
    /// QUIC has accepted bytes since the last `poll_room`.
    progressed: Cell<bool>,
    /// The answer is completely written.
    closed: Cell<bool>,
    /// QUIC was told of the stream's end, or has reset the stream.
    finished: Cell<bool>,
    /// The client has acknowledged all of the answer.
    acknowledged: Cell<bool>,
    /// The stream was reset by either side, or its connection has ended.
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
            received_bytes: Cell::new(0),
            first_received: Cell::new(None),
            section: RefCell::default(),
            begun: Cell::new(false),
            request_ended: Cell::new(false),
            blocked: Cell::new(false),
            unread: RefCell::default(),
            incoming: RefCell::default(),
            incoming_limit: Cell::new(room),
            content_left: Cell::new(None),
            malformed: Cell::new(false),
            complete: Cell::new(false),
            ended: Cell::new(false),
            head: RefCell::default(),
            outgoing: RefCell::default(),
            held: Cell::new(0),
            progressed: Cell::new(false),
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

    /// Begins the request. `announced` is its content-length.
    pub fn begin(&self, announced: Option<u64>) {
        self.begun.set(true);
        self.content_left.set(announced);
        self.wake_watchers();
    }

    /// Waits until the request begins, or the stream ends without one. The caller keeps no stream that has ended.
    pub fn poll_begun(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.begun.get() { Poll::Ready(()) } else { self.poll_gone(cx) }
    }

    fn wake_watchers(&self) {
        for waker in self.watchers.take() {
            waker.wake();
        }
    }

    /// No request uses the stream: none has begun, or it has ended.
    pub fn is_free(&self) -> bool {
        !self.begun.get() || self.request_ended.get()
    }

    /// Bytes received and parsed.
    pub fn parsed_bytes(&self) -> u64 {
        self.received_bytes.get().saturating_sub(self.unread.borrow().len() as u64)
    }

    /// The request has begun.
    pub fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// The request has ended. The connection keeps the stream until the client has acknowledged all of the answer.
    pub fn request_has_ended(&self) {
        self.request_ended.set(true);
        if self.gone.get() || self.acknowledged.get() {
            self.link.remove(self.id);
        }
    }

    /// The client has acknowledged all of the answer. The request may still discard the rest of the body.
    pub fn on_acknowledged(&self) {
        self.acknowledged.set(true);
        if self.is_free() {
            self.link.remove(self.id);
        }
    }

    /// The client has ended its direction of the stream.
    pub fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// The answer is completely written.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// The stream was reset, or its connection has ended. Writes have no effect.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// The body's length is not its content-length.
    pub fn is_malformed(&self) -> bool {
        self.malformed.get()
    }

    /// Ends the stream at once, and sends nothing.
    pub fn fail(&self) {
        self.gone.set(true);
        self.ended.set(true);
        wake(&self.reader);
        wake(&self.writer);
        self.wake_watchers();
        if self.is_free() {
            self.link.remove(self.id);
        }
    }

    /// Sends STOP_SENDING and RESET_STREAM for the directions that are open, and ends the stream.
    pub fn reset(&self, code: ErrorCode) {
        if !self.gone.get() {
            let quic = &self.link.quic;
            if !self.ended.get() {
                quic.stop(self.id, code as u64);
                self.link.cancel_in_decoder(self.id);
            }
            if !self.finished.get() {
                quic.reset(self.id, code as u64);
            }
        }
        self.fail();
    }

    /// Discards the rest of the body until it ends, the client pauses for `silence`, or `most` has passed. Chromium shows a page
    /// the answer only once it has sent the whole body, and never after STOP_SENDING.
    pub async fn discard_body(&self, silence: Duration, most: Duration) {
        if self.has_whole_body() {
            return;
        }
        let handle = &self.link.event_loop().handle;
        let rest = async {
            while !self.has_whole_body() {
                self.incoming.borrow_mut().clear();
                self.link.read_arrived(self.id);
                let came = poll_fn(|cx| self.poll_incoming(cx));
                if let Either::Right(()) = either(came, handle.sleep(silence)).await {
                    return;
                }
            }
        };
        let _ = either(rest, handle.sleep(most)).await;
    }

    /// Sends STOP_SENDING: the answer is complete without the rest of the request.
    pub fn stop(&self) {
        if !self.gone.get() && !self.ended.get() {
            self.link.quic.stop(self.id, ErrorCode::NoError as u64);
            self.link.cancel_in_decoder(self.id);
        }
    }

    /// The client sent STOP_SENDING.
    pub fn stopped(self: &Rc<Self>) {
        if !self.gone.get() {
            self.link.start_failed(self, ComposeError::Cut);
            self.give_up();
        }
    }

    /// Answers the client's STOP_SENDING by RESET_STREAM (RFC 9000, section 3.5), and ends the stream. The client's direction ends,
    /// too: no request reads it any more, and until then the stream counts for the limit of streams.
    fn give_up(&self) {
        let code = ErrorCode::RequestCancelled;
        self.link.quic.reset(self.id, code as u64);
        self.finished.set(true);
        self.reset(code);
    }

    /// Decodes a blocked field section again, after the dynamic table has grown.
    pub fn unblock(self: &Rc<Self>) {
        if self.blocked.replace(false) && !self.gone.get() {
            let section = self.section.take();
            match self.whole_section(&section) {
                Ok(()) => self.read_arrived(),
                Err(error) => self.link.connection_error(&error),
            }
        }
    }

    /// Reads from QUIC until `incoming` is full or nothing more has arrived. A connection error closes the connection.
    pub fn read_arrived(self: &Rc<Self>) {
        if let Err(error) = self.read_frames() {
            self.link.connection_error(&error);
        }
    }

    fn read_frames(self: &Rc<Self>) -> Result<(), StreamError> {
        if self.blocked.get() && !self.gone.get() && self.link.quic.was_reset(self.id) {
            self.blocked.set(false);
            if self.begun.get() {
                self.on_reset();
            } else {
                // A head that cannot be decoded is answered with 400, as in nginx.
                self.ended.set(true);
                self.link.cancel_in_decoder(self.id);
                self.link.start_failed(self, ComposeError::Cut);
            }
        }
        while !self.gone.get() && !self.ended.get() && !self.blocked.get() {
            if self.incoming.borrow().len() >= self.incoming_limit.get() {
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
                        self.on_reset();
                        return Ok(());
                    }
                }
            } else {
                kept
            };
            self.process(bytes)?;
            if self.link.is_flooded() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// When the first bytes were received.
    pub fn first_bytes(&self) -> Option<Instant> {
        self.first_received.get()
    }

    fn arrived(&self, len: usize) {
        self.link.count_received(len, 0);
        if self.first_received.get().is_none() {
            self.first_received.set(Some(self.link.event_loop().handle.now()));
        }
        self.received_bytes.set(self.received_bytes.get() + len as u64);
    }

    /// The client sent RESET_STREAM.
    fn on_reset(self: &Rc<Self>) {
        self.link.start_failed(self, ComposeError::Cut);
        if !self.finished.get() {
            self.link.quic.reset(self.id, ErrorCode::RequestCancelled as u64);
        }
        self.finished.set(true);
        if !self.ended.get() {
            self.link.cancel_in_decoder(self.id);
        }
        self.fail();
    }

    /// The client has ended its direction of the stream.
    fn end(self: &Rc<Self>) -> Result<(), StreamError> {
        let whole = match self.link.is_hq() {
            true if self.begun.get() => Ok(()),
            true => Err(FrameError::NoHead),
            false => self.frames.borrow().finish(),
        };
        match whole {
            Ok(()) => {}
            Err(FrameError::NoHead) => {
                self.link.start_failed(self, ComposeError::Cut);
                self.reset(ErrorCode::RequestIncomplete);
                return Ok(());
            }
            Err(error) => return Err(StreamError::Frame(error)),
        }
        self.ended.set(true);
        self.body_is_complete();
        Ok(())
    }

    /// No more of the body can arrive.
    fn has_whole_body(&self) -> bool {
        self.complete.get() || self.ended.get()
    }

    /// Completes the body, at the end of the stream or at trailers: no body may follow them (RFC 9114, section 4.1).
    fn body_is_complete(&self) {
        self.complete.set(true);
        if self.content_left.get().is_some_and(|left| left > 0) {
            self.malformed.set(true);
        }
        wake(&self.reader);
    }

    fn process(self: &Rc<Self>, bytes: Bytes) -> Result<(), StreamError> {
        if self.link.is_hq() {
            self.read_line(&bytes);
            return Ok(());
        }
        let mut rest = bytes;
        while !rest.is_empty() && !self.gone.get() {
            if self.blocked.get() || self.incoming.borrow().len() >= self.incoming_limit.get() {
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
                    self.append_body(now.get(piece).unwrap_or_default());
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
                    // `read_end` reads the rest: a request without a body may end here.
                    *self.unread.borrow_mut() = std::mem::take(&mut rest);
                    self.whole_section(if section.is_empty() { piece } else { &section })?;
                    rest = std::mem::take(&mut *self.unread.borrow_mut());
                }
            }
        }
        Ok(())
    }

    /// Appends a piece of the body.
    fn append_body(&self, data: &[u8]) {
        self.incoming.borrow_mut().extend_from_slice(data);
        self.link.count_received(0, data.len());
        if let Some(left) = self.content_left.get() {
            match left.checked_sub(data.len() as u64) {
                Some(left) => self.content_left.set(Some(left)),
                None => self.malformed.set(true),
            }
        }
        wake(&self.reader);
    }

    fn whole_section(self: &Rc<Self>, section: &[u8]) -> Result<(), StreamError> {
        self.link.count_received(0, section.len());
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

    /// Whether the stream is known to end behind the head: then the request has no body.
    pub fn read_end(self: &Rc<Self>) -> bool {
        // The caller has decoded the head. While it is blocked, the end must stay unread: a reset may still follow.
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

    /// QUIC accepts more bytes.
    pub fn writable(&self) {
        if self.flush() || self.progressed.get() {
            wake(&self.writer);
        }
    }

    /// Writes `outgoing` to QUIC. True if QUIC has accepted all of it.
    fn flush(&self) -> bool {
        let all = self.write();
        let waits = self.outgoing.borrow().iter().map(Bytes::len).sum();
        self.link.update_held(self.held.replace(waits), waits);
        all
    }

    fn write(&self) -> bool {
        let mut outgoing = self.outgoing.borrow_mut();
        while !outgoing.is_empty() && !self.gone.get() {
            match self.link.quic.write(self.id, &mut outgoing) {
                Ok(0) => return false,
                Ok(_) => {
                    self.progressed.set(true);
                    outgoing.retain(|part| !part.is_empty());
                }
                Err(StreamGone(_)) => {
                    outgoing.clear();
                    drop(outgoing);
                    self.give_up();
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

    /// Writes the head to QUIC even without a body. False if the stream has failed, or nothing of the answer was written.
    pub fn write_all(&self) -> bool {
        let head = self.head.take();
        let any = !head.is_empty() || !self.outgoing.borrow().is_empty() || self.sent.get() > 0;
        self.put(head, false).is_ok() && any
    }

    /// QUIC has accepted all written bytes, and the stream may write more. A body's file is not read before.
    fn may_write(&self) -> bool {
        self.flush() && (self.gone.get() || self.link.quic.may_write(self.id))
    }

    /// Ready when QUIC has accepted all written bytes, and the stream may write more.
    pub fn poll_written(&self, cx: &Context<'_>) -> Poll<()> {
        if self.may_write() {
            return Poll::Ready(());
        }
        wait(&self.writer, cx);
        Poll::Pending
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.link.update_held(self.held.get(), 0);
    }
}

/// A connection error in a client's stream.
#[derive(Debug)]
pub enum StreamError {
    /// Frames.
    Frame(FrameError),
    /// Fields.
    Fields(QpackError),
}

impl StreamError {
    /// The error code for CONNECTION_CLOSE.
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
