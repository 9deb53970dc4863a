//! Frames that wait to be sent on a connection, and the waker of the task that sends them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use weir_engine::{Handle, Segment, copies};

/// Streams wait while so many bytes are unsent.
pub const FULL: usize = 64 * 1024;
/// While so many bytes are unsent, the connection is not read. Bodies alone are never so much, but replies to the peer's
/// frames may be.
const TOO_MUCH: usize = 2 * FULL;
/// The initial buffer for frames.
const ROOM: usize = 4096;
/// Unused bytes before the first frame. Files are read between frame headers, and a copy is slow if its destination is less than a
/// cache line behind its source, modulo a page: see [`copies`].
const LEAD: usize = copies::LINE;

/// The frames that the streams of a connection pass to its task.
#[derive(Default)]
pub struct Outbox {
    /// Nothing, or [`LEAD`] bytes and frames.
    frames: RefCell<Vec<u8>>,
    /// Frames that are sent after `frames`, and not in the same buffer.
    apart: RefCell<Vec<u8>>,
    /// The `apart` of the frames that `take` has returned last. It is returned next.
    next: RefCell<Vec<u8>>,
    /// Bytes that were taken from here and that the socket has not accepted.
    backlog: Cell<usize>,
    driver: RefCell<Option<Waker>>,
    signalled: Cell<bool>,
}

impl Outbox {
    /// Writes frames. They are sent before the loop waits again.
    pub fn write(&self, handle: &Handle, write: impl FnOnce(&mut Vec<u8>)) {
        self.append(&self.frames, handle, write);
    }

    /// Writes frames that are sent after all others, and over TLS in a record of their own. A client may read a whole record before
    /// it processes frames. A reset in the same record would then hide the answer.
    pub fn write_apart(&self, handle: &Handle, write: impl FnOnce(&mut Vec<u8>)) {
        self.append(&self.apart, handle, write);
    }

    fn append(&self, to: &RefCell<Vec<u8>>, handle: &Handle, write: impl FnOnce(&mut Vec<u8>)) {
        let mut frames = to.borrow_mut();
        if frames.is_empty() {
            *frames = handle.take_buf(ROOM);
            frames.resize(LEAD, 0);
        }
        write(&mut frames);
        drop(frames);
        self.signal();
    }

    /// Takes the next frames that may be sent together.
    pub fn take(&self) -> Segment {
        let is_empty = |buf: &Vec<u8>| buf.len() <= LEAD;
        let mut buf = self.next.take();
        if is_empty(&buf) {
            buf = self.frames.take();
            let apart = self.apart.take();
            if is_empty(&buf) {
                buf = apart;
            } else {
                self.next.replace(apart);
            }
        }
        Segment::Buf { start: LEAD.min(buf.len()), buf }
    }

    /// True if no frames wait.
    pub fn is_empty(&self) -> bool {
        self.unsent() == 0
    }

    /// The number of bytes that may be written before streams have to wait.
    pub fn room(&self) -> usize {
        FULL.saturating_sub(self.waiting())
    }

    fn waiting(&self) -> usize {
        self.backlog.get() + self.unsent()
    }

    fn unsent(&self) -> usize {
        let all = [&self.frames, &self.apart, &self.next];
        all.iter().map(|frames| frames.borrow().len().saturating_sub(LEAD)).sum()
    }

    /// Streams have to wait.
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Sets how many of the taken bytes the socket has not accepted.
    pub fn set_backlog(&self, bytes: u64) {
        self.backlog.set(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Wakes the connection's task.
    pub fn signal(&self) {
        if !self.signalled.replace(true) {
            wake(&self.driver);
        }
    }

    /// Whether the connection's task was signalled. If not, the next signal wakes it.
    pub fn take_signal(&self, cx: &Context<'_>) -> bool {
        let signalled = self.signalled.replace(false);
        if !signalled {
            wait(&self.driver, cx);
        }
        signalled
    }

    /// Waits until the connection is readable (true), or the task has work. With `sending`, a writable socket is work.
    pub async fn wait(
        &self,
        sending: bool,
        readable: impl Future<Output = io::Result<()>>,
        writable: impl Future<Output = io::Result<()>>,
    ) -> io::Result<bool> {
        // A peer that reads nothing is not read from. Unsent bodies alone do not stop reading: otherwise both ends
        // could wait for each other, with WINDOW_UPDATE frames unread.
        let may_read = !sending || self.waiting() < TOO_MUCH;
        let mut readable = pin!(readable);
        let mut writable = pin!(writable);
        poll_fn(|cx| {
            if self.take_signal(cx) {
                return Poll::Ready(Ok(false));
            }
            if sending && let Poll::Ready(result) = writable.as_mut().poll(cx) {
                return Poll::Ready(result.map(|()| false));
            }
            if may_read {
                return readable.as_mut().poll(cx).map_ok(|()| true);
            }
            Poll::Pending
        })
        .await
    }
}

/// Wakes the task whose waker is stored here, if any.
pub fn wake(place: &RefCell<Option<Waker>>) {
    if let Some(waker) = place.take() {
        waker.wake();
    }
}

/// Stores the task's waker, for [`wake`].
pub fn wait(place: &RefCell<Option<Waker>>, cx: &Context<'_>) {
    let mut place = place.borrow_mut();
    if !place.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *place = Some(cx.waker().clone());
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[test]
    fn waiting_bodies_do_not_stop_reading() {
        let outbox = Outbox::default();
        let poll = || {
            let waiting = pin!(outbox.wait(true, ready(Ok(())), pending()));
            waiting.poll(&mut Context::from_waker(Waker::noop()))
        };
        outbox.set_backlog(FULL as u64);
        assert!(outbox.is_full());
        assert!(matches!(poll(), Poll::Ready(Ok(true))));
        // A peer that sends requests and reads no answers is not read any more.
        outbox.set_backlog(TOO_MUCH as u64);
        assert!(poll().is_pending());
    }
}
