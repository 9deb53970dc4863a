//! What to send where, how often and how fast.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use weir_engine::SocketAddrAny;

use crate::{TargetServer, TlsTarget, Url, http2, http3};

/// When the client closes its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// After each request.
    Always,
    /// After a request, with the probability 1/N.
    OneIn(u32),
    /// Never.
    Never,
}

impl Closing {
    /// Where a client's chances begin.
    pub(crate) fn seed(order: u32) -> u64 {
        (u64::from(order) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
    }

    /// Whether the connection closes after the next request.
    pub(crate) fn draw(self, random: &mut u64) -> bool {
        match self {
            Closing::Always => true,
            Closing::Never => false,
            Closing::OneIn(n) => {
                *random ^= *random << 13;
                *random ^= *random >> 7;
                *random ^= *random << 17;
                random.is_multiple_of(u64::from(n.max(1)))
            }
        }
    }
}

/// When requests begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Each connection begins the next one when the last is answered.
    Closed,
    /// So many a second, whatever the answers do.
    Open {
        /// Requests a second.
        rate: f64,
    },
}

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, with so many requests at a time on each connection. Without TLS the server must
    /// expect it.
    Http2(usize),
    /// HTTP/3, likewise. It needs TLS.
    Http3(usize),
}

impl Protocol {
    /// Requests at a time on each connection.
    pub(crate) fn streams(self) -> usize {
        match self {
            Protocol::Http1 => 1,
            Protocol::Http2(streams) | Protocol::Http3(streams) => streams,
        }
    }

    /// Its name in a TLS handshake. RFC 7301.
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Protocol::Http1 => b"http/1.1",
            Protocol::Http2(_) => b"h2",
            Protocol::Http3(_) => b"h3",
        }
    }
}

/// A request, ready to send.
#[derive(Clone, Debug)]
pub struct PreparedRequest {
    /// The peer's index in [`LoadPlan::peers`].
    pub peer: usize,
    /// The request of a connection that stays.
    pub kept: Bytes,
    /// The same with `Connection: close`.
    pub closing: Bytes,
    /// The same for HTTP/2; none if its URL or a header line cannot be sent there.
    pub(crate) head: Option<http::Request<()>>,
    /// The same for HTTP/3: a HEADERS frame; empty without `head`.
    pub(crate) frame: Bytes,
    /// The body.
    pub(crate) body: Bytes,
    /// The answer has no body, whatever its head says.
    pub is_head: bool,
}

/// What a run does.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// Requests, sent in turn.
    pub calls: Vec<PreparedRequest>,
    /// The servers that they go to.
    pub peers: Vec<TargetServer>,
    /// Connections at a time.
    pub connections: usize,
    /// Threads of this client.
    pub threads: usize,
    /// End after so many requests.
    pub requests: Option<u64>,
    /// Begin none after this time.
    pub duration: Option<Duration>,
    /// When requests begin.
    pub pace: Pace,
    /// When connections end.
    pub closing: Closing,
    /// Requests sent at once on a connection; HTTP/1.
    pub pipeline: usize,
    /// What is spoken.
    pub protocol: Protocol,
    /// Longest wait for a connection, and for an answer.
    pub timeout: Duration,
    /// Open all connections before the first request, one after another, so far apart: as idle
    /// visitors come. Time and rate count from the first request.
    pub connect_first: Option<Duration>,
    /// HTTP/3: take no longer datagrams. What Ethernet carries if `None`.
    pub longest_datagram: Option<u16>,
    /// Hand each answer to the watcher.
    pub samples: bool,
}

/// What each request looks like.
#[derive(Clone, Debug)]
pub struct RequestShape {
    /// `GET`, unless said otherwise.
    pub method: String,
    /// Lines without their end, as in `Accept: text/html`.
    pub headers: Vec<String>,
    /// The body.
    pub body: Vec<u8>,
}

impl Default for RequestShape {
    fn default() -> Self {
        RequestShape { method: "GET".to_owned(), headers: Vec::new(), body: Vec::new() }
    }
}

impl PreparedRequest {
    /// Puts a request together.
    pub fn new(url: &Url, shape: &RequestShape, peer: usize) -> PreparedRequest {
        let kept = bytes(url, shape, false);
        let closing = bytes(url, shape, true);
        let is_head = shape.method.eq_ignore_ascii_case("head");
        let (head, body) = (http2::head(url, shape), Bytes::from(shape.body.clone()));
        let frame = head.as_ref().map_or_else(Bytes::new, http3::head);
        PreparedRequest { peer, kept, closing, head, frame, body, is_head }
    }
}

impl LoadPlan {
    /// A GET of each `http` URL in a closed loop, over connections that stay. Where `to` is given,
    /// all connections go there.
    pub fn get(urls: &[Url], to: Option<&SocketAddrAny>) -> io::Result<LoadPlan> {
        LoadPlan::new(urls, &RequestShape::default(), to, None)
    }

    /// Such requests in a closed loop, over connections that stay; `secure` is for `https` URLs.
    pub fn new(
        urls: &[Url],
        shape: &RequestShape,
        to: Option<&SocketAddrAny>,
        secure: Option<&TlsTarget>,
    ) -> io::Result<LoadPlan> {
        let (mut calls, mut peers) = (Vec::new(), Vec::<TargetServer>::new());
        for url in urls {
            let peer = TargetServer::of(url, to, secure)?;
            let known = peers.iter().position(|other| other.is_same(&peer));
            calls.push(PreparedRequest::new(url, shape, known.unwrap_or(peers.len())));
            if known.is_none() {
                peers.push(peer);
            }
        }
        Ok(LoadPlan {
            calls,
            peers,
            connections: 1,
            threads: 1,
            requests: None,
            duration: None,
            pace: Pace::Closed,
            closing: Closing::Never,
            pipeline: 1,
            protocol: Protocol::Http1,
            timeout: Duration::from_secs(30),
            connect_first: None,
            longest_datagram: None,
            samples: false,
        })
    }
}

fn bytes(url: &Url, shape: &RequestShape, closing: bool) -> Bytes {
    let has = |name: &str| {
        shape
            .headers
            .iter()
            .any(|line| line.split(':').next().is_some_and(|n| n.trim().eq_ignore_ascii_case(name)))
    };
    let mut out = format!("{} {} HTTP/1.1\r\n", shape.method, url.path);
    let mut line = |text: &str| {
        out.push_str(text);
        out.push_str("\r\n");
    };
    if !has("host") {
        line(&format!("Host: {}", url.authority));
    }
    if !has("user-agent") {
        line("User-Agent: weir-bench");
    }
    if let Some(authorization) = url.authorization.as_ref().filter(|_| !has("authorization")) {
        line(&format!("Authorization: {authorization}"));
    }
    shape.headers.iter().for_each(|header| line(header));
    if !shape.body.is_empty() && !has("content-length") {
        line(&format!("Content-Length: {}", shape.body.len()));
    }
    if closing && !has("connection") {
        line("Connection: close");
    }
    line("");
    let mut out = out.into_bytes();
    out.extend_from_slice(&shape.body);
    out.into()
}
