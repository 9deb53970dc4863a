//! One check of one server.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use weir_engine::{ConnectOptions, Handle};
use weir_tls::Wire;
use weir_upstream::health::{self, CheckFailure, contact};
use weir_upstream::reply::{HEAD, Reply, ReplyBody, Unread};
use weir_upstream::{Connection, Limits, Peer, Tag};

use super::Check;
use super::matching::Seen;
use crate::upstream::fault::Complaint;
use crate::upstream::http2::{self, Link, Room};
use crate::upstream::transport::Transport;

/// The most bytes of a body that are read.
const BODY: usize = 256 * 1024;
/// The same limits for a stream.
const ROOM: Room = Room { head: HEAD, body: BODY as u32 };

/// A connection that the next check may use.
pub enum ProbeConnection {
    /// A connection of HTTP/1.
    Http1(Box<Connection>),
    /// A connection of HTTP/2.
    Http2(Leaving),
}

/// A connection of HTTP/2. After this is dropped, it ends with its last stream.
pub struct Leaving(Rc<Link>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl ProbeConnection {
    fn connection(&self) -> &Connection {
        match self {
            ProbeConnection::Http1(connection) => connection,
            ProbeConnection::Http2(Leaving(link)) => &link.connection,
        }
    }

    /// Whether the server has neither closed the connection nor sent data that would be taken for
    /// the next answer.
    fn is_good(&self) -> bool {
        match self {
            ProbeConnection::Http1(connection) => connection.stream.is_silent(),
            ProbeConnection::Http2(Leaving(link)) => !link.is_leaving(),
        }
    }
}

/// The failure that an error stands for.
fn failed(doing: &'static str, call: &str, error: &io::Error) -> CheckFailure {
    if let Some(said) = error.get_ref().and_then(|inner| inner.downcast_ref::<Complaint>()) {
        return CheckFailure::wrong(doing, said.text.as_str());
    }
    CheckFailure::io(doing, call, error)
}

impl health::CheckSettings for Check {
    type Connection = ProbeConnection;

    fn line(&self) -> &health::HealthCheckOptions {
        &self.line
    }

    async fn probe(
        self: Arc<Self>,
        handle: &Handle,
        peer: &Arc<Peer>,
        kept: Option<ProbeConnection>,
    ) -> Result<Option<ProbeConnection>, CheckFailure> {
        probe(handle, &self, peer, kept).await
    }
}

/// Checks a server once. Returns a connection that the next check may use.
async fn probe(
    handle: &Handle,
    check: &Check,
    peer: &Arc<Peer>,
    kept: Option<ProbeConnection>,
) -> Result<Option<ProbeConnection>, CheckFailure> {
    let kept = kept.filter(|kept| {
        let age = handle.now().saturating_duration_since(kept.connection().started);
        age < check.kept && kept.is_good()
    });
    let kept = match kept {
        Some(kept) => kept,
        None => open(handle, check, peer).await?,
    };
    let kept = match kept {
        ProbeConnection::Http1(connection) => {
            let transport = Transport::Own(connection);
            let reusable = ask(handle, check, &transport).await?;
            transport.into_own().filter(|_| reusable).map(ProbeConnection::Http1)
        }
        ProbeConnection::Http2(link) => {
            ask(handle, check, &Transport::Stream(link.0.open(&check.request, true, ROOM))).await?;
            Some(ProbeConnection::Http2(link))
        }
    };
    Ok(kept.filter(|_| !check.kept.is_zero()))
}

async fn open(
    handle: &Handle,
    check: &Check,
    peer: &Arc<Peer>,
) -> Result<ProbeConnection, CheckFailure> {
    let stream = connect(handle, check, peer).await?;
    let connection = Connection::new(stream, peer.clone(), Tag::default(), handle.now());
    if !check.http2 {
        return Ok(ProbeConnection::Http1(connection));
    }
    let limits = Limits { requests: u64::MAX, timeout: check.kept, ..Limits::default() };
    Ok(ProbeConnection::Http2(Leaving(http2::start(connection, limits, ROOM.body))))
}

async fn connect(handle: &Handle, check: &Check, peer: &Peer) -> Result<Wire, CheckFailure> {
    let until = handle.now() + check.connect_timeout;
    let options = ConnectOptions { deadline: Some(until), ..ConnectOptions::default() };
    let endpoint = check.line.endpoint(peer);
    let stream = contact::connect(handle, &endpoint, &options).await?;
    let Some(tls) = &check.tls else { return Ok(Wire::Plain(stream)) };
    let client = tls.client(peer.server.as_bytes());
    let secured = contact::secure(&stream, client, &endpoint, until).await?;
    Ok(Wire::join(stream, Some(secured)))
}

/// Sends the request and judges the answer. True if the connection can be used again.
async fn ask(handle: &Handle, check: &Check, transport: &Transport) -> Result<bool, CheckFailure> {
    const READING: &str = "reading response header from upstream";
    let until = handle.now() + check.read_timeout;
    transport.set_deadline(Some(until));
    if let Transport::Own(connection) = transport {
        let (wire, doing) = (&connection.stream, "sending request to upstream");
        contact::send(wire, check.request.clone(), until, doing).await?;
    }
    let unread = |doing, error| match error {
        Unread::Io(error) => failed(doing, "recv()", &error),
        Unread::Wrong(error) => CheckFailure::wrong(doing, error.to_string()),
    };
    let mut reply = Reply::read(transport).await.map_err(|e| unread(READING, e))?;
    let wants_body = check.rules.as_ref().is_some_and(|rules| rules.wants_body());
    let mut body = ReplyBody::default();
    // A stream's answer is read to its end: dropping the stream early would reset it, and a
    // connection with many resets is not kept.
    let is_read = reply.keeps() || matches!(transport, Transport::Stream(_));
    if wants_body || is_read && !check.kept.is_zero() {
        let read = reply.body(transport, BODY).await;
        body = read.map_err(|e| unread("reading upstream", e))?;
    }
    let headers: Vec<_> = reply.headers().collect();
    judge(check, &Seen { status: reply.status(), headers: &headers, body: &body.bytes })?;
    Ok(body.reusable)
}

fn judge(check: &Check, seen: &Seen<'_>) -> Result<(), CheckFailure> {
    let judged = match &check.rules {
        Some(rules) => rules.judge(seen),
        None if (200..400).contains(&seen.status) => Ok(()),
        None => Err("checking status code"),
    };
    judged.map_err(CheckFailure::new)
}
