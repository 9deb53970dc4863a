//! Implements tokio's I/O traits for a wire on weir's loop, for the `h2` crate.

use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use weir_engine::Chain;
use weir_tls::Wire;

use crate::thread_state::ThreadState;

/// Size of the receive buffer.
const RECEIVE_SIZE: usize = 16 << 10;

pub(super) struct H2Socket {
    wire: Wire,
    state: Rc<ThreadState>,
    received: Vec<u8>,
    /// Bytes of `received` that are already handed over.
    used: usize,
    outgoing: Chain,
}

impl H2Socket {
    pub(super) fn new(wire: Wire, state: Rc<ThreadState>) -> H2Socket {
        // From here on the timeout is per request.
        wire.set_deadline(None);
        H2Socket {
            wire,
            state,
            received: Vec::with_capacity(RECEIVE_SIZE),
            used: 0,
            outgoing: Chain::new(),
        }
    }

    /// Sends all outgoing bytes.
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            if self.wire.try_send(&mut self.outgoing)?.is_none() {
                ready!(pin!(self.wire.writable()).poll(cx))?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Receives until bytes arrive. Returns 0 at the end of the connection.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.received.clear();
        self.used = 0;
        loop {
            match self.wire.try_recv(&mut self.received)? {
                Some(n) => {
                    self.state.tally.borrow_mut().bytes += n as u64;
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
        let mut copy = this.state.h.take_buf(buf.len());
        copy.extend_from_slice(buf);
        this.outgoing.push(copy);
        // The next write or flush sends the rest.
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
        // Resets the connection, so that its port does not stay in TIME_WAIT for a minute. All
        // responses have arrived.
        let _ = this.wire.socket().reset_on_close();
        Poll::Ready(Ok(()))
    }
}
