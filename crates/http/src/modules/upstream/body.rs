//! The client's body on its way to the server.

use std::future::Future;

use weir_engine::{Chain, Either, either};
use weir_upstream::Connection;

use super::client::{Waited, wait};
use super::fault::{self, CLIENT_GONE, Doing, Fault};
use super::passing::Passing;
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

/// Sends the body as it comes in. True if all of it went out.
pub async fn stream<P: Protocol>(
    r: &mut Request,
    passing: &Passing,
    connection: &Connection,
    protocol: &P,
) -> Result<bool, Fault> {
    loop {
        if r.body_needs_bytes() {
            // The server may answer before the client has sent everything.
            let client = r.conn.clone();
            let waited = race(client.stream.readable(), connection.stream.readable()).await;
            if matches!(waited, Either::Right(_)) {
                return Ok(false);
            }
        }
        let mut chain = Chain::new();
        let last = match r.next_body_piece().await.map_err(Fault::Final)? {
            Some(piece) => {
                protocol.frame(piece, &mut chain);
                false
            }
            None => {
                protocol.end_frame(&mut chain);
                true
            }
        };
        if !send(r, passing, connection, chain).await? {
            return Ok(false);
        }
        if last {
            return Ok(true);
        }
    }
}

async fn race<A: Future, B: Future>(client: A, server: B) -> Either<A::Output, B::Output> {
    match either(server, client).await {
        Either::Left(server) => Either::Right(server),
        Either::Right(client) => Either::Left(client),
    }
}
