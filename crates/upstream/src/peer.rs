//! One server that requests are passed to.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use md5::{Digest, Md5};
use rustix::net::{SocketAddrAny, SocketAddrUnix};

/// Where a peer listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PeerAddress {
    /// IPv4 or IPv6.
    Inet(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl PeerAddress {
    /// The address as the kernel's socket address.
    pub fn to_any(&self) -> io::Result<SocketAddrAny> {
        match self {
            PeerAddress::Inet(inet) => Ok((*inet).into()),
            PeerAddress::Unix(path) => Ok(SocketAddrUnix::new(path)?.into()),
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerAddress::Inet(inet) => inet.fmt(f),
            PeerAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The parameters of a `server` line, under nginx's names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerOptions {
    /// The peer's share of the requests, relative to the other weights.
    pub weight: u32,
    /// The most connections at a time; 0 for no limit.
    pub max_conns: u32,
    /// How many failures within `fail_timeout` make the peer unavailable; 0 for never.
    pub max_fails: u32,
    /// The time within which failures count, and for which the peer is unavailable after them.
    pub fail_timeout: Duration,
    /// Used only if no primary server is available.
    pub backup: bool,
    /// Never used.
    pub down: bool,
    /// Serves only requests that are bound to the peer (`sticky`).
    pub drain: bool,
    /// How long a recovered peer takes to get back to its full weight; zero for at once.
    pub slow_start: Duration,
    /// `route`: the id in requests that are bound to the peer. If empty, see [`Peer::sid`].
    pub route: String,
}

impl Default for PeerOptions {
    fn default() -> Self {
        PeerOptions {
            weight: 1,
            max_conns: 0,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            backup: false,
            down: false,
            drain: false,
            slow_start: Duration::ZERO,
            route: String::new(),
        }
    }
}

/// An address of an upstream server, with its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The address.
    pub endpoint: PeerAddress,
    /// The address as text, for logs and variables.
    pub name: String,
    /// The server as written in the configuration. One host name may give several peers.
    pub server: String,
    /// The parameters of the `server` line.
    pub options: PeerOptions,
}

impl Peer {
    /// A peer for an address of a server.
    pub fn new(endpoint: PeerAddress, server: impl Into<String>, options: PeerOptions) -> Peer {
        Peer { name: endpoint.to_string(), endpoint, server: server.into(), options }
    }

    /// The id in requests that are bound to the peer: its `route`, or the MD5 of its address.
    pub fn sid(&self) -> String {
        match self.options.route.is_empty() {
            true => Md5::digest(&self.name).iter().map(|b| format!("{b:02x}")).collect(),
            false => self.options.route.clone(),
        }
    }
}
