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
    /// As the kernel takes it.
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

/// What a `server` line says besides its address. Fields are nginx's parameters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerOptions {
    /// Its share of the requests.
    pub weight: u32,
    /// At most this many connections at once; 0: no limit.
    pub max_conns: u32,
    /// So many failures make it unavailable; 0: never.
    pub max_fails: u32,
    /// They count within this time, and it is unavailable for as long.
    pub fail_timeout: Duration,
    /// Used only when no other is available.
    pub backup: bool,
    /// Never used.
    pub down: bool,
    /// Used only by requests that are bound to it.
    pub drain: bool,
    /// How long it takes until it has its whole weight again after a failure; zero: at once.
    pub slow_start: Duration,
    /// What requests that are bound to it know it by; empty: see [`Peer::sid`].
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

/// A server's address with what is known of it from the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Where it listens.
    pub endpoint: PeerAddress,
    /// The address as text, for logs and variables.
    pub name: String,
    /// The server as the configuration wrote it; several peers may come from one name.
    pub server: String,
    /// What the configuration says of it.
    pub options: PeerOptions,
}

impl Peer {
    /// A peer for an address of a server.
    pub fn new(endpoint: PeerAddress, server: impl Into<String>, options: PeerOptions) -> Peer {
        Peer { name: endpoint.to_string(), endpoint, server: server.into(), options }
    }

    /// What requests that are bound to it know it by: its route, or the MD5 of its address.
    pub fn sid(&self) -> String {
        match self.options.route.is_empty() {
            true => Md5::digest(&self.name).iter().map(|b| format!("{b:02x}")).collect(),
            false => self.options.route.clone(),
        }
    }
}
