//! What to send where, how often and how fast.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use bytes::Bytes;
use weir_engine::SocketAddrAny;

use crate::Url;

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

/// A request, ready to send.
#[derive(Clone, Debug)]
pub struct Call {
    /// The peer's index in [`Plan::peers`].
    pub peer: usize,
    /// The request of a connection that stays.
    pub kept: Bytes,
    /// The same with `Connection: close`.
    pub closing: Bytes,
    /// The answer has no body, whatever its head says.
    pub is_head: bool,
}

/// What a run does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Requests, sent in turn.
    pub calls: Vec<Call>,
    /// Whom they go to.
    pub peers: Vec<SocketAddrAny>,
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
    /// Requests sent at once on a connection.
    pub pipeline: usize,
    /// Longest wait for a connection, and for an answer.
    pub timeout: Duration,
    /// Open all connections before the first request, one after another, so far apart: as idle
    /// visitors come. Time and rate count from the first request.
    pub connect_first: Option<Duration>,
    /// Hand each answer to the watcher.
    pub samples: bool,
}

/// What each request looks like.
#[derive(Clone, Debug)]
pub struct Shape {
    /// `GET`, unless said otherwise.
    pub method: String,
    /// Lines without their end, as in `Accept: text/html`.
    pub headers: Vec<String>,
    /// The body.
    pub body: Vec<u8>,
}

impl Default for Shape {
    fn default() -> Self {
        Shape { method: "GET".to_owned(), headers: Vec::new(), body: Vec::new() }
    }
}

impl Call {
    /// Puts a request together.
    pub fn new(url: &Url, shape: &Shape, peer: usize) -> Call {
        let kept = bytes(url, shape, false);
        let closing = bytes(url, shape, true);
        Call { peer, kept, closing, is_head: shape.method.eq_ignore_ascii_case("head") }
    }
}

impl Plan {
    /// A GET of each URL in a closed loop, over connections that stay. Where `to` is given, all
    /// connections go there.
    pub fn get(urls: &[Url], to: Option<&SocketAddrAny>) -> io::Result<Plan> {
        let mut plan = Plan {
            calls: Vec::new(),
            peers: to.cloned().into_iter().collect(),
            connections: 1,
            threads: 1,
            requests: None,
            duration: None,
            pace: Pace::Closed,
            closing: Closing::Never,
            pipeline: 1,
            timeout: Duration::from_secs(30),
            connect_first: None,
            samples: false,
        };
        plan.add(urls, &Shape::default(), to.is_some())?;
        Ok(plan)
    }

    /// Appends requests; with `one_peer` they go to the first peer.
    pub(crate) fn add(&mut self, urls: &[Url], shape: &Shape, one_peer: bool) -> io::Result<()> {
        for url in urls {
            let peer = if one_peer { 0 } else { self.peer_of(url)? };
            self.calls.push(Call::new(url, shape, peer));
        }
        Ok(())
    }

    fn peer_of(&mut self, url: &Url) -> io::Result<usize> {
        let address = resolve(&url.host, url.port)?;
        Ok(self.peers.iter().position(|peer| *peer == address).unwrap_or_else(|| {
            self.peers.push(address);
            self.peers.len() - 1
        }))
    }
}

/// The first address of a name.
pub(crate) fn resolve(host: &str, port: u16) -> io::Result<SocketAddrAny> {
    let mut all = (host, port).to_socket_addrs()?;
    let nothing = || io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    let first: SocketAddr = all.next().ok_or_else(nothing)?;
    Ok(first.into())
}

fn bytes(url: &Url, shape: &Shape, closing: bool) -> Bytes {
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
