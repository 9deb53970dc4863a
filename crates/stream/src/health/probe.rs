//! Runs one check of one server.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Instant;

use weir_engine::{Chain, ConnectOptions, Handle, Patience, Stream};
use weir_proto::proxy_protocol::{self, Extras};
use weir_tls::{Secured, Wire};
use weir_upstream::Peer;
use weir_upstream::health::{self, CheckFailure, contact};

use super::{Match, StreamCheck};

const CONNECTING: &str = "connecting to upstream";
const SENDING: &str = "sending to upstream";
const READING: &str = "reading from upstream";
/// The answer was not the expected one.
const CHECKING: &str = "checking data";
/// Bytes of one read.
const PIECE: usize = 4096;
/// The largest UDP datagram, in bytes.
const MAX_DATAGRAM: usize = 65_535;

impl health::CheckSettings for StreamCheck {
    /// Each check opens a new connection.
    type Connection = ();

    fn line(&self) -> &health::HealthCheckOptions {
        &self.line
    }

    async fn probe(
        self: Arc<Self>,
        handle: &Handle,
        peer: &Arc<Peer>,
        _: Option<()>,
    ) -> Result<Option<()>, CheckFailure> {
        match (&self.rules, self.udp) {
            (Some(rules), true) => self.datagram(handle, peer, rules).await?,
            _ => self.connection(handle, peer).await?,
        }
        Ok(None)
    }
}

impl StreamCheck {
    fn options(&self, handle: &Handle) -> ConnectOptions {
        let from = self.proxy.bind.as_ref().and_then(|bind| bind.constant());
        self.proxy.options(from, handle.now() + self.proxy.connect_timeout)
    }

    /// A PROXY header without a client's address, if the servers expect one.
    fn proxy_header(&self) -> Vec<u8> {
        let mut head = Vec::new();
        if let Some(version) = self.proxy.proxy_protocol {
            proxy_protocol::write(version, None, self.udp, &Extras::default(), &mut head);
        }
        head
    }

    async fn connection(&self, handle: &Handle, peer: &Peer) -> Result<(), CheckFailure> {
        let (endpoint, options) = (self.line.endpoint(peer), self.options(handle));
        let stream = contact::connect(handle, &endpoint, &options).await?;
        let until = handle.now() + self.timeout;
        let head = self.proxy_header();
        if !head.is_empty() {
            let mut chain = Chain::new();
            chain.push(head);
            let sent = stream.send(&mut chain, Patience::Until(until)).await;
            sent.map_err(|e| CheckFailure::io(SENDING, "send()", &e))?;
        }
        let secured = self.secure(peer, &stream, until).await?;
        let wire = Wire::join(stream, secured);
        let result = match &self.rules {
            Some(rules) => self.exchange(&wire, rules, until).await,
            None => Ok(()),
        };
        wire.close_notify();
        result
    }

    async fn secure(
        &self,
        peer: &Peer,
        stream: &Stream,
        until: Instant,
    ) -> Result<Option<Secured>, CheckFailure> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let client = tls.client(peer.server.as_bytes());
        contact::secure(stream, client, &self.line.endpoint(peer), until).await.map(Some)
    }

    /// Sends the text of `send`, and reads until the answer is decided or `proxy_buffer_size` is
    /// full.
    async fn exchange(
        &self,
        wire: &Wire,
        rules: &Match,
        until: Instant,
    ) -> Result<(), CheckFailure> {
        wire.set_deadline(Some(until));
        if !rules.send.is_empty() {
            contact::send(wire, rules.send.clone(), until, SENDING).await?;
        }
        let most = self.proxy.buffer;
        let mut received = Vec::new();
        loop {
            match rules.judge(&received) {
                Some(true) => return Ok(()),
                None if received.len() < most => {}
                _ => return Err(CheckFailure::new(CHECKING)),
            }
            wire.readable().await.map_err(|e| CheckFailure::io(READING, "recv()", &e))?;
            received.reserve(PIECE.min(most - received.len()));
            let read = wire.try_recv(&mut received);
            if read.map_err(|e| CheckFailure::io(READING, "recv()", &e))? == Some(0) {
                return Err(CheckFailure::wrong(CHECKING, "upstream closed connection"));
            }
            received.truncate(most);
        }
    }

    /// Sends one datagram, and judges the first answer.
    async fn datagram(
        &self,
        handle: &Handle,
        peer: &Peer,
        rules: &Match,
    ) -> Result<(), CheckFailure> {
        let (endpoint, options) = (self.line.endpoint(peer), self.options(handle));
        let socket = endpoint.to_any().and_then(|to| handle.connect_datagrams(&to, &options));
        let socket = socket.map_err(|e| CheckFailure::io(CONNECTING, "connect()", &e))?;
        socket.set_deadline(Some(handle.now() + self.timeout));
        let mut text = self.proxy_header();
        text.extend_from_slice(&rules.send);
        let sent = socket.send_to(&text, None).await;
        sent.map_err(|e| CheckFailure::io(SENDING, "sendmsg()", &e))?;
        let mut received = Vec::with_capacity(self.proxy.buffer.min(MAX_DATAGRAM));
        loop {
            let readable = poll_fn(|cx| socket.poll_readable(cx)).await;
            readable.map_err(|e| CheckFailure::io(READING, "recv()", &e))?;
            let read = socket.try_recv(&mut received);
            if read.map_err(|e| CheckFailure::io(READING, "recv()", &e))?.is_some() {
                break;
            }
        }
        match rules.judge(&received) {
            Some(true) => Ok(()),
            _ => Err(CheckFailure::new(CHECKING)),
        }
    }
}
