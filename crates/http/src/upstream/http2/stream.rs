//! A stream: carries a request to the server and its answer back.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use weir_engine::{Chain, Either, either};
use weir_http2::{SendWindow, wait, wake};
use weir_proto::http2::frame::{self, ErrorCode};
use weir_upstream::Failure;

use super::ending::Ending;
use super::link::Link;
use super::message::Message;
use crate::answer::headers::Headers;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::pieces;

/// The code with which servers reset streams that they have not processed.
const REFUSED: u32 = ErrorCode::RefusedStream as u32;
/// The code with which servers limit requests or resets on a connection.
const CALM: u32 = ErrorCode::EnhanceYourCalm as u32;
/// The largest window of a stream.
const LARGEST_WINDOW: u32 = 1 << 30;

/// The room that a request has for an answer.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// The longest head.
    pub head: usize,
    /// The most unread bytes of a body: the stream's window.
    pub body: u32,
}

impl Room {
    /// The room in a location's buffers.
    pub fn of(passing: &UpstreamConf) -> Room {
        Room {
            head: passing.head_room(),
            body: u32::try_from(passing.memory()).unwrap_or(u32::MAX).min(LARGEST_WINDOW),
        }
    }
}

/// A request's end of a stream. Dropping it resets the stream, unless both sides have ended.
pub struct Stream(pub(super) Rc<StreamState>);

/// Sends the body of a request while another task reads the answer.
pub struct Sender(Rc<StreamState>);

/// The state of a stream, shared with its connection.
pub struct StreamState {
    link: Rc<Link>,
    /// The stream id.
    pub id: u32,
    /// The room of its request.
    pub room: Room,
    /// The sending side.
    send_window: SendWindow,
    /// The server's window: bytes of the body that it may send.
    credit: Cell<i64>,
    /// Bytes to add to the window that the server has not been told of.
    owed: Cell<i64>,
    /// Unread heads.
    heads: RefCell<VecDeque<Vec<u8>>>,
    /// The final head was received.
    has_head: Cell<bool>,
    /// The final head also ended the stream.
    is_bare: Cell<bool>,
    /// Unread bytes of the body.
    incoming: RefCell<Vec<u8>>,
    trailers: RefCell<Headers>,
    /// The server has ended the stream.
    ended: Cell<bool>,
    /// The server wants no more of the request.
    enough: Cell<bool>,
    ending: RefCell<Option<Ending>>,
    /// The request has dropped its end.
    dropped: Cell<bool>,
    deadline: Cell<Option<Instant>>,
    reader: RefCell<Option<Waker>>,
    /// Bytes received, with framing.
    received: Cell<u64>,
    /// Bytes of the head that was sent.
    head: usize,
    began: Instant,
}

impl StreamState {
    pub(super) fn new(
        link: Rc<Link>,
        id: u32,
        ended: bool,
        room: Room,
        head: usize,
    ) -> StreamState {
        let credit = i64::from(room.body);
        StreamState {
            id,
            room,
            send_window: SendWindow::new(link.initial_window(), ended),
            credit: Cell::new(credit),
            owed: Cell::new(0),
            heads: RefCell::default(),
            has_head: Cell::new(false),
            is_bare: Cell::new(false),
            incoming: RefCell::default(),
            trailers: RefCell::default(),
            ended: Cell::new(false),
            enough: Cell::new(false),
            ending: RefCell::default(),
            dropped: Cell::new(false),
            deadline: Cell::new(None),
            reader: RefCell::default(),
            received: Cell::new(0),
            head: head + frame::HEAD,
            began: link.handle().now(),
            link,
        }
    }

    /// Ends the stream early.
    pub fn fail(&self, why: Ending) {
        // An answer that was complete before the connection failed stays valid.
        if self.ended.get() && !matches!(why, Ending::Said(_, Failure::InvalidHeader)) {
            return;
        }
        self.ending.borrow_mut().get_or_insert(why);
        wake(&self.reader);
        self.send_window.wake();
    }
}

/// The receiving side.
impl StreamState {
    /// Whether the final head was received.
    pub fn has_head(&self) -> bool {
        self.has_head.get()
    }

    /// Whether the server has ended the stream.
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Bytes of the body that the server may send.
    pub fn credit(&self) -> i64 {
        self.credit.get()
    }

    /// Counts a received frame.
    pub fn count(&self, len: usize) {
        self.received.set(self.received.get() + (len + frame::HEAD) as u64);
    }

    /// Handles a head or trailers. After an error of the server, they are ignored.
    pub fn take_message(&self, message: Message, last: bool) {
        if self.ending.borrow().as_ref().is_some_and(|ending| !ending.is_of_connection()) {
            return;
        }
        match message.finish(last) {
            Err(why) => return self.fail(why),
            Ok(Message::Head { text, interim, .. }) => {
                self.has_head.set(!interim);
                self.is_bare.set(last);
                let mut heads = self.heads.borrow_mut();
                let waiting: usize = heads.iter().map(Vec::len).sum();
                if waiting > self.room.head {
                    drop(heads);
                    return self.fail(Ending::invalid("upstream sent too big early hints"));
                }
                heads.push_back(text);
            }
            Ok(Message::Trailers { fields, .. }) => {
                self.trailers.replace(fields);
            }
        }
        self.end(last);
    }

    /// Handles a piece of the body. `framed` is its length with padding.
    pub fn take_data(&self, data: &[u8], framed: usize, last: bool) {
        self.credit.set(self.credit.get() - framed as i64);
        self.owed.set(self.owed.get() + (framed - data.len()) as i64);
        let mut incoming = self.incoming.borrow_mut();
        if incoming.capacity() == 0 {
            *incoming = self.link.handle().take_buf(data.len());
        }
        incoming.extend_from_slice(data);
        drop(incoming);
        self.end(last);
    }

    fn end(&self, last: bool) {
        self.ended.set(self.ended.get() || last);
        wake(&self.reader);
    }

    /// Handles RST_STREAM. One may follow a complete answer, which stays valid with NO_ERROR (RFC
    /// 9113, section 8.1). It also stays valid with STREAM_CLOSED, which is about frames of the
    /// request: after an early answer, Go's server refuses each one that is on its way. An answer
    /// that is only a head stays valid with any code: gRPC servers end calls early in this way. A
    /// body before another code may be incomplete, as in nginx.
    pub fn take_reset(&self, code: u32) {
        let is_closed = self.enough.replace(true);
        self.send_window.close();
        let is_late = code == ErrorCode::StreamClosed as u32;
        let is_good = code == ErrorCode::NoError as u32 || is_late || self.is_bare.get();
        if !self.ended.get() || !is_good {
            self.fail(self.rejection(code));
        } else if is_closed && !is_late {
            let id = self.id;
            self.fail(Ending::invalid(format!("upstream sent frame for closed stream {id}")));
        } else {
            self.send_window.wake();
        }
    }

    /// The ending of a stream that was reset without a valid answer.
    fn rejection(&self, code: u32) -> Ending {
        let failure = match code {
            _ if self.has_head.get() => Failure::InvalidHeader,
            REFUSED => Failure::Refused,
            CALM if self.link.was_shared() => {
                self.link.leave();
                Failure::Lost { counts: false }
            }
            _ => Failure::InvalidHeader,
        };
        Ending::Said(format!("upstream rejected request with error {code}"), failure)
    }

    fn has_incoming(&self) -> bool {
        self.ended.get()
            || self.ending.borrow().is_some()
            || !self.heads.borrow().is_empty()
            || !self.incoming.borrow().is_empty()
    }

    /// Gives the server credit for `read` bytes. Window updates are sent for at least half of the
    /// window.
    fn give_credit(&self, read: usize) {
        let owed = self.owed.get() + read as i64;
        let whole = i64::from(self.room.body);
        if owed < whole / 2 || self.ended.get() {
            return self.owed.set(owed);
        }
        self.owed.set(0);
        self.credit.set(self.credit.get() + owed);
        self.link.write(|out| frame::write_window_update(self.id, owed as u32, out));
    }
}

impl weir_http2::Stream for StreamState {
    fn id(&self) -> u32 {
        self.id
    }

    fn link(&self) -> &weir_http2::Link<StreamState> {
        &self.link
    }

    fn send_window(&self) -> &SendWindow {
        &self.send_window
    }

    fn check(&self) -> io::Result<()> {
        match &*self.ending.borrow() {
            Some(ending) => Err(ending.error()),
            None if self.dropped.get() => Err(io::ErrorKind::ConnectionAborted.into()),
            None => Ok(()),
        }
    }

    fn body_is_unwanted(&self) -> bool {
        self.enough.get()
    }
}

/// Sending.
impl StreamState {
    async fn send(
        self: &Rc<Self>,
        chain: &mut Chain,
        last: bool,
        timeout: Duration,
    ) -> io::Result<()> {
        weir_http2::send(self, chain, last, frame::MAX_PAYLOAD, timeout).await
    }

    /// Sends a whole body, in a task of its own.
    async fn pour(self: Rc<Self>, mut rest: Chain, timeout: Duration) {
        let handle = self.link.handle().clone();
        let result = async {
            while let Some(mut piece) = pieces::next(&handle, &mut rest).await? {
                self.send(&mut piece, rest.is_empty(), timeout).await?;
            }
            Ok::<_, io::Error>(())
        };
        if let Err(error) = result.await {
            self.fail(error.into());
        }
    }
}

/// The request's end.
impl Stream {
    /// Sends a buffered body, which ends the request. A part that the server does not accept at
    /// once is sent while the request waits for its answer.
    pub fn send_all(&self, mut body: Chain, timeout: Duration) {
        let state = &self.0;
        let in_memory = body.segments().all(|segment| segment.memory().is_some());
        if !(in_memory && weir_http2::send_now(&**state, &mut body, true, frame::MAX_PAYLOAD)) {
            state.link.handle().spawn(state.clone().pour(body, timeout));
        }
    }

    /// Sends a piece of a body; `last` is the end of the request.
    pub async fn send(&self, piece: &mut Chain, last: bool, timeout: Duration) -> io::Result<()> {
        self.0.send(piece, last, timeout).await
    }

    /// A sender that can be used while the stream is being read.
    pub fn sender(&self) -> Sender {
        Sender(self.0.clone())
    }

    /// Waits until the server begins to answer, or ends the stream.
    pub async fn answered(&self) {
        let state = &self.0;
        let is_answered =
            || state.has_head.get() || state.ended.get() || state.ending.borrow().is_some();
        self.read_until(is_answered).await;
    }

    /// Whether the final head was received.
    pub fn has_head(&self) -> bool {
        self.0.has_head()
    }

    /// Whether the answer is only a head, without data or trailers.
    pub fn is_bare(&self) -> bool {
        self.0.is_bare.get()
    }

    /// Sets the time at which [`Stream::readable`] fails.
    pub fn set_deadline(&self, at: Option<Instant>) {
        self.0.deadline.set(at);
    }

    /// Waits until there are data or the end of them.
    pub async fn readable(&self) -> io::Result<()> {
        let ready = self.read_until(|| self.0.has_incoming());
        let Some(at) = self.0.deadline.get() else {
            ready.await;
            return Ok(());
        };
        match either(ready, self.0.link.handle().sleep_until(at)).await {
            Either::Left(()) => Ok(()),
            Either::Right(()) => {
                self.0.link.doubt(self.0.began, true);
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    }

    fn read_until(&self, done: impl Fn() -> bool) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            if done() {
                return Poll::Ready(());
            }
            wait(&self.0.reader, cx);
            Poll::Pending
        })
    }

    /// Receives a whole head, or a piece of the body that fits into `buf`. 0 is the end. Data
    /// before a failure are received before the error. The exception is the body of an answer that
    /// the server revoked or broke: a client of HTTP/1.0 could take it for complete.
    pub fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let state = &self.0;
        if let Some(head) = state.heads.borrow_mut().pop_front() {
            buf.extend_from_slice(&head);
            return Ok(Some(head.len()));
        }
        let mut incoming = state.incoming.borrow_mut();
        let n = incoming.len().min(buf.capacity() - buf.len());
        if let Some(ending) = &*state.ending.borrow()
            && (incoming.is_empty() || !ending.is_of_connection())
        {
            return Err(ending.error());
        }
        if incoming.is_empty() {
            return Ok(state.ended.get().then_some(0));
        }
        if buf.is_empty() && n == incoming.len() {
            std::mem::swap(buf, &mut incoming);
        } else {
            buf.extend_from_slice(incoming.get(..n).unwrap_or_default());
            incoming.drain(..n);
        }
        drop(incoming);
        state.give_credit(n);
        Ok(Some(n))
    }

    /// Adds the trailers.
    pub fn trailers(&self, out: &mut Headers) {
        for (name, value) in self.0.trailers.borrow().iter() {
            out.add(name, value);
        }
    }

    /// Bytes received so far, with framing.
    pub fn received(&self) -> u64 {
        self.0.received.get()
    }

    /// Bytes sent so far.
    pub fn sent(&self) -> u64 {
        self.0.head as u64 + self.0.send_window.sent()
    }
}

impl Sender {
    /// Sends a piece of a body; `last` is the end of the request. Cancel-safe: call it again with
    /// the same piece.
    pub async fn send(&self, piece: &mut Chain, last: bool, timeout: Duration) -> io::Result<()> {
        self.0.send(piece, last, timeout).await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let state = &self.0;
        state.dropped.set(true);
        state.send_window.wake();
        let done = state.send_window.is_closed() && state.ended.get();
        let reset = !done && !state.enough.get();
        if reset {
            state.link.doubt(state.began, false);
        }
        state.link.let_go(state.id, reset.then_some(ErrorCode::Cancel));
        state.link.handle().give_buf(state.incoming.take());
    }
}
