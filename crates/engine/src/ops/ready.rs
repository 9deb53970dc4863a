//! Waiting for a stream without an operation.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::Stream;
use crate::ops::must_yield;
use crate::ready::Ready;

/// See [`Stream::readable`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Readable<'a>(&'a Stream);

/// See [`Stream::writable`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Writable<'a>(&'a Stream);

/// See [`Stream::closed`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Closed<'a>(&'a Stream);

impl Stream {
    /// Waits until there may be something to receive, possibly the end of the stream. Fails when
    /// the deadline passes.
    pub fn readable(&self) -> Readable<'_> {
        Readable(self)
    }

    /// Waits until there may be room to send. Fails when the deadline passes.
    pub fn writable(&self) -> Writable<'_> {
        Writable(self)
    }

    /// Waits until the peer has closed its side or the connection has failed, even if bytes that
    /// arrived before are still unread. Fails when the deadline passes.
    pub fn closed(&self) -> Closed<'_> {
        Closed(self)
    }

    /// Whether the loop knows that the peer has closed its side or that the connection has failed.
    /// It does not know before a task has waited for the stream.
    pub fn peek_closed(&self) -> bool {
        self.0.source.is(Ready::GONE)
    }

    /// Whether there may be something to receive, possibly the end of the stream, as far as the loop
    /// knows. Costs no system call.
    #[inline]
    pub fn may_have_unread(&self) -> bool {
        self.0.source.is(Ready::READABLE)
    }

    /// Whether bytes wait to be received; the end of the stream is none. Costs a system call.
    pub fn has_bytes(&self) -> bool {
        self.0.source.peek().is_ok_and(|there| there > 0)
    }
}

impl Future for Readable<'_> {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let registered = &self.0.0;
        registered.report()?;
        if registered.source.is(Ready::READABLE) {
            // The task will receive without waiting, so its budget is checked here.
            return if must_yield(cx) { Poll::Pending } else { Poll::Ready(Ok(())) };
        }
        registered.wait_read(cx)
    }
}

impl Future for Writable<'_> {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let registered = &self.0.0;
        if registered.source.is(Ready::WRITABLE) {
            return if must_yield(cx) { Poll::Pending } else { Poll::Ready(Ok(())) };
        }
        registered.wait_write(cx)
    }
}

impl Future for Closed<'_> {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let registered = &self.0.0;
        registered.report()?;
        if registered.source.is(Ready::GONE) {
            return Poll::Ready(Ok(()));
        }
        if registered.expired() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        registered.h.0.waiters.register(&registered.source.closer, cx, &registered.h.0.tasks);
        Poll::Pending
    }
}
