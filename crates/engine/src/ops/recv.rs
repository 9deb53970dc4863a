//! Receiving from a stream.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::Stream;
use crate::budget;
use crate::ops::must_yield;
use crate::ready::Ready;
use crate::seam::{self, Call};
use crate::source::{Registered, Source};

/// See [`Stream::recv`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Recv<'a> {
    stream: &'a Stream,
    buf: Option<Vec<u8>>,
}

impl Stream {
    /// Receives into the spare capacity of `buf`, once: the number of bytes appended, 0 at the
    /// end of the stream. The buffer comes back with the answer; a future that is dropped keeps
    /// it. A buffer without spare capacity is an error ([`io::ErrorKind::InvalidInput`]).
    pub fn recv(&self, buf: Vec<u8>) -> Recv<'_> {
        Recv { stream: self, buf: Some(buf) }
    }

    /// As [`Stream::recv`], without waiting: `None` if nothing is there, or if the task has done enough for this
    /// turn ([`crate::is_spent`]). A task that waits afterwards ([`Stream::readable`]) is woken either way.
    #[inline]
    pub fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        self.0.try_recv(buf)
    }
}

impl Stream {
    /// Bytes lie there to be received: the end is none, nor is a connection that broke. Costs a system call.
    pub fn holds_bytes(&self) -> bool {
        self.0.source.peek().is_ok_and(|there| there > 0)
    }

    /// As [`Stream::readable`], for tasks that do something else until then: what was reported may have been
    /// received already, so the socket is looked at.
    pub async fn arrived(&self) -> io::Result<()> {
        loop {
            self.readable().await?;
            if !self.0.is_false_alarm() {
                return Ok(());
            }
        }
    }
}

impl Source {
    /// Looks at the next byte and leaves it there: 1, or 0 at the end.
    pub(crate) fn peek(&self) -> Result<usize, Errno> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(&self.fd, &mut [0u8; 1][..], flags).map(|(_, there)| there)
    }

    fn is_empty(&self) -> bool {
        self.peek() == Err(Errno::AGAIN)
    }

    /// Whether what was reported of it some time ago is nothing to read any more.
    pub(crate) fn is_silent(&self, ready: Ready) -> bool {
        !ready.any(Ready::GONE) && self.is_empty()
    }
}

impl Registered {
    fn is_false_alarm(&self) -> bool {
        if self.source.is(Ready::GONE) {
            return false;
        }
        let empty = self.source.is_empty();
        if empty {
            self.exhausted(Ready::READ);
        }
        empty
    }

    pub(crate) fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let room = buf.capacity() - buf.len();
        if room == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no room in the buffer"));
        }
        if !self.source.is(Ready::READABLE) || budget::is_spent() {
            return Ok(None);
        }
        loop {
            seam::at(Call::Recv)?;
            match rustix::net::recv(&self.source.fd, spare_capacity(buf), RecvFlags::empty()) {
                Ok((n, _)) => {
                    budget::spend_call(n);
                    // Less than asked: the socket is empty, and an event will tell when it is not.
                    // Unless that event has been: the end of the stream is reported once.
                    if n < room && !self.source.is(Ready::GONE) {
                        self.exhausted(Ready::READ);
                    }
                    return Ok(Some(n));
                }
                // No event would come: the backend has refused the socket, see `report_or_break`.
                Err(Errno::AGAIN) if self.source.is(Ready::ERR) => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                Err(Errno::AGAIN) => {
                    self.exhausted(Ready::READ);
                    return Ok(None);
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Future for Recv<'_> {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let registered = &self.stream.0;
        if must_yield(cx) {
            return Poll::Pending;
        }
        let mut buf = self.buf.take().unwrap_or_default();
        let answer = match registered.try_recv(&mut buf) {
            Ok(Some(n)) => Ok(n),
            Err(e) => Err(e),
            Ok(None) => match registered.wait_read(cx) {
                Poll::Ready(answer) => answer,
                Poll::Pending => {
                    self.buf = Some(buf);
                    return Poll::Pending;
                }
            },
        };
        Poll::Ready((answer, buf))
    }
}

impl Drop for Recv<'_> {
    fn drop(&mut self) {
        if let Some(buf) = self.buf.take() {
            self.stream.0.h.give_buf(buf);
        }
    }
}
