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
    /// Receives once into the spare capacity of `buf`. Returns the number of bytes appended, 0 at
    /// the end of the stream, and the buffer. If the future is dropped, the loop keeps the buffer.
    /// Fails with [`io::ErrorKind::InvalidInput`] if the buffer has no spare capacity.
    pub fn recv(&self, buf: Vec<u8>) -> Recv<'_> {
        Recv { stream: self, buf: Some(buf) }
    }

    /// As [`Stream::recv`], without waiting. `None` if nothing is there, or if the task has used up
    /// its budget ([`crate::is_spent`]). A task that then waits ([`Stream::readable`]) is woken in
    /// both cases.
    #[inline]
    pub fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        self.0.try_recv(buf)
    }
}

impl Stream {
    /// As [`Stream::readable`], for tasks that do other work until then. The reported bytes may
    /// have been received meanwhile, so the socket is checked before this is ready.
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
    /// Peeks at the next byte. Returns 1 if there is one, 0 at the end of the stream.
    pub(crate) fn peek(&self) -> Result<usize, Errno> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(&self.fd, &mut [0u8; 1][..], flags).map(|(_, there)| there)
    }

    fn is_empty(&self) -> bool {
        self.peek() == Err(Errno::AGAIN)
    }

    /// Whether an event that was reported earlier is outdated: the socket has nothing to read.
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
                    // Fewer bytes than asked for: the socket is empty, and the backend reports an
                    // edge when more arrives. The end of the stream is reported once. So after it,
                    // the socket stays readable.
                    if n < room && !self.source.is(Ready::GONE) {
                        self.exhausted(Ready::READ);
                    }
                    return Ok(Some(n));
                }
                // The backend refused the socket (see `report_or_break`), so no event would come.
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
