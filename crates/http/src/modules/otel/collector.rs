//! A connection to the collector. It carries one HTTP/1.1 request at a time.

use std::io;
use std::net::ToSocketAddrs;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_engine::{Chain, ConnectOptions, FilePool, Handle, Patience, Rank};
use weir_log::Cause;
use weir_proto::otlp::{self, Partly};
use weir_tls::{HandshakeError, Secured, Wire};
use weir_upstream::PeerAddress;
use weir_upstream::reply::{Reply, Unread};

use super::exporter::{Exporter, PORT, seconds};

/// The timeout of a request, including the connect.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest body of an answer. With a longer one the connection is not reused.
const LONGEST: usize = 64 * 1024;

/// The system's resolver may block for long, so names are not looked up on threads that files need.
static NAMES: LazyLock<FilePool> = LazyLock::new(|| FilePool::named("otel_names", 1, 64));

/// Why spans were not exported.
#[derive(Debug)]
pub struct ExportError {
    /// The text for the log.
    pub text: String,
    /// Whether to try again later.
    pub retry: bool,
    /// `Retry-After`.
    pub retry_after: Option<Duration>,
}

impl ExportError {
    fn later(text: impl Into<String>) -> ExportError {
        ExportError { text: text.into(), retry: true, retry_after: None }
    }

    fn io(doing: &str, error: &io::Error) -> ExportError {
        ExportError::later(format!("{doing} failed {}", Cause(error)))
    }

    /// The worker is exiting.
    pub fn ended() -> ExportError {
        ExportError {
            text: "the worker ended while sending to".to_owned(),
            retry: false,
            retry_after: None,
        }
    }
}

/// The client of a loop for the collector.
pub struct Collector {
    exporter: Arc<Exporter>,
    handle: Handle,
    idle: Option<Wire>,
}

impl Collector {
    /// A client without a connection.
    pub fn new(exporter: Arc<Exporter>, handle: &Handle) -> Collector {
        Collector { exporter, handle: handle.clone(), idle: None }
    }

    /// Sends spans and waits for the answer. The collector may reject some of the spans.
    pub async fn post(&mut self, spans: &Bytes) -> Result<Partly, ExportError> {
        let until = self.handle.now() + TIMEOUT;
        if let Some(wire) = self.idle.take().filter(Wire::is_silent) {
            // The collector may be closing the idle connection, so a failure leads to a second
            // attempt.
            if let Ok(answer) = self.ask(wire, spans, until).await {
                return answer;
            }
        }
        let wire = self.connect(until).await?;
        self.ask(wire, spans, until).await?
    }

    /// Sends a request. The outer error is a failure before there was an answer.
    async fn ask(
        &mut self,
        wire: Wire,
        spans: &Bytes,
        until: Instant,
    ) -> Result<Result<Partly, ExportError>, ExportError> {
        wire.set_deadline(Some(until));
        let source = self.exporter.source.head(spans.len());
        let mut head = self.exporter.head.clone();
        head.extend_from_slice(format!("{}\r\n\r\n", source.len() + spans.len()).as_bytes());
        head.extend_from_slice(&source);
        let mut chain = Chain::new();
        chain.push(head);
        chain.push(spans.clone());
        wire.send(&mut chain, Patience::Until(until))
            .await
            .map_err(|e| ExportError::io("send() to", &e))?;
        let (answer, reusable) = receive(&wire).await?;
        if reusable {
            wire.set_deadline(None);
            self.idle = Some(wire);
        }
        Ok(answer)
    }

    async fn connect(&self, until: Instant) -> Result<Wire, ExportError> {
        let mut last = ExportError::later("no address of");
        for address in self.addresses().await? {
            let options = ConnectOptions { deadline: Some(until), ..ConnectOptions::default() };
            let connected = async { self.handle.connect(&address.to_any()?, &options).await };
            match connected.await {
                Ok(stream) => return self.secure(stream, until).await,
                Err(error) => last = ExportError::io("connect() to", &error),
            }
        }
        Err(last)
    }

    async fn secure(
        &self,
        stream: weir_engine::Stream,
        until: Instant,
    ) -> Result<Wire, ExportError> {
        let Some(client) = &self.exporter.tls else { return Ok(Wire::Plain(stream)) };
        match Secured::connect(&stream, client, until).await {
            Ok(secured) => Ok(Wire::join(stream, Some(secured))),
            Err(HandshakeError::Io(error)) => Err(ExportError::io("TLS handshake with", &error)),
            Err(error) => Err(ExportError::later(format!("{error} in the TLS handshake with"))),
        }
    }

    async fn addresses(&self) -> Result<Vec<PeerAddress>, ExportError> {
        let url = &self.exporter.url;
        let port = url.port.unwrap_or(PORT);
        if let Some(address) = &url.address {
            return Ok(vec![address.endpoint(port)]);
        }
        let host = String::from_utf8_lossy(&url.host).into_owned();
        let ask = move || (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        let found = self.handle.files().run_in(&NAMES, Rank::Read, ask).await;
        let found: Vec<std::net::SocketAddr> = found
            .and_then(|found| found)
            .map_err(|error| ExportError::later(format!("host not found ({error})")))?;
        Ok(found.into_iter().map(PeerAddress::Inet).collect())
    }
}

impl Exporter {
    /// The collector's URL, for the log.
    pub fn shown(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let port = self.url.port.map(|port| format!(":{port}")).unwrap_or_default();
        let [host, path] =
            [&self.url.host, &self.url.uri].map(|text| String::from_utf8_lossy(text));
        format!("{scheme}://{host}{port}{path}")
    }
}

/// Receives the answer. Also returns whether the connection may be reused.
async fn receive(wire: &Wire) -> Result<(Result<Partly, ExportError>, bool), ExportError> {
    let unread = |error| match error {
        Unread::Io(error) => ExportError::io("recv() from", &error),
        Unread::Wrong(text) => ExportError::later(format!("{text} while reading the answer of")),
    };
    let mut reply = Reply::read(wire).await.map_err(unread)?;
    let result = classify(reply.status(), reply.header(b"retry-after").and_then(seconds));
    // The head is complete, so its status counts even if the body cannot be read.
    let body = reply.body(wire, LONGEST).await.unwrap_or_default();
    let answer = result.map(|()| otlp::partly(&body.bytes).unwrap_or_default());
    Ok((answer, body.reusable))
}

/// The meaning of a status, by the OTLP specification.
fn classify(status: u16, retry_after: Option<Duration>) -> Result<(), ExportError> {
    let retry = matches!(status, 429 | 502..=504);
    match status {
        200..=299 => Ok(()),
        _ => Err(ExportError { text: format!("status {status} from"), retry, retry_after }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_failures_are_retried() {
        assert!(classify(200, None).is_ok() && classify(202, None).is_ok());
        for (status, retry) in [(400, false), (404, false), (429, true), (500, false), (503, true)]
        {
            assert_eq!(classify(status, None).unwrap_err().retry, retry, "{status}");
        }
    }
}
