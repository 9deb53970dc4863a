//! A wire as the `h2` crate wants it: tokio's traits, without tokio's loop.

use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_engine::Chain;
use weir_tls::Wire;

use crate::site::ThreadPlan;

/// Room for what is received at once.
const ROOM: usize = 16 << 10;

pub(super) struct H2Socket {
    wire: Wire,
    site: Rc<ThreadPlan>,
    received: Vec<u8>,
    /// How much of it has been handed over.
    used: usize,
    outgoing: Chain,
}

impl H2Socket {
    pub(super) fn new(wire: Wire, site: Rc<ThreadPlan>) -> H2Socket {
        // From here on each request has its own time.
        wire.set_deadline(None);
        H2Socket { wire, site, received: Vec::with_capacity(ROOM), used: 0, outgoing: Chain::new() }
    }

    /// Sends what is to be sent.
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            if self.wire.try_send(&mut self.outgoing)?.is_none() {
                ready!(pin!(self.wire.writable()).poll(cx))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Receives until something is there; 0 at the end.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.received.clear();
        self.used = 0;
        loop {
            match self.wire.try_recv(&mut self.received)? {
                Some(n) => {
                    self.site.tally.borrow_mut().bytes += n as u64;
                    return Poll::Ready(Ok(n));
                }
                None => ready!(pin!(self.wire.readable()).poll(cx))?,
            }
        }
    }
}

impl AsyncRead for H2Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.used == this.received.len() && ready!(this.fill(cx))? == 0 {
            return Poll::Ready(Ok(()));
        }
        let unread = this.received.get(this.used..).unwrap_or_default();
        let n = unread.len().min(buf.remaining());
        buf.put_slice(unread.get(..n).unwrap_or_default());
        this.used += n;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for H2Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.drain(cx))?;
        let mut copy = this.site.h.take_buf(buf.len());
        copy.extend_from_slice(buf);
        this.outgoing.push(copy);
        // What does not fit goes with the next write or flush.
        this.wire.try_send(&mut this.outgoing)?;
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().drain(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.drain(cx))?;
        this.wire.close_notify();
        // Otherwise a port of this machine would be held for a minute; all answers are here.
        let _ = this.wire.socket().reset_on_close();
        Poll::Ready(Ok(()))
    }
}
