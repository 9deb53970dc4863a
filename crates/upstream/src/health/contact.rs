//! Connections of health checks, for all protocols.

use std::time::Instant;

use weir_engine::{Chain, ConnectOptions, Handle, Patience, Segment, Stream};
use weir_tls::{Secured, TlsClient, Wire};

use super::CheckFailure;
use crate::PeerAddress;

const CONNECTING: &str = "connecting to upstream";
const SECURING: &str = "SSL handshaking to upstream";

/// Connects to a server.
pub async fn connect(
    handle: &Handle,
    to: &PeerAddress,
    options: &ConnectOptions,
) -> Result<Stream, CheckFailure> {
    let connected = async { handle.connect(&to.to_any()?, options).await };
    connected.await.map_err(|error| CheckFailure::io(CONNECTING, "connect()", &error))
}

/// Does the TLS handshake. Fails if there are no client settings for TLS.
pub async fn secure(
    stream: &Stream,
    client: Option<TlsClient>,
    server: &PeerAddress,
    until: Instant,
) -> Result<Secured, CheckFailure> {
    let client = client.ok_or_else(|| CheckFailure::unable(SECURING))?;
    let client = client.to_peer(&server.to_string());
    let secured = Secured::connect(stream, &client, until).await;
    secured.map_err(|error| CheckFailure::handshake(&error))
}

/// Sends the request of a check. `doing` names the step for the log.
pub async fn send(
    wire: &Wire,
    text: impl Into<Segment>,
    until: Instant,
    doing: &'static str,
) -> Result<(), CheckFailure> {
    let mut chain = Chain::new();
    chain.push(text);
    let sent = wire.send(&mut chain, Patience::Until(until)).await;
    sent.map_err(|error| CheckFailure::io(doing, "send()", &error))
}
