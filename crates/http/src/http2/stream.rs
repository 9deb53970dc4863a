//! A stream: it receives the request and sends the answer.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_engine::{Chain, either, yield_now};
use weir_http2::{Pause, SendWindow, wait, wake};
use weir_proto::http2::frame::{self, END_STREAM, ErrorCode, FrameHead};
use weir_proto::http2::hpack;

use super::link::Link;
use crate::carrier::{Arrival, Following, Protocol, RequestStream, Section, TakeField};

/// The least receive window of a stream whose request reads its body.
const READING: u32 = 256 * 1024;

/// One stream of a connection.
pub struct Stream {
    /// The connection.
    pub link: Rc<Link>,
    /// The stream ID.
    pub id: u32,
    /// The sending direction.
    send_window: SendWindow,
    /// The stream's window for receiving.
    credit: Cell<i64>,
    /// The size of the receive window that the request has asked for; 0 before.
    invited: Cell<i64>,
    /// The content-length of the body, less the received bytes.
    announced: Cell<Option<u64>>,
    /// The body's length is not its content-length.
    malformed: Cell<bool>,
    /// Bytes of the body that the request has not read.
    incoming: RefCell<Vec<u8>>,
    /// The client has sent END_STREAM, or the stream has failed.
    ended: Cell<bool>,
    /// Bytes of trailers.
    trailers: Cell<u64>,
    /// The stream was reset by either side, or its connection has ended.
    gone: Cell<bool>,
    /// The code of the client's RST_STREAM.
    cancelled: Cell<Option<u32>>,
    /// The client took too long, or must get no answer.
    timed_out: Cell<bool>,
    /// The server has reset the stream.
    reset: Cell<bool>,
    reader: RefCell<Option<Waker>>,
    watchers: RefCell<Vec<Waker>>,
}

impl Stream {
    /// A new stream. `credit` is its window for receiving, `announced` the content-length of its body.
    pub fn new(
        link: Rc<Link>,
        id: u32,
        ended: bool,
        credit: i64,
        announced: Option<u64>,
    ) -> Rc<Stream> {
        Rc::new(Stream {
            id,
            send_window: SendWindow::new(link.initial_window(), false),
            credit: Cell::new(credit),
            invited: Cell::new(0),
            announced: Cell::new(announced),
            malformed: Cell::new(false),
            incoming: RefCell::default(),
            ended: Cell::new(ended),
            trailers: Cell::new(0),
            gone: Cell::new(false),
            cancelled: Cell::new(None),
            timed_out: Cell::new(false),
            reset: Cell::new(false),
            reader: RefCell::default(),
            watchers: RefCell::default(),
            link,
        })
    }

    /// The client has sent END_STREAM, or the stream has failed.
    pub fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// END_STREAM was sent.
    pub fn is_closed(&self) -> bool {
        self.send_window.is_closed()
    }

    /// The stream was reset, or its connection has ended. Writes have no effect.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// The server has reset the stream.
    pub fn was_reset(&self) -> bool {
        self.reset.get()
    }

    /// Ends the stream at once, and sends nothing.
    pub fn fail(&self) {
        self.gone.set(true);
        self.ended.set(true);
        wake(&self.reader);
        self.send_window.wake();
        for waker in self.watchers.take() {
            waker.wake();
        }
    }

    /// The client sent RST_STREAM.
    pub fn cancel(&self, code: u32) {
        if !self.gone.get() {
            self.cancelled.set(Some(code));
        }
        self.fail();
    }

    /// Sends RST_STREAM, and ends the stream.
    pub fn reset(&self, code: ErrorCode) {
        if !self.gone.get() && !self.reset.replace(true) {
            self.link.note_reset(self.id, self.announced.get());
            self.link.write_apart(|out| frame::write_reset(self.id, code, out));
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

    fn send_window(&self) -> &SendWindow {
        &self.send_window
    }

    fn check(&self) -> io::Result<()> {
        if self.gone.get() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

/// The receiving direction.
impl Stream {
    /// The stream's window for receiving.
    pub fn credit(&self) -> i64 {
        self.credit.get()
    }

    /// Appends a piece of the body. `last` marks its end.
    pub fn take(&self, data: &[u8], framed: usize, last: bool) {
        self.credit.set(self.credit.get() - framed as i64);
        self.incoming.borrow_mut().extend_from_slice(data);
        let left = content_left(self.announced.get(), data.len(), last);
        self.announced.set(left.unwrap_or_default());
        self.malformed.set(self.malformed.get() || left.is_err());
        if last {
            self.ended.set(true);
        }
        if !data.is_empty() || last {
            wake(&self.reader);
        } else if self.incoming.borrow().is_empty() {
            // The frame was padding only. The request does not read before data arrives, so the window is renewed here.
            self.renew_credit();
        }
    }

    /// Sends WINDOW_UPDATE once half of the receive window is used.
    fn renew_credit(&self) {
        let (window, credit) = (self.invited.get(), self.credit.get());
        if credit <= window / 2 && credit < window {
            self.credit.set(window);
            let by = (window - credit) as u32;
            self.link.write(|out| frame::write_window_update(self.id, by, out));
        }
    }

    /// The body's length is not its content-length.
    pub fn is_malformed(&self) -> bool {
        self.malformed.get()
    }

    /// The request has read all of the body, or the stream has failed.
    pub fn is_drained(&self) -> bool {
        self.ended.get() && self.incoming.borrow().is_empty()
    }

    /// Waits until the client sends more of the body after the answer, or ends the stream; for `timeout` at most.
    pub async fn wait_for_client(&self, timeout: Duration) {
        if self.is_ended() {
            return;
        }
        // The answer is sent first. Data received before that is no sign that the client ignores it.
        yield_now().await;
        self.incoming.borrow_mut().clear();
        let sleep = self.link.event_loop().handle.sleep(timeout);
        let _ = either(poll_fn(|cx| self.poll_incoming(cx)), sleep).await;
    }

    /// The request has begun to read the body, and not read all of it.
    pub fn is_body_unfinished(&self) -> bool {
        self.invited.get() > 0 && !self.is_drained()
    }

    /// Discards the rest of the body until it ends, the client pauses for `silence`, or `most` has passed. The receive window is large
    /// meanwhile: some clients read the answer only after they have sent the whole body.
    pub async fn discard_body(&self, silence: Duration, most: Duration) {
        self.invite(u64::from(frame::MAX_WINDOW));
        let rest = async {
            loop {
                self.incoming.borrow_mut().clear();
                if self.ended.get() {
                    return;
                }
                self.wait_for_client(silence).await;
                if !self.has_incoming() {
                    return;
                }
            }
        };
        let sleep = self.link.event_loop().handle.sleep(most);
        let _ = either(rest, sleep).await;
    }
}

/// The stream as the carrier of a request and its answer.
impl RequestStream for Stream {
    fn protocol(&self) -> Protocol {
        Protocol::Http2
    }

    fn arrival(&self) -> Arrival {
        Arrival { ended: self.is_ended(), drained: self.is_drained(), gone: self.is_gone() }
    }

    fn has_incoming(&self) -> bool {
        self.ended.get() || !self.incoming.borrow().is_empty()
    }

    fn invite(&self, window: u64) {
        let window = i64::from(u32::try_from(window).unwrap_or(frame::MAX_WINDOW).max(READING));
        self.invited.set(window.min(i64::from(frame::MAX_WINDOW)));
        self.renew_credit();
    }

    fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_incoming() {
            return Poll::Ready(());
        }
        wait(&self.reader, cx);
        Poll::Pending
    }

    fn receive(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
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

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.gone.get() {
            return Poll::Ready(());
        }
        let mut watchers = self.watchers.borrow_mut();
        if !watchers.iter().any(|waker| waker.will_wake(cx.waker())) {
            watchers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    fn farewell(&self) -> Option<String> {
        let id = self.id;
        Some(match self.cancelled.get()? {
            8 => format!("client canceled stream {id}"),
            2 => format!("client terminated stream {id} due to internal error"),
            code => format!("client terminated stream {id} with status {code}"),
        })
    }

    fn time_out(&self) {
        self.timed_out.set(true);
    }

    fn has_timed_out(&self) -> bool {
        self.timed_out.get()
    }

    fn shut_out(&self) {
        // The stream is reset with the same code as after a timeout.
        self.timed_out.set(true);
    }

    fn write(&self, section: Section, fields: &mut dyn FnMut(TakeField<'_>), out: &mut Vec<u8>) {
        let (begin, link) = (frame::leave_head(out), &self.link);
        link.begin_block(out);
        match section {
            Section::Interim(interim) => hpack::status(interim.status(), out),
            Section::Head(status) => {
                // A head for a failed stream is no answer.
                if !self.gone.get() {
                    link.ledger.answers.set(link.ledger.answers.get() + 1);
                }
                hpack::status(status, out);
            }
            Section::Trailers => {}
        }
        fields(&mut |name, value| hpack::field(name, value, out));
        let flags = if section == Section::Trailers { END_STREAM } else { 0 };
        frame::finish_headers(out, begin, self.id, flags, link.frame_size());
    }

    fn send_head(&self, written: &mut [u8], following: Following) -> io::Result<()> {
        let last = following == Following::Nothing;
        if last {
            end_stream(written);
        }
        self.send_frames(written, last)
    }

    fn send_trailers(&self, written: &[u8]) -> io::Result<()> {
        self.send_frames(written, true)?;
        self.trailers.set(written.len() as u64);
        Ok(())
    }

    fn send_body(&self, chain: &mut Chain, last: bool, chunk: usize) -> io::Result<Pause> {
        weir_http2::send_some(self, chain, last, chunk)
    }

    fn poll_room(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        weir_http2::poll_room(&self, cx)
    }

    fn sent(&self) -> u64 {
        self.send_window.sent()
    }

    fn framing(&self) -> u64 {
        self.send_window.framing() + self.trailers.get()
    }
}

impl Stream {
    fn send_frames(&self, frames: &[u8], last: bool) -> io::Result<()> {
        if self.gone.get() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if last {
            self.send_window.close();
        }
        self.link.write(|out| out.extend_from_slice(frames));
        Ok(())
    }
}

/// The rest of a body's content-length after a piece of this length.
pub fn content_left(
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

/// A body's length is not its content-length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongLength;

/// Sets END_STREAM on an encoded head.
fn end_stream(frames: &mut [u8]) {
    // Frames of interim answers may come before. The last HEADERS frame begins the head.
    let (mut at, mut last) = (0, None);
    while let Some(head) = FrameHead::read(frames.get(at..).unwrap_or_default()) {
        if head.kind == frame::FrameType::Headers {
            last = Some((at, head));
        }
        at += frame::HEAD + head.len;
    }
    if let Some((at, head)) = last {
        frame::put_head(frames, at, FrameHead { flags: head.flags | END_STREAM, ..head });
    }
}
