//! The operations on sockets, one file each.

#![allow(clippy::disallowed_methods, reason = "these are the operations that count")]

pub(crate) mod accept;
pub(crate) mod connect;
pub(crate) mod datagram;
pub(crate) mod join;
pub(crate) mod ready;
pub(crate) mod recv;
pub(crate) mod rest;
pub(crate) mod send;

use std::io;
use std::task::{Context, Poll};

use crate::budget;
use crate::ready::Ready;
use crate::source::Registered;

impl Registered {
    /// Registers the task to be woken when the socket is readable. Fails if the deadline has
    /// passed.
    #[inline]
    pub(crate) fn wait_read<T>(&self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.expired() {
            return Poll::Ready(Err(timed_out()));
        }
        self.report()?;
        self.h.0.waiters.register(&self.source.reader, cx, &self.h.0.tasks);
        Poll::Pending
    }

    /// As [`Registered::wait_read`], until the socket is writable.
    #[inline]
    pub(crate) fn wait_write<T>(&self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if self.expired() {
            return Poll::Ready(Err(timed_out()));
        }
        self.report()?;
        if !self.source.reports_room.replace(true) {
            self.h.0.backend.borrow_mut().report_room(&self.source)?;
        }
        self.h.0.waiters.register(&self.source.writer, cx, &self.h.0.tasks);
        Poll::Pending
    }

    /// Notes that the socket is not readable or writable any more.
    #[inline]
    pub(crate) fn exhausted(&self, ready: Ready) {
        self.source.clear(ready);
    }
}

/// Whether the running task has used up its budget for this turn. If so, the task is woken for a
/// later turn.
#[inline]
pub(crate) fn must_yield(cx: &mut Context<'_>) -> bool {
    let spent = budget::is_spent();
    if spent {
        cx.waker().wake_by_ref();
    }
    spent
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}
