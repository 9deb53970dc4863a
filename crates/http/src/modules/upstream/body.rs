//! The client's body on its way to the server.

use std::future::Future;
use std::io;

use bytes::Bytes;
use weir_engine::{Chain, Either, either};
use weir_log::{Cause, Level};
use weir_upstream::Connection;

use super::client::{Waited, wait};
use super::fault::{self, CLIENT_GONE, Doing, Fault};
use super::http2::Stream;
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
    let handle = r.worker.handle.clone();
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
            let call = if chain.segments().nth(1).is_some() { "writev()" } else { "send()" };
            return Err(Fault::Peer(fault::operation(r, call, &error, Doing::Sending)));
        }
        if chain.is_empty() {
            return Ok(true);
        }
        stream.set_deadline(Some(r.worker.handle.now() + passing.send_timeout));
        let ready = either(stream.writable(), stream.readable());
        match wait(r, passing, ready, true).await {
            Waited::Gone => return Err(CLIENT_GONE),
            Waited::For(Either::Left(Err(error)) | Either::Right(Err(error))) => {
                return Err(Fault::Peer(fault::operation(r, "send()", &error, Doing::Sending)));
            }
            Waited::For(Either::Left(Ok(()))) => {}
            Waited::For(Either::Right(Ok(()))) => return Ok(false),
        }
    }
}

/// Sends the request, and the body behind it as it comes in. True if all of it went out.
pub async fn stream<P: Protocol>(
    r: &mut Request,
    passing: &Passing,
    line: &Line,
    protocol: &P,
    mut chain: Chain,
) -> Result<bool, Fault> {
    loop {
        let piece = gather(r).map_err(Fault::Client)?;
        if !piece.is_empty() {
            r.keep_body_piece(&piece);
            protocol.frame(piece, &mut chain);
        }
        let last = r.body.is_read();
        if last {
            protocol.end_frame(&mut chain);
        }
        let piece = std::mem::take(&mut chain);
        let sent = match line {
            Line::Own(connection) => send(r, passing, connection, piece).await?,
            Line::Stream(stream) => send_on(r, passing, stream, piece, last).await?,
        };
        if !sent {
            return Ok(false);
        }
        if last {
            return Ok(true);
        }
        r.send_continue().await;
        // The server may answer before the client has sent everything.
        let waited = race(r.body_readable(), line.answered()).await;
        if matches!(waited, Either::Right(_)) {
            return Ok(false);
        }
        r.more_body().await.map_err(Fault::Client)?;
    }
}

/// Sends a piece on a stream; false if the server has ended it, in whichever way.
async fn send_on(
    r: &Request,
    passing: &Passing,
    stream: &Stream,
    mut piece: Chain,
    last: bool,
) -> Result<bool, Fault> {
    let sending = either(stream.send(&mut piece, last, passing.send_timeout), stream.over());
    match wait(r, passing, sending, true).await {
        Waited::Gone => Err(CLIENT_GONE),
        Waited::For(Either::Left(Ok(()))) => Ok(true),
        Waited::For(Either::Left(Err(error))) => {
            Err(Fault::Peer(fault::operation(r, "send()", &error, Doing::Sending)))
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
