//! A connection with or without TLS, for a protocol above that works alike over both.

use std::io;
use std::time::{Duration, Instant};

use weir_engine::{Chain, Patience, Stream, Wake};

use crate::negotiated::Negotiated;
use crate::stream::{Secured, TlsStream};

/// A connected socket, plain or with TLS.
pub enum Wire {
    /// As it is.
    Plain(Stream),
    /// With TLS.
    Tls(TlsStream),
}

impl From<Stream> for Wire {
    fn from(stream: Stream) -> Self {
        Wire::Plain(stream)
    }
}

impl Wire {
    /// Puts a socket and the state of its TLS, if it has any, together again.
    #[inline]
    pub fn join(stream: Stream, secured: Option<Secured>) -> Wire {
        match secured {
            None => Wire::Plain(stream),
            Some(secured) => Wire::Tls(secured.on(stream)),
        }
    }

    /// Takes it apart, to be parked.
    #[inline]
    pub fn part(self) -> (Stream, Option<Secured>) {
        match self {
            Wire::Plain(stream) => (stream, None),
            Wire::Tls(tls) => tls.part(),
        }
    }

    /// Takes the state of its TLS, if it has any, while nothing is pending in it, for another loop that has the socket
    /// ([`TlsStream::lend`]). None if something is.
    #[inline]
    pub fn lend(&self) -> Option<Option<Secured>> {
        match self {
            Wire::Plain(_) => Some(None),
            Wire::Tls(tls) => tls.lend().map(Some),
        }
    }

    /// Takes back what was lent.
    #[inline]
    pub fn take_back(&self, lent: Option<Secured>) {
        if let (Wire::Tls(tls), Some(secured)) = (self, lent) {
            tls.take_back(secured);
        }
    }

    /// The socket.
    #[inline]
    pub fn socket(&self) -> &Stream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(tls) => tls.socket(),
        }
    }

    /// True if TLS is spoken.
    #[inline]
    pub fn is_tls(&self) -> bool {
        matches!(self, Wire::Tls(_))
    }

    /// What was agreed on in the handshake.
    pub fn tls<T>(&self, look: impl FnOnce(&Negotiated<'_>) -> T) -> Option<T> {
        match self {
            Wire::Plain(_) => None,
            Wire::Tls(tls) => tls.with(|connection| look(&connection.negotiated())),
        }
    }

    /// As [`Stream::try_recv`]; with TLS, `buf` may grow.
    #[inline]
    pub fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        match self {
            Wire::Plain(stream) => stream.try_recv(buf),
            Wire::Tls(tls) => tls.try_recv(buf),
        }
    }

    /// As [`Stream::recv`]; with TLS, `buf` may grow.
    #[inline]
    pub async fn recv(&self, buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        match self {
            Wire::Plain(stream) => stream.recv(buf).await,
            Wire::Tls(tls) => tls.recv(buf).await,
        }
    }

    /// As [`Stream::try_send`]. With TLS the chain must hold no files, and the same chain must come again
    /// until it is empty.
    #[inline]
    pub fn try_send(&self, chain: &mut Chain) -> io::Result<Option<u64>> {
        match self {
            Wire::Plain(stream) => stream.try_send(chain),
            Wire::Tls(tls) => tls.try_send(chain),
        }
    }

    /// As [`Stream::send`]; see [`Wire::try_send`].
    #[inline]
    pub async fn send(&self, chain: &mut Chain, patience: Patience) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.send(chain, patience).await,
            Wire::Tls(tls) => tls.send(chain, patience).await,
        }
    }

    /// As [`Stream::send_some`]; see [`Wire::try_send`].
    #[inline]
    pub async fn send_some(&self, chain: &mut Chain, patience: Patience) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.send_some(chain, patience).await,
            Wire::Tls(tls) => tls.send_some(chain, patience).await,
        }
    }

    /// As [`Stream::set_deadline`].
    #[inline]
    pub fn set_deadline(&self, at: Option<Instant>) {
        self.socket().set_deadline(at);
    }

    /// As [`Stream::set_timeout`].
    #[inline]
    pub fn set_timeout(&self, after: Option<Duration>) {
        self.socket().set_timeout(after);
    }

    /// As [`Stream::readable`]: with TLS, what is of the protocol only does not count.
    #[inline]
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.readable().await,
            Wire::Tls(tls) => tls.readable().await,
        }
    }

    /// As [`Stream::arrived`].
    #[inline]
    pub async fn arrived(&self) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.arrived().await,
            Wire::Tls(tls) => tls.readable().await,
        }
    }

    /// Waits for the rest of a handshake that was answered before it was complete.
    #[inline]
    pub async fn completed(&self) -> io::Result<()> {
        match self {
            Wire::Plain(_) => Ok(()),
            Wire::Tls(tls) => tls.completed().await,
        }
    }

    /// As [`Stream::writable`].
    #[inline]
    pub async fn writable(&self) -> io::Result<()> {
        self.socket().writable().await
    }

    /// With TLS, something came that is not received yet, though the socket may be silent.
    #[inline]
    pub fn has_unread(&self) -> bool {
        matches!(self, Wire::Tls(tls) if tls.has_unread())
    }

    /// With TLS, the next receive need not wait for the socket, which may be silent: something came that is not received
    /// yet, or the peer has said that nothing more will.
    #[inline]
    pub fn is_ready(&self) -> bool {
        matches!(self, Wire::Tls(tls) if tls.is_ready())
    }

    /// Nothing came unasked, neither bytes, be they part of a record, nor the end: the connection
    /// may serve another request. What came is gone then. Costs a system call only where something
    /// may be there.
    #[expect(clippy::disallowed_methods, reason = "one look")]
    pub fn is_silent(&self) -> bool {
        let amid_record = || matches!(self, Wire::Tls(tls) if tls.is_amid_record());
        if !self.socket().may_have_unread() {
            return !self.is_ready() && !amid_record();
        }
        if self.socket().peek_closed() {
            return false;
        }
        let handle = self.socket().handle();
        let mut probe = handle.take_buf(1);
        // A task that has done enough for this turn is to know it, too.
        let answer = weir_engine::unbounded(|| self.try_recv(&mut probe));
        handle.give_buf(probe);
        matches!(answer, Ok(None)) && !amid_record()
    }

    /// As [`Stream::rest`].
    #[inline]
    pub async fn rest(&self, grace: Duration) -> Wake {
        match self {
            Wire::Plain(stream) => stream.rest(grace).await,
            Wire::Tls(_) if self.is_ready() => Wake::Ready,
            Wire::Tls(tls) => tls.socket().rest(grace).await,
        }
    }

    /// Tells the peer that nothing more will come.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.close_notify();
        self.socket().shutdown_write()
    }

    /// With TLS, says that nothing more will come; what follows on the socket is not of it.
    #[inline]
    pub fn close_notify(&self) {
        if let Wire::Tls(tls) = self {
            tls.close_notify();
        }
    }
}
