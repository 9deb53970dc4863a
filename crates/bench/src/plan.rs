//! The plan of a run: its requests, servers, connections and pace.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    /// The seed of a client's random numbers.
    pub(crate) fn seed(order: u32) -> u64 {
        (u64::from(order) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
    }

    /// Draws whether the connection closes after the next request.
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

/// When requests are due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: a connection sends its next request once the last one is answered.
    Closed,
    /// Open loop: requests are due at a constant rate, independent of the responses.
    Open {
        /// Requests a second.
        rate: f64,
    },
}

/// The protocol of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 with this many concurrent requests per connection. Without TLS the server must accept
    /// it with prior knowledge.
    Http2(usize),
    /// HTTP/3 with this many concurrent requests per connection. It needs TLS.
    Http3(usize),
}

impl Protocol {
    /// Concurrent requests per connection.
    pub(crate) fn streams(self) -> usize {
        match self {
            Protocol::Http1 => 1,
            Protocol::Http2(streams) | Protocol::Http3(streams) => streams,
        }
    }

    /// The ALPN name. RFC 7301.
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Protocol::Http1 => b"http/1.1",
            Protocol::Http2(_) => b"h2",
            Protocol::Http3(_) => b"h3",
        }
    }
}

/// An encoded request.
#[derive(Clone, Debug)]
pub struct PreparedRequest {
    /// Index of the peer in [`LoadPlan::peers`].
    pub peer: usize,
    /// The request in HTTP/1.1, on a connection that is kept alive.
    pub kept: Bytes,
    /// The request in HTTP/1.1 with `Connection: close`.
    pub closing: Bytes,
    /// The head in HTTP/2. `None` if HTTP/2 cannot carry the URL or a header line.
    pub(crate) head: Option<http::Request<()>>,
    /// The HEADERS frame in HTTP/3. Empty if `head` is `None`.
    pub(crate) frame: Bytes,
    /// The body.
    pub(crate) body: Bytes,
    /// Whether the method is HEAD, so that the response has no body.
    pub is_head: bool,
}

/// What a run does.
#[derive(Clone, Debug)]
pub struct LoadPlan {
    /// The requests, sent in turn.
    pub calls: Vec<PreparedRequest>,
    /// The servers of the requests.
    pub peers: Vec<TargetServer>,
    /// Concurrent connections.
    pub connections: usize,
    /// Threads of this client.
    pub threads: usize,
    /// The run ends after this many requests.
    pub requests: Option<u64>,
    /// No request is sent after this time.
    pub duration: Option<Duration>,
    /// When requests are due.
    pub pace: Pace,
    /// When connections are closed.
    pub closing: Closing,
    /// Pipelined requests per connection. HTTP/1 only.
    pub pipeline: usize,
    /// The protocol of the connections.
    pub protocol: Protocol,
    /// Timeout of connecting, and of each response.
    pub timeout: Duration,
    /// Opens all connections before the first request, at this interval. Duration and rate start
    /// with the first request.
    pub connect_first: Option<Duration>,
    /// HTTP/3: the longest UDP payload that the client accepts. `None`: 1472 bytes, which fit
    /// Ethernet.
    pub longest_datagram: Option<u16>,
    /// Whether the watcher receives samples.
    pub samples: bool,
}

/// The form of all requests.
#[derive(Clone, Debug)]
pub struct RequestShape {
    /// The method.
    pub method: String,
    /// Header lines without their line ends, such as `Accept: text/html`.
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
    /// Encodes a request.
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
    /// A plan with a GET of each `http` URL, in a closed loop over kept connections. With `to`, all
    /// connections go there.
    pub fn get(urls: &[Url], to: Option<&SocketAddrAny>) -> io::Result<LoadPlan> {
        LoadPlan::new(urls, &RequestShape::default(), to, None)
    }

    /// A plan with a request for each URL, in a closed loop over kept connections. `secure` is
    /// needed for `https` URLs.
    pub fn new(
        urls: &[Url],
        shape: &RequestShape,
        to: Option<&SocketAddrAny>,
        secure: Option<&TlsTarget>,
    ) -> io::Result<LoadPlan> {
        let (mut calls, mut peers) = (Vec::new(), Vec::<TargetServer>::new());
        // Each name is resolved once: name servers may tell its addresses in another order later.
        let mut found = HashMap::new();
        for url in urls {
            let at = match found.entry((url.secure, url.host.as_str(), url.port)) {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(entry) => {
                    let peer = TargetServer::of(url, to, secure)?;
                    let known = peers.iter().position(|other| other.is_same(&peer));
                    *entry.insert(known.unwrap_or_else(|| {
                        peers.push(peer);
                        peers.len() - 1
                    }))
                }
            };
            calls.push(PreparedRequest::new(url, shape, at));
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
