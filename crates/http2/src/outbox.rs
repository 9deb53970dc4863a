//! Frames that wait to be sent on a connection, and the task to wake for them. Both ends of HTTP/2
//! have one: the connections of clients and those to servers.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use weir_engine::{Handle, Segment, copies};

/// While more than this waits to be sent, streams wait.
pub const FULL: usize = 64 * 1024;
/// A peer that does not take that many bytes is not read from. Bodies alone are never so much;
/// answers to its frames may be.
const TOO_MUCH: usize = 2 * FULL;
/// Room for frames at first.
const ROOM: usize = 4096;
/// Bytes before the first frame. Files are read between heads of frames, and the kernel copies as slowly as `memcpy` to a place
/// that is as little behind as a few heads are.
const LEAD: usize = copies::LINE;

/// What the streams of a connection hand to its task.
#[derive(Default)]
pub struct Outbox {
    /// Nothing, or [`LEAD`] and frames.
    frames: RefCell<Vec<u8>>,
    /// Frames that leave behind those, and not together with them.
    apart: RefCell<Vec<u8>>,
    /// The same of those that were taken last.
    next: RefCell<Vec<u8>>,
    /// Bytes of frames that were taken from here and not by the socket yet.
    backlog: Cell<usize>,
    driver: RefCell<Option<Waker>>,
    signalled: Cell<bool>,
}

impl Outbox {
    /// Writes frames, which leave before the loop waits again.
    pub fn write(&self, handle: &Handle, write: impl FnOnce(&mut Vec<u8>)) {
        self.append(&self.frames, handle, write);
    }

    /// Writes frames that leave behind all that waits, and over TLS in a record of their own. A client may take a whole
    /// record before it looks at what came, and a reset that it takes with an answer hides the answer.
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

    /// Takes frames that wait, as far as they may leave together.
    pub fn take(&self) -> Segment {
        let mut buf = self.next.take();
        if buf.is_empty() {
            buf = self.frames.take();
            let apart = self.apart.take();
            if buf.is_empty() {
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

    /// Bytes that may be written before streams have to wait.
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

    /// More is waiting than the socket takes.
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// So much of what was taken is still on its way.
    pub fn set_backlog(&self, bytes: u64) {
        self.backlog.set(usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Wakes the connection's task.
    pub fn signal(&self) {
        if !self.signalled.replace(true) {
            wake(&self.driver);
        }
    }

    /// Whether the connection's task was signalled; if not, it will be woken.
    pub fn take_signal(&self, cx: &Context<'_>) -> bool {
        let signalled = self.signalled.replace(false);
        if !signalled {
            wait(&self.driver, cx);
        }
        signalled
    }

    /// Waits for something to read (true), or to do. `sending`: the socket has not taken all yet.
    pub async fn wait(
        &self,
        sending: bool,
        readable: impl Future<Output = io::Result<()>>,
        writable: impl Future<Output = io::Result<()>>,
    ) -> io::Result<bool> {
        // A peer that does not read what it is sent is not read from. Bodies are no reason to stop
        // reading: both ends could then wait for each other, and for windows that lie unread.
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

/// Wakes the task that waits at a place.
pub fn wake(place: &RefCell<Option<Waker>>) {
    if let Some(waker) = place.take() {
        waker.wake();
    }
}

/// Waits there.
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
        // A peer that only asks, and takes no answer, is not heard for ever.
        outbox.set_backlog(TOO_MUCH as u64);
        assert!(poll().is_pending());
    }
}
