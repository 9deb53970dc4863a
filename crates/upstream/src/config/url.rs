//! Addresses of upstream servers as configurations write them: `host:port/uri`, `unix:/path:/uri`.
//! nginx: ngx_parse_url.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use weir_values::cidr;

use crate::PeerAddress;

/// The longest path of a Unix socket that the kernel takes.
const UNIX_PATH_MAX: usize = 107;

/// A parsed URL without its scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Host name, address in text, or the path of a Unix socket.
    pub host: Vec<u8>,
    /// The port, if one is written.
    pub port: Option<u16>,
    /// The address, if the host is one.
    pub address: Option<Host>,
    /// Path and query, as written.
    pub uri: Vec<u8>,
}

/// A host that need not be resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// IPv4 or IPv6.
    Ip(IpAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Url {
    /// Parses a URL. A path may follow only if `uri`. The error is nginx's text.
    pub fn parse(text: &[u8], uri: bool) -> Result<Url, &'static str> {
        if text.get(..5).is_some_and(|p| p.eq_ignore_ascii_case(b"unix:")) {
            return unix(text.get(5..).unwrap_or_default(), uri);
        }
        let end = text.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(text.len());
        let (authority, rest) = text.split_at(end);
        if !uri && !rest.is_empty() {
            return Err("invalid host");
        }
        if let Some(inner) = authority.strip_prefix(b"[") {
            return inet6(inner, rest);
        }
        let (host, port) = match memchr::memchr(b':', authority) {
            Some(at) => (&authority[..at], Some(parse_port(&authority[at + 1..])?)),
            None => (authority, None),
        };
        if host.is_empty() {
            return Err("no host");
        }
        let address = cidr::parse_ipv4(host).map(|ip| Host::Ip(ip.into()));
        Ok(Url { host: host.to_vec(), port, address, uri: rest.to_vec() })
    }

    /// The addresses of the host. Names are resolved, which may block. So this is called only while
    /// the configuration is read.
    pub fn endpoints(&self, default_port: u16) -> Result<Vec<PeerAddress>, &'static str> {
        let port = self.port.unwrap_or(default_port);
        match &self.address {
            Some(address) => Ok(vec![address.endpoint(port)]),
            None => {
                let host = std::str::from_utf8(&self.host).map_err(|_| "host not found")?;
                let found = (host, port).to_socket_addrs().map_err(|_| "host not found")?;
                let mut all: Vec<PeerAddress> = Vec::new();
                for address in found.map(PeerAddress::Inet) {
                    if !all.contains(&address) {
                        all.push(address);
                    }
                }
                if all.is_empty() { Err("host not found") } else { Ok(all) }
            }
        }
    }
}

impl Host {
    /// The host with a port.
    pub fn endpoint(&self, port: u16) -> PeerAddress {
        match self {
            Host::Ip(ip) => PeerAddress::Inet(SocketAddr::new(*ip, port)),
            Host::Unix(path) => PeerAddress::Unix(path.clone()),
        }
    }
}

fn unix(text: &[u8], uri: bool) -> Result<Url, &'static str> {
    use std::os::unix::ffi::OsStrExt;
    let (path, uri) = match memchr::memchr(b':', text).filter(|_| uri) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, b"".as_slice()),
    };
    if path.is_empty() {
        return Err("no path in the unix domain socket");
    }
    if path.len() > UNIX_PATH_MAX {
        return Err("too long path in the unix domain socket");
    }
    let address = Host::Unix(PathBuf::from(std::ffi::OsStr::from_bytes(path)));
    let host = [b"unix:", path].concat();
    Ok(Url { host, port: None, address: Some(address), uri: uri.to_vec() })
}

fn inet6(inner: &[u8], uri: &[u8]) -> Result<Url, &'static str> {
    let end = memchr::memchr(b']', inner).ok_or("invalid host")?;
    let (host, rest) = (&inner[..end], &inner[end + 1..]);
    let port = match rest {
        [] => None,
        [b':', port @ ..] => Some(parse_port(port)?),
        _ => return Err("invalid host"),
    };
    let ip = std::str::from_utf8(host).ok().and_then(|h| h.parse::<Ipv6Addr>().ok());
    let ip = ip.ok_or("invalid IPv6 address")?;
    let host = [b"[", host, b"]"].concat();
    Ok(Url { host, port, address: Some(Host::Ip(ip.into())), uri: uri.to_vec() })
}

fn parse_port(text: &[u8]) -> Result<u16, &'static str> {
    let port = weir_conf::values::number(text).and_then(|n| u16::try_from(n).ok());
    port.filter(|p| *p > 0).ok_or("invalid port")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn takes_apart_what_configurations_write() {
        let url = Url::parse(b"127.0.0.1:8080/a?b", true).unwrap();
        assert_eq!((url.host.as_slice(), url.port), (&b"127.0.0.1"[..], Some(8080)));
        assert_eq!(url.uri, b"/a?b");
        assert_eq!(url.address, Some(Host::Ip(Ipv4Addr::LOCALHOST.into())));
        let url = Url::parse(b"127.0.0.010", true).unwrap();
        assert_eq!(url.address, Some(Host::Ip(Ipv4Addr::new(127, 0, 0, 10).into())));
        let url = Url::parse(b"backend?x=1", true).unwrap();
        assert_eq!((url.host.as_slice(), url.port, url.address), (&b"backend"[..], None, None));
        assert_eq!(url.uri, b"?x=1");
        let url = Url::parse(b"[::1]:81", true).unwrap();
        assert_eq!((url.host.as_slice(), url.port), (&b"[::1]"[..], Some(81)));
        let url = Url::parse(b"unix:/tmp/x.sock:/uri", true).unwrap();
        assert_eq!(url.address, Some(Host::Unix("/tmp/x.sock".into())));
        assert_eq!(url.uri, b"/uri");
    }

    #[test]
    fn complains_as_nginx_does() {
        let cases: [(&[u8], &str); 6] = [
            (b"", "no host"),
            (b":80", "no host"),
            (b"a:0", "invalid port"),
            (b"a:65536", "invalid port"),
            (b"a:", "invalid port"),
            (b"unix:", "no path in the unix domain socket"),
        ];
        for (text, error) in cases {
            assert_eq!(Url::parse(text, true).unwrap_err(), error);
        }
        assert_eq!(Url::parse(b"a/b", false).unwrap_err(), "invalid host");
    }
}
