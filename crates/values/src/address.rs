//! Addresses: of listening sockets, of peers, of servers in a configuration.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use rustix::net::SocketAddrAny;
use weir_engine::Stream;

use crate::cidr;

/// The longest path of a Unix socket.
const UNIX_PATH: usize = 107;

/// The address of a socket or of its peer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// IPv4 or IPv6.
    Inet(SocketAddr),
    /// A Unix socket. The path is empty if the peer has no name.
    Unix(PathBuf),
    /// The kernel has not reported it.
    Unknown,
}

impl Address {
    /// A peer's address as the kernel reports it.
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

    /// The form of `$remote_addr` and `$server_addr`: without port, and `unix:` with the path for
    /// Unix sockets.
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
            Address::Inet(SocketAddr::V4(inet)) => {
                write_ipv4(inet.ip(), out);
                Ok(())
            }
            Address::Inet(inet) => write!(out, "{}", inet.ip()),
            Address::Unix(path) => write!(out, "unix:{}", path.display()),
            Address::Unknown => Ok(()),
        };
    }

    /// The port of an IP address.
    pub fn port(&self) -> Option<u16> {
        match self {
            Address::Inet(inet) => Some(inet.port()),
            _ => None,
        }
    }

    /// The IP address, if it is one. An IPv4-mapped IPv6 address becomes IPv4.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Address::Inet(inet) => Some(inet.ip().to_canonical()),
            _ => None,
        }
    }

    /// The address stands for every address of its family.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Address::Inet(inet) if inet.ip().is_unspecified())
    }
}

/// Appends an IPv4 address. Formatting would cost ten times as much, and most requests to servers
/// and log lines have an address.
fn write_ipv4(ip: &Ipv4Addr, out: &mut Vec<u8>) {
    let mut text = [b'.'; 16];
    let mut at = 0;
    for octet in ip.octets() {
        let digits = [octet / 100, octet / 10 % 10, octet % 10];
        let first = digits.iter().position(|digit| *digit > 0).unwrap_or(2);
        for digit in digits.iter().skip(first) {
            text[at] = b'0' + digit;
            at += 1;
        }
        at += 1;
    }
    out.extend_from_slice(&text[..at - 1]);
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

/// The addresses of a `listen`: `host`, `host:port`, `port`, `[ipv6]:port`, `unix:path`. A port may
/// be a range, `first-last`. The error is nginx's text. nginx: ngx_parse_url.
pub fn listening(text: &str) -> Result<Vec<Address>, &'static str> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(vec![unix(path)?]);
    }
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    if let Some(ports) = only_ports(text)? {
        return Ok(ports.map(|port| Address::Inet(SocketAddr::new(any, port))).collect());
    }
    let (host, port) = split(text)?;
    let ports = port.map_or(Ok(80..=80), port_range)?;
    let ips = match host {
        HostKind::Name("*") => vec![any],
        host => resolve(host)?,
    };
    let address = |ip: IpAddr| ports.clone().map(move |port| SocketAddr::new(ip, port));
    let mut all: Vec<Address> = ips.into_iter().flat_map(address).map(Address::Inet).collect();
    let mut seen = std::collections::HashSet::new();
    all.retain(|address| seen.insert(address.clone()));
    Ok(all)
}

/// Whether the text of a `listen` has a port, or needs none.
pub fn has_port(text: &str) -> bool {
    let named = || matches!(split(text), Ok((_, Some(_))));
    text.starts_with("unix:") || matches!(only_ports(text), Ok(Some(_))) || named()
}

/// The addresses of a server. A name may have several.
pub fn server(text: &str, default_port: u16) -> Result<Vec<Address>, &'static str> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(vec![unix(path)?]);
    }
    let (host, port) = split(text)?;
    let port = port.map_or(Ok(default_port), self::port)?;
    let ips = resolve(host)?;
    Ok(ips.into_iter().map(|ip| Address::Inet(SocketAddr::new(ip, port))).collect())
}

/// The addresses of a name without port.
pub fn named(host: &str) -> Result<Vec<IpAddr>, &'static str> {
    if host.is_empty() { Err("no host") } else { resolve(host_kind(host)) }
}

enum HostKind<'a> {
    Ip(IpAddr),
    Name(&'a str),
}

/// Splits a text into host and port. The port is not parsed yet.
fn split(text: &str) -> Result<(HostKind<'_>, Option<&str>), &'static str> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("invalid host")?;
        if host.is_empty() {
            return Err("no host");
        }
        let port = match rest {
            "" => None,
            rest => Some(rest.strip_prefix(':').ok_or("invalid host")?),
        };
        let ip: Ipv6Addr = host.parse().map_err(|_| "invalid IPv6 address")?;
        return Ok((HostKind::Ip(IpAddr::V6(ip)), port));
    }
    if text.contains(['/', '?']) {
        return Err("invalid host");
    }
    let (host, port) = text.split_once(':').map_or((text, None), |(h, p)| (h, Some(p)));
    if host.is_empty() {
        // An IPv6 address without brackets is a wrong port first, as in nginx.
        return port.map_or(Err("no host"), |p| port_range(p).and(Err("no host")));
    }
    Ok((host_kind(host), port))
}

fn host_kind(host: &str) -> HostKind<'_> {
    match cidr::parse_ipv4(host.as_bytes()) {
        Some(ip) => HostKind::Ip(IpAddr::V4(ip)),
        None => HostKind::Name(host),
    }
}

/// Resolves a host. This blocks, so it is only done while the configuration is read.
fn resolve(host: HostKind<'_>) -> Result<Vec<IpAddr>, &'static str> {
    match host {
        HostKind::Ip(ip) => Ok(vec![ip]),
        HostKind::Name(name) => {
            let found = (name, 0).to_socket_addrs().map_err(|_| "host not found")?;
            let mut ips: Vec<IpAddr> = Vec::new();
            for address in found {
                if !ips.contains(&address.ip()) {
                    ips.push(address.ip());
                }
            }
            if ips.is_empty() { Err("host not found") } else { Ok(ips) }
        }
    }
}

fn unix(path: &str) -> Result<Address, &'static str> {
    match path.len() {
        0 => Err("no path in the unix domain socket"),
        1..=UNIX_PATH => Ok(Address::Unix(PathBuf::from(path))),
        _ => Err("too long path in the unix domain socket"),
    }
}

fn port(text: &str) -> Result<u16, &'static str> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u16>() {
        Ok(port) if port > 0 && digits => Ok(port),
        _ => Err("invalid port"),
    }
}

fn port_range(text: &str) -> Result<std::ops::RangeInclusive<u16>, &'static str> {
    let Some((first, last)) = text.split_once('-') else {
        let port = port(text)?;
        return Ok(port..=port);
    };
    let (last, first) = (port(last)?, port(first)?);
    if first > last { Err("invalid port range") } else { Ok(first..=last) }
}

/// `8080` or `8080-8083`. `None` if the text is a host.
fn only_ports(text: &str) -> Result<Option<std::ops::RangeInclusive<u16>>, &'static str> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits(first) && digits(last) { port_range(text).map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listens(text: &str) -> Vec<String> {
        listening(text).unwrap().iter().map(Address::to_string).collect()
    }

    #[test]
    fn forms_of_listen() {
        assert_eq!(listens("8080"), ["0.0.0.0:8080"]);
        assert_eq!(listens("*:8080"), ["0.0.0.0:8080"]);
        assert_eq!(listens("127.0.0.1"), ["127.0.0.1:80"]);
        assert_eq!(listens("127.0.0.010:81"), ["127.0.0.10:81"]);
        assert_eq!(listens("[::1]:81"), ["[::1]:81"]);
        assert_eq!(listens("[::]"), ["[::]:80"]);
        assert_eq!(listens("unix:/run/w"), ["unix:/run/w"]);
        assert_eq!(listens("8080-8082"), ["0.0.0.0:8080", "0.0.0.0:8081", "0.0.0.0:8082"]);
        assert_eq!(listens("127.0.0.1:90-91"), ["127.0.0.1:90", "127.0.0.1:91"]);
    }

    #[test]
    fn errors_of_listen() {
        for (text, problem) in [
            ("80800", "invalid port"),
            ("0", "invalid port"),
            ("127.0.0.1:x", "invalid port"),
            ("127.0.0.1:+80", "invalid port"),
            ("82-81", "invalid port range"),
            (":80", "no host"),
            ("::1", "invalid port"),
            ("::", "invalid port"),
            ("[::1", "invalid host"),
            ("[]:80", "no host"),
            ("[::g]:80", "invalid IPv6 address"),
            ("[::1]80", "invalid host"),
            ("127.0.0.1/x", "invalid host"),
            ("unix:", "no path in the unix domain socket"),
        ] {
            assert_eq!(listening(text), Err(problem), "{text}");
        }
    }

    #[test]
    fn servers_take_a_default_port_and_no_ranges() {
        assert_eq!(server("127.0.0.1", 53).unwrap()[0].to_string(), "127.0.0.1:53");
        assert_eq!(server("[::1]:5353", 53).unwrap()[0].to_string(), "[::1]:5353");
        assert_eq!(server("127.0.0.010", 53).unwrap()[0].to_string(), "127.0.0.10:53");
        assert_eq!(named("127.0.0.010").unwrap()[0].to_string(), "127.0.0.10");
        assert_eq!(server("127.0.0.1:1-2", 53), Err("invalid port"));
    }

    proptest::proptest! {
        #[test]
        fn an_address_is_written_as_it_is_shown(ip: std::net::IpAddr) {
            let address = Address::Inet(SocketAddr::new(ip, 80));
            let mut out = b"at ".to_vec();
            address.write_host(&mut out);
            proptest::prop_assert_eq!(String::from_utf8(out).unwrap(), format!("at {}", address.host()));
        }

        #[test]
        fn any_address_is_decided(text in r"[\[\]0-9.:*/?-]{0,20}") {
            let _ = split(&text);
            let _ = only_ports(&text);
        }
    }
}
