//! The client's body on its way to the server.

use std::future::Future;
use std::io;
use std::pin::pin;

use bytes::Bytes;
use rustix::io::Errno;
use weir_engine::{Chain, Either, Patience, either};
use weir_log::{Cause, Level};
use weir_upstream::Connection;

use super::client::{Waited, wait};
use super::fault::{self, Doing, Fault};
use super::http2::{Sender, Stream};
use super::passing::UpstreamConf;
use super::pieces;
use super::protocol::Protocol;
use super::transport::Transport;
use crate::body::RequestBodyError;
use crate::request::Request;

/// Sends a request with a body that was read before, as far as it goes out at once: nearly always that is all. What does not
/// is for [`whole_rest`].
pub fn whole(
    r: &mut Request,
    connection: &Connection,
    mut chain: Chain,
) -> Result<Option<Box<UnsentRequest>>, Fault> {
    let mut tried = Ok(());
    if !connection.stream.is_tls() {
        let before = chain.len();
        tried = connection.stream.try_send(&mut chain).map(|_| ());
        count(r, before, &chain);
        if tried.is_ok() && chain.is_empty() {
            return Ok(None);
        }
    }
    let mut rest = Box::new(UnsentRequest::all(chain));
    if let Err(error) = tried {
        rest.refused(r, connection, call(&rest.pending), &error)?;
    }
    Ok(Some(rest))
}

/// Sends the rest. Returns what is left of it when the server begins to answer.
pub async fn whole_rest(
    r: &mut Request,
    passing: &UpstreamConf,
    transport: &Transport,
    mut rest: Box<UnsentRequest>,
) -> Result<Option<Box<UnsentRequest>>, Fault> {
    let Transport::Own(connection) = transport else { return Ok(Some(rest)) };
    let complete = rest.is_wanted() && send(r, passing, connection, &mut rest).await?;
    Ok((!complete).then_some(rest))
}

/// What sends this in one call.
fn call(chain: &Chain) -> &'static str {
    if chain.segments().nth(1).is_some() { "writev()" } else { "send()" }
}

/// Sends what is left of the request: true if that is all that there is by now; false if the server began to answer
/// before.
async fn send(
    r: &mut Request,
    passing: &UpstreamConf,
    connection: &Connection,
    rest: &mut UnsentRequest,
) -> Result<bool, Fault> {
    while rest.next(r, connection).await? {
        if !push(r, passing, connection, rest).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A body that stands in a file cannot be read.
fn unread(r: &Request, error: &io::Error) -> Fault {
    let doing = Doing::Sending.text();
    r.log(Level::Crit, format_args!("temporary file failed {} {doing}", Cause(error)));
    Fault::Us
}

/// Counts what has gone out of a piece that was so long.
fn count(r: &mut Request, before: u64, piece: &Chain) {
    if let Some(attempt) = r.contexts.upstream.attempt() {
        attempt.sent += before - piece.len();
    }
}

/// Sends a piece; false if the server began to answer before all of it went out.
async fn push(
    r: &mut Request,
    passing: &UpstreamConf,
    connection: &Connection,
    rest: &mut UnsentRequest,
) -> Result<bool, Fault> {
    let before = rest.piece.len();
    let sent = push_on(r, passing, connection, rest).await;
    count(r, before, &rest.piece);
    sent
}

async fn push_on(
    r: &mut Request,
    passing: &UpstreamConf,
    connection: &Connection,
    rest: &mut UnsentRequest,
) -> Result<bool, Fault> {
    let stream = &connection.stream;
    loop {
        if let Err(error) = stream.try_send(&mut rest.piece) {
            let call = call(&rest.piece);
            return rest.refused(r, connection, call, &error).map(|()| false);
        }
        if rest.piece.is_empty() {
            return Ok(true);
        }
        let arrived = pin!(stream.arrived());
        let patience = Patience::Idle(passing.send_within(r));
        let some = either(stream.send_some(&mut rest.piece, patience), arrived);
        let waited = wait(r, passing, pin!(some), Some(Doing::Sending)).await;
        stream.set_deadline(None);
        match waited {
            Waited::Gone => return Err(Fault::ClientLeft),
            Waited::For(Either::Left(Err(error))) => {
                return rest.refused(r, connection, "send()", &error).map(|()| false);
            }
            Waited::For(Either::Right(Err(error))) => {
                return Err(fault::operation(r, "send()", &error, Doing::Sending));
            }
            Waited::For(Either::Left(Ok(()))) => {}
            Waited::For(Either::Right(Ok(()))) => return Ok(false),
        }
    }
}

/// Waits until the server says more. A server that has said something that is no answer yet (an
/// early hint, a message for the log, half a head) may still want the rest of the request, which
/// goes out meanwhile.
pub async fn beside<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    connection: &Connection,
    protocol: &P,
    rest: &mut UnsentRequest,
) -> Result<io::Result<()>, Fault> {
    let stream = &connection.stream;
    while rest.next(r, connection).await? || !rest.last {
        if rest.piece.is_empty() {
            r.send_continue().await?;
            stream.set_deadline(None);
            match race(r.body_readable(), stream.readable()).await {
                Either::Right(ready) => return Ok(ready),
                Either::Left(()) => r.more_body().await?,
            }
            rest.fill(r, protocol)?;
            continue;
        }
        let before = rest.piece.len();
        let readable = pin!(stream.readable());
        let patience = Patience::Idle(passing.send_within(r));
        let some = either(readable, stream.send_some(&mut rest.piece, patience));
        let waited = wait(r, passing, pin!(some), Some(Doing::Sending)).await;
        stream.set_deadline(None);
        count(r, before, &rest.piece);
        match waited {
            Waited::Gone => return Err(Fault::ClientLeft),
            Waited::For(Either::Left(ready)) => return Ok(ready),
            Waited::For(Either::Right(Ok(()))) => {}
            Waited::For(Either::Right(Err(error))) => {
                rest.refused(r, connection, "send()", &error)?;
                return Ok(Ok(()));
            }
        }
    }
    Ok(Ok(()))
}

/// Whether a server that takes no more has answered before. A connection that it closed and then reset fails with EPIPE, and
/// what came ends where the server ended it. One that was reset before it was closed fails with ECONNRESET, once:
/// then only an answer that says itself where it ends is whole.
fn has_answered(connection: &Connection, error: &io::Error) -> bool {
    let reset = match Errno::from_io_error(error) {
        Some(Errno::PIPE) => false,
        Some(Errno::CONNRESET) => true,
        _ => return false,
    };
    let answered = connection.stream.has_unread() || connection.stream.socket().has_bytes();
    connection.is_broken.set(answered && reset);
    answered
}

/// The part of a request that was not sent to the server yet.
#[derive(Default)]
pub struct UnsentRequest {
    /// What goes out next, as it is: with TLS the same has to be sent until it has gone out.
    piece: Chain,
    pending: Chain,
    /// Nothing follows `pending`.
    last: bool,
    /// It comes from the client meanwhile.
    streams: bool,
    /// The server takes no more.
    refused: bool,
}

/// What [`UnsentRequest::go_on`] came to.
pub enum Went {
    /// All that was there went out.
    Out,
    /// The client has sent more.
    More,
}

impl UnsentRequest {
    /// All of a request.
    pub fn all(request: Chain) -> UnsentRequest {
        UnsentRequest { pending: request, last: true, ..UnsentRequest::default() }
    }

    /// Whether there is a piece to be sent.
    async fn next(&mut self, r: &Request, connection: &Connection) -> Result<bool, Fault> {
        if self.piece.is_empty() && !self.pending.is_empty() {
            if connection.stream.is_tls() {
                let handle = &r.event_loop.handle;
                let piece = pieces::next(handle, &mut self.pending).await;
                self.piece = piece.map_err(|e| unread(r, &e))?.unwrap_or_default();
            } else {
                std::mem::swap(&mut self.piece, &mut self.pending);
            }
        }
        Ok(!self.piece.is_empty())
    }

    /// Sending failed: that is the end, unless the server has answered before.
    fn refused(
        &mut self,
        r: &Request,
        connection: &Connection,
        call: &str,
        error: &io::Error,
    ) -> Result<(), Fault> {
        self.refused = has_answered(connection, error);
        match self.refused {
            true => Ok(()),
            false => Err(fault::operation(r, call, error, Doing::Sending)),
        }
    }

    /// All went out.
    pub fn is_over(&self) -> bool {
        self.last && self.piece.is_empty() && self.pending.is_empty()
    }

    /// The server may take more of it.
    pub fn is_wanted(&self) -> bool {
        !self.refused
    }

    /// Takes what the client has sent.
    pub fn fill<P: Protocol>(
        &mut self,
        r: &mut Request,
        protocol: &P,
    ) -> Result<(), RequestBodyError> {
        let piece = gather(r)?;
        if !piece.is_empty() {
            r.keep_body_piece(&piece);
            protocol.frame(piece, &mut self.pending);
        }
        self.last = r.body.is_read();
        if self.last {
            protocol.end_frame(&mut self.pending);
        }
        Ok(())
    }

    /// Sends what is there, or waits for more. Given up, it can be called again.
    pub async fn go_on(
        &mut self,
        r: &Request,
        passing: &UpstreamConf,
        way: Way<'_>,
    ) -> io::Result<Went> {
        match way {
            Way::Stream(to) if self.last || !self.pending.is_empty() => {
                to.send(&mut self.pending, self.last, passing.send_within(r)).await?;
                return Ok(Went::Out);
            }
            Way::Own(connection) if self.last || self.unsent() > 0 => {
                let next = self.next(r, connection).await;
                next.map_err(|_| io::Error::from(io::ErrorKind::Other))?;
                while !self.piece.is_empty() {
                    let patience = Patience::Idle(passing.send_within(r));
                    let sent = connection.stream.send_some(&mut self.piece, patience).await;
                    connection.stream.set_deadline(None);
                    if let Err(error) = sent {
                        // See `has_answered`.
                        let reset = Errno::from_io_error(&error) == Some(Errno::CONNRESET);
                        connection.is_broken.set(reset);
                        return Err(error);
                    }
                }
                return Ok(Went::Out);
            }
            _ => {}
        }
        r.body_readable().await;
        Ok(Went::More)
    }

    /// Bytes that are there and did not go out.
    pub fn unsent(&self) -> u64 {
        self.piece.len() + self.pending.len()
    }

    /// The client sends it while it goes to the server, and the server takes more of it.
    pub fn goes_on(&self) -> bool {
        self.streams && !self.refused
    }
}

/// Where a body goes while its answer comes.
pub enum Way<'w> {
    /// On a stream of a connection.
    Stream(&'w Sender),
    /// On a connection of its own.
    Own(&'w Connection),
}

/// Sends the request, and the body behind it as it comes in; what is left when the server begins to answer.
pub async fn stream<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    transport: &Transport,
    protocol: &P,
    chain: Chain,
) -> Result<Option<Box<UnsentRequest>>, Fault> {
    let mut rest =
        Box::new(UnsentRequest { pending: chain, streams: true, ..UnsentRequest::default() });
    loop {
        rest.fill(r, protocol)?;
        let sent = match transport {
            Transport::Own(connection) => send(r, passing, connection, &mut rest).await?,
            Transport::Stream(stream) => send_on(r, passing, transport, stream, &mut rest).await?,
        };
        if !sent {
            return Ok(Some(rest));
        }
        if rest.last {
            return Ok(None);
        }
        r.send_continue().await?;
        // The server may answer before the client has sent everything.
        let waited = race(r.body_readable(), transport.answered()).await;
        if matches!(waited, Either::Right(_)) {
            return Ok(Some(rest));
        }
        r.more_body().await?;
    }
}

/// Sends a piece on a stream; false if the server answers before it takes all of it.
async fn send_on(
    r: &Request,
    passing: &UpstreamConf,
    transport: &Transport,
    stream: &Stream,
    rest: &mut UnsentRequest,
) -> Result<bool, Fault> {
    let sending = stream.send(&mut rest.pending, rest.last, passing.send_within(r));
    let sending = pin!(either(sending, transport.answered()));
    match wait(r, passing, sending, Some(Doing::Sending)).await {
        Waited::Gone => Err(Fault::ClientLeft),
        Waited::For(Either::Left(Ok(()))) => Ok(true),
        Waited::For(Either::Left(Err(error))) => {
            Err(fault::operation(r, "send()", &error, Doing::Sending))
        }
        Waited::For(Either::Right(())) => Ok(false),
    }
}

/// All of the body that is there, in one piece.
fn gather(r: &mut Request) -> Result<Bytes, RequestBodyError> {
    let Some(first) = r.body_piece_now()? else { return Ok(Bytes::new()) };
    let Some(second) = r.body_piece_now()? else { return Ok(first) };
    let mut all = [first, second].concat();
    while let Some(piece) = r.body_piece_now()? {
        all.extend_from_slice(&piece);
    }
    Ok(Bytes::from(all))
}

async fn race<A: Future, B: Future>(client: A, server: B) -> Either<A::Output, B::Output> {
    match either(server, client).await {
        Either::Left(server) => Either::Right(server),
        Either::Right(client) => Either::Left(client),
    }
}
