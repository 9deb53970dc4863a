//! Sends requests with their bodies to servers.

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

/// Sends as much of a buffered request as goes out at once, which is nearly always all.
/// [`whole_rest`] sends the rest.
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

/// Sends the rest of a buffered request. Returns what is left when the server begins to answer.
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

/// The name of the system call that sends the chain, for logs.
fn call(chain: &Chain) -> &'static str {
    if chain.segments().nth(1).is_some() { "writev()" } else { "send()" }
}

/// Sends the available part of the request. False if the server began to answer before all was
/// sent.
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

/// Logs that a body cannot be read from its temporary file.
fn unread(r: &Request, error: &io::Error) -> Fault {
    let doing = Doing::Sending.text();
    r.log(Level::Crit, format_args!("temporary file failed {} {doing}", Cause(error)));
    Fault::Us
}

/// Counts the sent bytes of a piece, whose length was `before`.
fn count(r: &mut Request, before: u64, piece: &Chain) {
    if let Some(attempt) = r.contexts.upstream.attempt() {
        attempt.sent += before - piece.len();
    }
}

/// Sends a piece. False if the server began to answer before all of it was sent.
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

/// Waits until the server sends more, and sends the rest of the request meanwhile. A server that
/// has sent something before its answer (an early hint, a log message, half a head) may still want
/// the rest.
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

/// Whether the server has answered before sending to it failed. If it closed and then reset the
/// connection, sending fails with EPIPE, and the answer ends as the server ended it. If it reset
/// the connection at once, sending fails with ECONNRESET, once. Then only an answer that tells its
/// own end is complete.
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

/// The part of a request that was not sent yet.
#[derive(Default)]
pub struct UnsentRequest {
    /// The piece that is being sent. With TLS, a piece that was begun must be sent unchanged.
    piece: Chain,
    pending: Chain,
    /// Nothing follows `pending`.
    last: bool,
    /// The body is unbuffered: the client sends it meanwhile.
    streams: bool,
    /// The server accepts no more.
    refused: bool,
}

/// The result of [`UnsentRequest::go_on`].
pub enum Went {
    /// The available data were sent.
    Out,
    /// The client has sent more.
    More,
}

impl UnsentRequest {
    /// A whole buffered request.
    pub fn all(request: Chain) -> UnsentRequest {
        UnsentRequest { pending: request, last: true, ..UnsentRequest::default() }
    }

    /// Prepares the next piece. False if there is none.
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

    /// Handles an error of sending. It is no fault if the server has answered before.
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

    /// Whether everything was sent.
    pub fn is_over(&self) -> bool {
        self.last && self.piece.is_empty() && self.pending.is_empty()
    }

    /// Whether the server may accept more.
    pub fn is_wanted(&self) -> bool {
        !self.refused
    }

    /// Takes the data that the client has sent.
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

    /// Sends available data, or waits for more from the client. Cancel-safe.
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

    /// Available bytes that were not sent.
    pub fn unsent(&self) -> u64 {
        self.piece.len() + self.pending.len()
    }

    /// Whether an unbuffered body goes on: the server accepts more.
    pub fn goes_on(&self) -> bool {
        self.streams && !self.refused
    }
}

/// The way of a body that is sent during the answer.
pub enum Way<'w> {
    /// On a stream of a connection.
    Stream(&'w Sender),
    /// On a connection of its own.
    Own(&'w Connection),
}

/// Sends the request with its unbuffered body. Returns what is left when the server begins to
/// answer.
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

/// Sends a piece on a stream. False if the server answers before it accepts all of it.
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
        // The head was received together with the end of the stream. It is read first.
        Waited::For(Either::Left(Err(_))) if stream.has_head() => Ok(false),
        Waited::For(Either::Left(Err(error))) => {
            Err(fault::operation(r, "send()", &error, Doing::Sending))
        }
        Waited::For(Either::Right(())) => Ok(false),
    }
}

/// The available part of the client's body, in one piece.
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
