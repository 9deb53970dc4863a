//! A connection with or without TLS, for protocols that work alike over both.

use std::io;
use std::time::{Duration, Instant};

use weir_engine::{Chain, Patience, Stream, Wake};

use crate::negotiated::Negotiated;
use crate::stream::{Secured, TlsStream};

/// A connected socket, plain or with TLS.
pub enum Wire {
    /// Without TLS.
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
    /// Joins a socket with the state of its TLS, if it has any.
    #[inline]
    pub fn join(stream: Stream, secured: Option<Secured>) -> Wire {
        match secured {
            None => Wire::Plain(stream),
            Some(secured) => Wire::Tls(secured.on(stream)),
        }
    }

    /// Separates socket and state, to park the connection.
    #[inline]
    pub fn part(self) -> (Stream, Option<Secured>) {
        match self {
            Wire::Plain(stream) => (stream, None),
            Wire::Tls(tls) => tls.part(),
        }
    }

    /// Takes the TLS state for another loop that has the socket ([`TlsStream::lend`]). `None` if
    /// something is pending in it; `Some(None)` without TLS.
    #[inline]
    pub fn lend(&self) -> Option<Option<Secured>> {
        match self {
            Wire::Plain(_) => Some(None),
            Wire::Tls(tls) => tls.lend().map(Some),
        }
    }

    /// Takes back a state that was lent.
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

    /// True with TLS.
    #[inline]
    pub fn is_tls(&self) -> bool {
        matches!(self, Wire::Tls(_))
    }

    /// Calls `look` with the result of the handshake. `None` without TLS.
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

    /// As [`Stream::try_send`]. With TLS, the chain must hold no files, and the caller passes the
    /// same chain again until it is empty.
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

    /// As [`Stream::readable`]. With TLS, records without data do not count.
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

    /// Waits until the handshake is complete, if it was answered before that
    /// ([`TlsStream::completed`]).
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

    /// With TLS, there is plaintext to receive, although the socket may have nothing to read.
    #[inline]
    pub fn has_unread(&self) -> bool {
        matches!(self, Wire::Tls(tls) if tls.has_unread())
    }

    /// With TLS, the next receive need not wait for the socket: there is plaintext, or the peer has
    /// closed.
    #[inline]
    pub fn is_ready(&self) -> bool {
        matches!(self, Wire::Tls(tls) if tls.is_ready())
    }

    /// True if an idle peer has sent nothing: no bytes, no part of a record, and no end of the
    /// stream. Then the connection may serve another request. Bytes that had arrived are lost. Makes
    /// a system call only if something may have arrived.
    #[expect(clippy::disallowed_methods, reason = "one look")]
    pub fn is_silent(&self) -> bool {
        let has_partial_record = || matches!(self, Wire::Tls(tls) if tls.has_partial_record());
        if !self.socket().may_have_unread() {
            return !self.is_ready() && !has_partial_record();
        }
        if self.socket().peek_closed() {
            return false;
        }
        let handle = self.socket().handle();
        let mut probe = handle.take_buf(1);
        // A task that has spent its budget would be told that nothing has arrived.
        let answer = weir_engine::unbounded(|| self.try_recv(&mut probe));
        handle.give_buf(probe);
        matches!(answer, Ok(None)) && !has_partial_record()
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

    /// Closes the sending direction, with TLS after close_notify.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.close_notify();
        self.socket().shutdown_write()
    }

    /// With TLS, sends close_notify. Later bytes on the socket are not TLS.
    #[inline]
    pub fn close_notify(&self) {
        if let Wire::Tls(tls) = self {
            tls.close_notify();
        }
    }
}
