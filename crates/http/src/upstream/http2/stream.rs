//! A stream: a request's way to the server, and its answer's way back.

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

/// What servers reset streams with that they have not looked at.
const REFUSED: u32 = ErrorCode::RefusedStream as u32;
/// And with where a connection has had more requests, or more resets, than they like.
const CALM: u32 = ErrorCode::EnhanceYourCalm as u32;
/// The largest window of a stream, however much its request has room for.
const LARGEST_WINDOW: u32 = 1 << 30;

/// What a request has room for.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Bytes of a head.
    pub head: usize,
    /// Bytes of a body that are not read yet: the stream's window.
    pub body: u32,
}

impl Room {
    /// What the buffers of a location hold.
    pub fn of(passing: &UpstreamConf) -> Room {
        Room {
            head: passing.head_room(),
            body: u32::try_from(passing.memory()).unwrap_or(u32::MAX).min(LARGEST_WINDOW),
        }
    }
}

/// A request's end of a stream. Dropped before both sides are done, it resets the stream.
pub struct Stream(pub(super) Rc<StreamState>);

/// Sends the body of a request while another task reads the answer.
pub struct Sender(Rc<StreamState>);

/// The state of a stream that its connection works on.
pub struct StreamState {
    link: Rc<Link>,
    /// Its number.
    pub id: u32,
    /// What its request has room for.
    pub room: Room,
    /// What goes.
    send_window: SendWindow,
    /// What the server may send of the body.
    credit: Cell<i64>,
    /// What it may send again, and does not know of.
    owed: Cell<i64>,
    /// Heads that are not read yet.
    heads: RefCell<VecDeque<Vec<u8>>>,
    /// The answer's own head has come.
    has_head: Cell<bool>,
    /// The answer's own head was the end, too.
    is_bare: Cell<bool>,
    /// The part of the body that is not read yet.
    incoming: RefCell<Vec<u8>>,
    trailers: RefCell<Headers>,
    /// The server has sent all.
    ended: Cell<bool>,
    /// The server says that it wants no more of the request.
    enough: Cell<bool>,
    ending: RefCell<Option<Ending>>,
    /// The request has let go of it.
    dropped: Cell<bool>,
    deadline: Cell<Option<Instant>>,
    reader: RefCell<Option<Waker>>,
    /// Bytes received, frames and all.
    received: Cell<u64>,
    /// Bytes of the head that was sent.
    head: usize,
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
            link,
        }
    }

    /// It ends before its time.
    pub fn fail(&self, why: Ending) {
        // What was complete before the connection broke stays good.
        if self.ended.get() && !matches!(why, Ending::Said(_, Failure::InvalidHeader)) {
            return;
        }
        if self.ended.get() {
            // The server that sent a complete answer calls it off. If no part of it was read, there
            // was no answer.
            self.heads.borrow_mut().clear();
        }
        self.ending.borrow_mut().get_or_insert(why);
        wake(&self.reader);
        self.send_window.wake();
    }
}

/// What comes.
impl StreamState {
    /// The answer's own head has come.
    pub fn has_head(&self) -> bool {
        self.has_head.get()
    }

    /// The server has sent all.
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// What the server may send of the body.
    pub fn credit(&self) -> i64 {
        self.credit.get()
    }

    /// Counts a frame.
    pub fn count(&self, len: usize) {
        self.received.set(self.received.get() + (len + frame::HEAD) as u64);
    }

    /// Takes a head, or trailers. Nothing counts that follows what the server did wrong.
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

    /// Takes a piece of the body; `framed` is its length with the padding.
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

    /// The server has ended the stream, and wants no more of the request. One such frame may follow a complete answer, which
    /// stays good (RFC 9113, section 8.1). Where it is a head alone, it does whatever the reason: servers of gRPC end a call
    /// that they answer early in this way. A body before an error may be a part, as for nginx.
    pub fn take_reset(&self, code: u32) {
        let is_closed = self.enough.replace(true);
        self.send_window.close();
        let is_good = code == ErrorCode::NoError as u32 || self.is_bare.get();
        if !self.ended.get() || !is_good {
            self.fail(self.rejection(code));
        } else if is_closed {
            let id = self.id;
            self.fail(Ending::invalid(format!("upstream sent frame for closed stream {id}")));
        } else {
            self.send_window.wake();
        }
    }

    /// Why a stream that was reset before its end has no answer.
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

    /// So much was read: the server may send on.
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

/// What goes.
impl StreamState {
    async fn send(
        self: &Rc<Self>,
        chain: &mut Chain,
        last: bool,
        timeout: Duration,
    ) -> io::Result<()> {
        weir_http2::send(self, chain, last, frame::MAX_PAYLOAD, timeout).await
    }

    /// Sends a whole body while others go on.
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

/// A request's end.
impl Stream {
    /// Sends a whole body that is there already, the last of the request. What the server does not take at once
    /// follows while the request waits for its answer.
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

    /// For a task that sends while another receives.
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

    /// The answer is a head: neither data nor trailers follow it.
    pub fn is_bare(&self) -> bool {
        self.0.is_bare.get()
    }

    /// When [`Stream::readable`] fails.
    pub fn set_deadline(&self, at: Option<Instant>) {
        self.0.deadline.set(at);
    }

    /// Waits until there is something to receive, the end included.
    pub async fn readable(&self) -> io::Result<()> {
        let ready = self.read_until(|| self.0.has_incoming());
        let Some(at) = self.0.deadline.get() else {
            ready.await;
            return Ok(());
        };
        match either(ready, self.0.link.handle().sleep_until(at)).await {
            Either::Left(()) => Ok(()),
            Either::Right(()) => Err(io::ErrorKind::TimedOut.into()),
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

    /// Receives what is there and fits into the room of `buf`: a whole head, or a piece of the body. 0 is the end.
    /// What came before a stream broke is received before its error, but for the body of an answer that the server called off or
    /// spoiled: with its end on a connection of HTTP/1.0, a client would take it for whole.
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

    /// Trailers behind the body.
    pub fn trailers(&self, out: &mut Headers) {
        for (name, value) in self.0.trailers.borrow().iter() {
            out.add(name, value);
        }
    }

    /// Bytes received so far, framing and all.
    pub fn received(&self) -> u64 {
        self.0.received.get()
    }

    /// Bytes sent so far.
    pub fn sent(&self) -> u64 {
        self.0.head as u64 + self.0.send_window.sent()
    }
}

impl Sender {
    /// Sends a piece of a body; `last` is the end of the request. Given up, it can go on with the same piece.
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
        state.link.let_go(state.id, reset.then_some(ErrorCode::Cancel));
        state.link.handle().give_buf(state.incoming.take());
    }
}
