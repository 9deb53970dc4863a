//! A stream: a request's way in and its answer's way out.

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
    /// What it may send at a time, as the request has said; 0 before.
    invited: Cell<i64>,
    /// What it has announced, and not sent.
    announced: Cell<Option<u64>>,
    /// What it has sent is not what it has announced.
    malformed: Cell<bool>,
    /// What the client has sent, and the request has not read.
    incoming: RefCell<Vec<u8>>,
    /// The client has sent all.
    ended: Cell<bool>,
    /// Bytes of interim answers and trailers.
    aside: Cell<u64>,
    /// It was reset by either side, or its connection is gone.
    gone: Cell<bool>,
    /// The client has given it up, with this code.
    cancelled: Cell<Option<u32>>,
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
            invited: Cell::new(0),
            announced: Cell::new(announced),
            malformed: Cell::new(false),
            incoming: RefCell::default(),
            ended: Cell::new(ended),
            aside: Cell::new(0),
            gone: Cell::new(false),
            cancelled: Cell::new(None),
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

    /// The stream is gone: what is said here is not sent.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// This end has given it up.
    pub fn was_reset(&self) -> bool {
        self.reset.get()
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

    /// The client gives the stream up.
    pub fn cancel(&self, code: u32) {
        if !self.gone.get() {
            self.cancelled.set(Some(code));
        }
        self.fail();
    }

    /// Ends the stream at once, and tells the client why.
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
        } else if self.incoming.borrow().is_empty() {
            // Padding has used the client's credit up, and the request will not look before data is there.
            self.renew_credit();
        }
    }

    /// Gives back what the client has used of its credit, once that is half of it.
    fn renew_credit(&self) {
        let (window, credit) = (self.invited.get(), self.credit.get());
        if credit <= window / 2 && credit < window {
            self.credit.set(window);
            let by = (window - credit) as u32;
            self.link.write(|out| frame::write_window_update(self.id, by, out));
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

    /// Waits until the client goes on sending behind its answer, or has ended the stream; at most so long.
    pub async fn touched(&self, timeout: Duration) {
        if self.is_ended() {
            return;
        }
        // The answer leaves first. What came before it is no sign that the client ignores it.
        yield_now().await;
        self.incoming.borrow_mut().clear();
        let sleep = self.link.event_loop().handle.sleep(timeout);
        let _ = either(poll_fn(|cx| self.poll_incoming(cx)), sleep).await;
    }

    /// The request has read some of the body, and wants no more of it.
    pub fn is_broken_off(&self) -> bool {
        self.invited.get() > 0 && !self.is_drained()
    }

    /// Throws the rest of the body away, until it ends or the client pauses for `silence`; for `most` altogether. A client
    /// that looks at its answer only when it has sent all has room for that.
    pub async fn throw_away(&self, silence: Duration, most: Duration) {
        self.invite(u64::from(frame::MAX_WINDOW));
        let rest = async {
            loop {
                self.incoming.borrow_mut().clear();
                if self.ended.get() {
                    return;
                }
                self.touched(silence).await;
                if !self.has_incoming() {
                    return;
                }
            }
        };
        let sleep = self.link.event_loop().handle.sleep(most);
        let _ = either(rest, sleep).await;
    }
}

/// What its request and answer have of it.
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
        // Nothing is wrong here: the client is told as if it had taken too long.
        self.timed_out.set(true);
    }

    fn write(&self, section: Section, fields: &mut dyn FnMut(TakeField<'_>), out: &mut Vec<u8>) {
        let (begin, link) = (frame::leave_head(out), &self.link);
        match section {
            Section::Interim(interim) => hpack::status(interim.status(), out),
            Section::Head(status) => {
                // What is written for a stream that is gone answers nothing.
                if !self.gone.get() {
                    link.ledger.answers.set(link.ledger.answers.get() + 1);
                }
                if link.table_changed() {
                    hpack::empty_table(out);
                }
                hpack::status(status, out);
            }
            Section::Trailers => {}
        }
        fields(&mut |name, value| hpack::field(name, value, out));
        let flags = if section == Section::Trailers { END_STREAM } else { 0 };
        frame::finish_headers(out, begin, self.id, flags, link.frame_size());
        if matches!(section, Section::Interim(_)) {
            self.count_aside(out.len().saturating_sub(begin));
        }
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
        self.count_aside(written.len());
        Ok(())
    }

    fn send_body(&self, chain: &mut Chain, last: bool, chunk: usize) -> io::Result<Pause> {
        weir_http2::send_some(self, chain, last, chunk)
    }

    fn poll_room(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        weir_http2::poll_room(&self, cx)
    }

    fn sent(&self) -> u64 {
        self.way.sent()
    }

    fn framing(&self) -> u64 {
        self.way.framing() + self.aside.get()
    }
}

impl Stream {
    fn count_aside(&self, bytes: usize) {
        self.aside.set(self.aside.get() + bytes as u64);
    }

    fn send_frames(&self, frames: &[u8], last: bool) -> io::Result<()> {
        if self.gone.get() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if last {
            self.way.close();
        }
        self.link.write(|out| out.extend_from_slice(frames));
        Ok(())
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

/// The frames of a head become the whole answer.
fn end_stream(frames: &mut [u8]) {
    // Those before may be of interim answers; the last HEADERS frame is the one.
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
