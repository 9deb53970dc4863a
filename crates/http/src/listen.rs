//! Addresses: what `listen` says, and what the server is to open.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::SocketAddrAny;
use weir_conf::{Directive, Error};
use weir_engine::Stream;

use crate::scope::Spot;

/// Where a socket is bound, or who is at its other end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4 or IPv6.
    Inet(SocketAddr),
    /// A Unix socket; empty for a peer that has no name.
    Unix(PathBuf),
    /// The kernel did not tell.
    Unknown,
}

impl Address {
    /// What the kernel reported of a peer.
    pub fn from_any(address: Option<SocketAddrAny>) -> Address {
        let Some(address) = address else { return Address::Unix(PathBuf::new()) };
        if let Ok(inet) = SocketAddr::try_from(address.clone()) {
            return Address::Inet(inet);
        }
        match rustix::net::SocketAddrUnix::try_from(address) {
            Ok(unix) => {
                let path = unix.path().map(|p| PathBuf::from(p.to_string_lossy().into_owned()));
                Address::Unix(path.unwrap_or_default())
            }
            Err(_) => Address::Unknown,
        }
    }

    /// The local end of a connection.
    pub fn local_of(stream: &Stream) -> Option<Address> {
        stream.local_addr().ok().map(|a| Address::from_any(Some(a)))
    }

    /// As `$remote_addr` and `$server_addr` show it: without port; `unix:` for Unix sockets.
    pub fn host(&self) -> String {
        match self {
            Address::Inet(inet) => inet.ip().to_string(),
            Address::Unix(path) => format!("unix:{}", path.display()),
            Address::Unknown => String::new(),
        }
    }

    /// Appends [`Address::host`].
    pub fn write_host(&self, out: &mut Vec<u8>) {
        use std::io::Write;
        // Writing to a vector cannot fail.
        let _ = match self {
            Address::Inet(inet) => write!(out, "{}", inet.ip()),
            Address::Unix(path) => write!(out, "unix:{}", path.display()),
            Address::Unknown => Ok(()),
        };
    }

    /// The port, where there is one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Address::Inet(inet) => Some(inet.port()),
            _ => None,
        }
    }

    /// The IP address, where there is one; IPv4 inside IPv6 is taken out.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Address::Inet(inet) => Some(inet.ip().to_canonical()),
            _ => None,
        }
    }

    /// Stands for every address of its family.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Address::Inet(inet) if inet.ip().is_unspecified())
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Inet(inet) => inet.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Unknown => f.write_str("unknown"),
        }
    }
}

/// A listening socket that the configuration asks for. Fields are nginx's parameters of `listen`.
#[derive(Debug, Clone, PartialEq)]
pub struct Listen {
    /// Where.
    pub address: Address,
    /// Length of the accept queue; 511 where nothing is said.
    pub backlog: u32,
    /// A socket for each loop.
    pub reuseport: bool,
    /// Whether an IPv6 socket refuses IPv4.
    pub ipv6only: bool,
    /// Accept only when data has arrived.
    pub deferred: bool,
    /// SO_RCVBUF
    pub rcvbuf: Option<u64>,
    /// SO_SNDBUF
    pub sndbuf: Option<u64>,
    /// TCP Fast Open queue.
    pub fastopen: Option<u32>,
    /// SO_KEEPALIVE
    pub so_keepalive: Option<Keepalive>,
    /// Use MPTCP.
    pub multipath: bool,
    /// Bound on its own, even beside a wildcard of the same port.
    pub bind: bool,
}

/// `so_keepalive=`
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Keepalive {
    /// Off is said, too.
    pub on: bool,
    /// TCP_KEEPIDLE
    pub idle: Option<Duration>,
    /// TCP_KEEPINTVL
    pub interval: Option<Duration>,
    /// TCP_KEEPCNT
    pub count: Option<u32>,
}

/// One use of `listen`: an address and what it says about it.
#[derive(Debug, Clone)]
pub struct ListenLine {
    /// The socket.
    pub listen: Listen,
    /// `default_server`
    pub default_server: bool,
    /// Says more of the socket than its address: only one line for an address may.
    pub options: bool,
    /// For error messages.
    pub at: Spot,
}

/// Reads `listen ADDRESS [parameter]...`; a host name may stand for several addresses.
pub fn parse(d: &Directive) -> Result<Vec<ListenLine>, Error> {
    let Some(first) = d.args.first() else { return Ok(Vec::new()) };
    let text = first.lossy();
    let wrong =
        |what: &str| d.error_at(first, format!("{what} in \"{text}\" of the \"listen\" directive"));
    let addresses = addresses(&text).map_err(wrong)?;
    let mut line = ListenLine {
        listen: Listen {
            address: Address::Unknown,
            backlog: 511,
            reuseport: false,
            ipv6only: true,
            deferred: false,
            rcvbuf: None,
            sndbuf: None,
            fastopen: None,
            so_keepalive: None,
            multipath: false,
            bind: false,
        },
        default_server: false,
        options: false,
        at: Spot::new(d, first),
    };
    for word in d.args.iter().skip(1) {
        parameter(&mut line, d, word)?;
    }
    let each = |address| {
        let mut line = line.clone();
        line.listen.address = address;
        line
    };
    Ok(addresses.into_iter().map(each).collect())
}

fn addresses(text: &str) -> Result<Vec<Address>, &'static str> {
    if let Some(path) = text.strip_prefix("unix:") {
        return match path.len() {
            0 => Err("no path"),
            1..=107 => Ok(vec![Address::Unix(PathBuf::from(path))]),
            _ => Err("too long path"),
        };
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("invalid host")?;
        let ip: Ipv6Addr = host.parse().map_err(|_| "invalid IPv6 address")?;
        let port = match rest {
            "" => 80,
            rest => port(rest.strip_prefix(':').ok_or("invalid port")?)?,
        };
        return Ok(vec![Address::Inet(SocketAddr::new(IpAddr::V6(ip), port))]);
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        return Ok(vec![Address::Inet(SocketAddr::new(any, port(text)?))]);
    }
    let (host, port) = match text.split_once(':') {
        Some((host, rest)) => (host, port(rest)?),
        None => (text, 80),
    };
    if host.is_empty() {
        return Err("no host");
    }
    if host == "*" {
        return Ok(vec![Address::Inet(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port))]);
    }
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return Ok(vec![Address::Inet(SocketAddr::new(IpAddr::V4(ip), port))]);
    }
    use std::net::ToSocketAddrs;
    let found = (host, port).to_socket_addrs().map_err(|_| "host not found")?;
    let mut all: Vec<Address> = found.map(Address::Inet).collect();
    all.dedup();
    if all.is_empty() { Err("host not found") } else { Ok(all) }
}

fn port(text: &str) -> Result<u16, &'static str> {
    match text.parse::<u16>() {
        Ok(0) | Err(_) => Err("invalid port"),
        Ok(port) => Ok(port),
    }
}

fn parameter(line: &mut ListenLine, d: &Directive, word: &weir_conf::Word) -> Result<(), Error> {
    let text = word.lossy();
    let bad = || d.error_at(word, format!("invalid parameter \"{text}\""));
    if matches!(&*text, "default_server" | "default") {
        line.default_server = true;
        return Ok(());
    }
    let listen = &mut line.listen;
    (line.options, listen.bind) = (true, true);
    let (name, value) = text.split_once('=').map_or((&*text, None), |(n, v)| (n, Some(v)));
    let size =
        |v: Option<&str>| weir_conf::values::size(v.unwrap_or("").as_bytes()).ok_or_else(bad);
    let flag = |v: Option<&str>| match v {
        Some("on") => Ok(true),
        Some("off") => Ok(false),
        _ => Err(bad()),
    };
    match name {
        "bind" => {}
        "reuseport" => listen.reuseport = true,
        "deferred" => listen.deferred = true,
        "multipath" => listen.multipath = true,
        "ipv6only" => listen.ipv6only = flag(value)?,
        "backlog" => {
            let n = value.and_then(|v| v.parse().ok()).filter(|n| *n > 0);
            listen.backlog =
                n.ok_or_else(|| d.error_at(word, format!("invalid backlog \"{text}\"")))?;
        }
        "rcvbuf" => listen.rcvbuf = Some(size(value)?),
        "sndbuf" => listen.sndbuf = Some(size(value)?),
        "fastopen" => listen.fastopen = Some(value.and_then(|v| v.parse().ok()).ok_or_else(bad)?),
        "so_keepalive" => {
            listen.so_keepalive = Some(keepalive(value.unwrap_or("")).ok_or_else(bad)?)
        }
        "setfib" | "accept_filter" => return Err(bad()),
        "ssl" | "http2" | "quic" | "proxy_protocol" => {
            return Err(d.error_at(
                word,
                format!(
                    "the \"{name}\" parameter of \"listen\" is known but not built into weir yet"
                ),
            ));
        }
        _ => return Err(bad()),
    }
    Ok(())
}

/// `on`, `off`, or `idle:interval:count`, each of which may be left out.
fn keepalive(value: &str) -> Option<Keepalive> {
    match value {
        "on" => return Some(Keepalive { on: true, ..Keepalive::default() }),
        "off" => return Some(Keepalive::default()),
        _ => {}
    }
    let mut parts = value.split(':');
    let mut time = || match parts.next() {
        None => None,
        Some("") => Some(None),
        Some(text) => Some(Some(Duration::from_secs(weir_conf::values::sec(text.as_bytes())?))),
    };
    let (idle, interval) = (time()?, time()?);
    let count = match parts.next()? {
        "" => None,
        text => Some(text.parse().ok()?),
    };
    (parts.next().is_none()).then_some(Keepalive { on: true, idle, interval, count })
}
