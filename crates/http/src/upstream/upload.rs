//! The client's body on its way to the server.

use std::future::Future;
use std::io;
use std::pin::pin;

use bytes::Bytes;
use rustix::io::Errno;
use weir_engine::{Chain, Either, either};
use weir_log::{Cause, Level};
use weir_upstream::Connection;

use super::client::{Waited, wait};
use super::fault::{self, CLIENT_GONE, Doing, Fault};
use super::http2::{Sender, Stream};
use super::line::Line;
use super::passing::Passing;
use super::pieces;
use super::protocol::Protocol;
use crate::request::Request;

/// Sends the request, and its body if that was read before. True if all of it went out; false if the server
/// began to answer before.
pub async fn send(
    r: &mut Request,
    passing: &Passing,
    connection: &Connection,
    mut chain: Chain,
) -> Result<bool, Fault> {
    if !connection.stream.is_tls() {
        return send_piece(r, passing, connection, chain).await;
    }
    let handle = r.event_loop.handle.clone();
    while let Some(piece) = pieces::next(&handle, &mut chain).await.map_err(|e| unread(r, &e))? {
        if !send_piece(r, passing, connection, piece).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A body that stands in a file cannot be read.
fn unread(r: &Request, error: &io::Error) -> Fault {
    let doing = Doing::Sending.text();
    r.log(Level::Crit, format_args!("temporary file failed {} {doing}", Cause(error)));
    Fault::Us(500)
}

async fn send_piece(
    r: &mut Request,
    passing: &Passing,
    connection: &Connection,
    mut chain: Chain,
) -> Result<bool, Fault> {
    let total = chain.len();
    let sent = push(r, passing, connection, &mut chain).await;
    if let Some(attempt) = r.contexts.upstream.attempt() {
        attempt.sent += total - chain.len();
    }
    sent
}

async fn push(
    r: &mut Request,
    passing: &Passing,
    connection: &Connection,
    chain: &mut Chain,
) -> Result<bool, Fault> {
    let stream = &connection.stream;
    loop {
        if let Err(error) = stream.try_send(chain) {
            if has_answered(connection, &error) {
                return Ok(false);
            }
            let call = if chain.segments().nth(1).is_some() { "writev()" } else { "send()" };
            return Err(fault::operation(r, call, &error, Doing::Sending));
        }
        if chain.is_empty() {
            return Ok(true);
        }
        stream.set_deadline(Some(r.event_loop.handle.now() + passing.send_timeout));
        let arrived = pin!(stream.arrived());
        let some = either(stream.send_some(chain), arrived);
        let waited = wait(r, passing, pin!(some), Some(Doing::Sending)).await;
        stream.set_deadline(None);
        match waited {
            Waited::Gone => return Err(CLIENT_GONE),
            Waited::For(Either::Left(Err(error))) if has_answered(connection, &error) => {
                return Ok(false);
            }
            Waited::For(Either::Left(Err(error)) | Either::Right(Err(error))) => {
                return Err(fault::operation(r, "send()", &error, Doing::Sending));
            }
            Waited::For(Either::Left(Ok(()))) => {}
            Waited::For(Either::Right(Ok(()))) => return Ok(false),
        }
    }
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
    let answered = connection.stream.has_unread() || connection.stream.socket().holds_bytes();
    connection.is_broken.set(answered && reset);
    answered
}

/// What the server has not got of a client's body.
#[derive(Default)]
pub struct Rest {
    pending: Chain,
    /// Nothing follows `pending`.
    last: bool,
}

/// What [`Rest::go_on`] came to.
pub enum Went {
    /// All that was there went out.
    Out,
    /// The client has sent more.
    More,
}

impl Rest {
    /// Takes what the client has sent.
    pub fn fill<P: Protocol>(&mut self, r: &mut Request, protocol: &P) -> Result<(), u16> {
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
    pub async fn go_on(&mut self, r: &Request, passing: &Passing, to: &Sender) -> io::Result<Went> {
        if self.last || !self.pending.is_empty() {
            to.send(&mut self.pending, self.last, passing.send_timeout).await?;
            return Ok(Went::Out);
        }
        r.body_readable().await;
        Ok(Went::More)
    }

    /// After [`Went::Out`]: whether that was the end of the body.
    pub fn is_last(&self) -> bool {
        self.last
    }
}

/// Sends the request, and the body behind it as it comes in; what is left when the server begins to answer.
pub async fn stream<P: Protocol>(
    r: &mut Request,
    passing: &Passing,
    line: &Line,
    protocol: &P,
    chain: Chain,
) -> Result<Option<Rest>, Fault> {
    let both = passing.store.is_none() && !r.is_cacheable();
    let mut rest = Rest { pending: chain, last: false };
    loop {
        rest.fill(r, protocol).map_err(Fault::Client)?;
        let sent = match line {
            Line::Own(connection) => {
                send(r, passing, connection, std::mem::take(&mut rest.pending)).await?
            }
            Line::Stream(stream) => send_on(r, passing, line, stream, &mut rest, both).await?,
        };
        if !sent {
            return Ok(Some(rest));
        }
        if rest.last {
            return Ok(None);
        }
        r.send_continue().await;
        // The server may answer before the client has sent everything.
        let waited = race(r.body_readable(), line.answered(both)).await;
        if matches!(waited, Either::Right(_)) {
            return Ok(Some(rest));
        }
        r.more_body().await.map_err(Fault::Client)?;
    }
}

/// Sends a piece on a stream; false if the server answers before it takes all of it.
async fn send_on(
    r: &Request,
    passing: &Passing,
    line: &Line,
    stream: &Stream,
    rest: &mut Rest,
    both: bool,
) -> Result<bool, Fault> {
    let sending = stream.send(&mut rest.pending, rest.last, passing.send_timeout);
    let sending = pin!(either(sending, line.answered(both)));
    match wait(r, passing, sending, Some(Doing::Sending)).await {
        Waited::Gone => Err(CLIENT_GONE),
        Waited::For(Either::Left(Ok(()))) => Ok(true),
        Waited::For(Either::Left(Err(error))) => {
            Err(fault::operation(r, "send()", &error, Doing::Sending))
        }
        Waited::For(Either::Right(())) => Ok(false),
    }
}

/// All of the body that is there, in one piece.
fn gather(r: &mut Request) -> Result<Bytes, u16> {
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
