//! A stream as the carrier of a request and its answer.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_engine::{Chain, Segment};
use weir_http2::{Pause, gather, needs_file, wait};
use weir_proto::http3::{frame, qpack};

use super::Stream;
use crate::carrier::{Arrival, Following, Protocol, RequestStream, Section, TakeField};

/// The size of DATA frames. They may be large: a frame costs little, and other streams do not wait for its end.
const CHUNK: usize = 64 * 1024;
/// Larger pieces of a body are passed on without a copy. Smaller ones are joined.
const COPIED: usize = 4 * 1024;
/// The largest frame header that is reserved for DATA.
const DATA_HEAD: usize = 8;

impl RequestStream for Stream {
    fn protocol(&self) -> Protocol {
        Protocol::Http3
    }

    fn arrival(&self) -> Arrival {
        let ended = self.has_whole_body();
        let drained = ended && self.incoming.borrow().is_empty();
        Arrival { ended, drained, gone: self.gone.get() }
    }

    fn has_incoming(&self) -> bool {
        self.has_whole_body() || !self.incoming.borrow().is_empty()
    }

    fn invite(&self, window: u64) {
        let window = usize::try_from(window).unwrap_or(usize::MAX);
        self.incoming_limit.set(self.link.stream_window().max(window));
        self.link.read_arrived(self.id);
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
        drop(incoming);
        self.link.read_arrived(self.id);
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
        if self.link.is_hq() {
            // An answer of HTTP/0.9 is a body only.
            return;
        }
        let begin = frame::leave_headers_head(out);
        qpack::begin_section(out);
        match section {
            Section::Interim(interim) => qpack::status(interim.status(), out),
            Section::Head(status) => qpack::status(status, out),
            Section::Trailers => {}
        }
        let mut memo = self.link.memo.borrow_mut();
        fields(&mut |name, value| memo.field(name, value, out));
        drop(memo);
        frame::finish_headers(out, begin);
    }

    fn send_head(&self, written: &mut [u8], following: Following) -> io::Result<()> {
        let Following::Body(len) = following else {
            return self.put(written.to_vec(), following == Following::Nothing);
        };
        if self.gone.get() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        // The head and the first piece of the body share a buffer, so that QUIC keeps one.
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(COPIED);
        let mut head = self.head.borrow_mut();
        head.reserve_exact(written.len() + DATA_HEAD + len);
        head.extend_from_slice(written);
        Ok(())
    }

    fn send_trailers(&self, written: &[u8]) -> io::Result<()> {
        self.framing.set(self.framing.get() + written.len() as u64);
        self.put(written.to_vec(), true)
    }

    fn chunk(&self) -> Option<usize> {
        Some(CHUNK)
    }

    fn send_body(&self, chain: &mut Chain, last: bool, chunk: usize) -> io::Result<Pause> {
        loop {
            if self.gone.get() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if chain.is_empty() {
                if last && !self.closed.get() {
                    self.put(self.head.take(), true)?;
                }
                return Ok(Pause::Done);
            }
            if !self.may_write() {
                return Ok(Pause::Full);
            }
            let chunk = self.link.piece(chunk);
            if needs_file(chain, chunk) {
                return Ok(Pause::File(chunk));
            }
            let len = usize::try_from(chain.len()).unwrap_or(usize::MAX).min(chunk);
            let mut bytes = self.head.take();
            bytes.reserve(len.min(COPIED) + DATA_HEAD);
            let before = bytes.len();
            if !self.link.is_hq() {
                frame::write_data_head(len as u64, &mut bytes);
            }
            let head = bytes.len() - before;
            let handle = &self.link.event_loop().handle;
            let mut left = len;
            while left > 0 {
                let large = chain.front().and_then(Segment::memory).filter(|m| m.len() > COPIED);
                let Some(now) = large.map(|memory| memory.len().min(left)) else {
                    // Joins small pieces, up to the next large one.
                    let before = bytes.len();
                    gather(handle, chain, left.min(COPIED), &mut bytes);
                    left -= (bytes.len() - before).clamp(1, left);
                    continue;
                };
                let mut piece = chain.split_to(now as u64);
                let mut outgoing = self.outgoing.borrow_mut();
                if !bytes.is_empty() {
                    outgoing.push(std::mem::take(&mut bytes).into());
                }
                outgoing.extend(piece.pop().and_then(Segment::into_bytes));
                left -= now;
            }
            self.framing.set(self.framing.get() + head as u64);
            self.sent.set(self.sent.get() + (head + len) as u64);
            let end = last && chain.is_empty();
            self.put(bytes, end)?;
        }
    }

    fn poll_room(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        let taken = self.poll_written(cx);
        // Each progress restarts `send_timeout`.
        if self.progressed.take() { Poll::Ready(()) } else { taken }
    }

    fn received(&self) -> Option<u64> {
        Some(self.parsed_bytes())
    }

    fn sent(&self) -> u64 {
        self.sent.get()
    }

    fn framing(&self) -> u64 {
        self.framing.get()
    }
}
