//! The address of a responder.

use std::net::IpAddr;

use weir_upstream::PeerAddress;
use weir_upstream::config::{Host, Url};

/// The port of HTTP.
const PORT: u16 = 80;

/// A responder, which is asked over plain HTTP: its answers are signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Responder {
    /// As the URL has it, without the port.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its addresses, as far as they are known from the start.
    pub addresses: Vec<PeerAddress>,
    /// Where it takes questions; ends with a slash.
    pub path: Vec<u8>,
}

impl Responder {
    /// Takes a URL apart. A name's addresses are looked up if `now`, which may block: only while the configuration is
    /// read. The error is nginx's text.
    pub fn new(url: &[u8], now: bool) -> Result<Responder, String> {
        const SCHEME: &[u8] = b"http://";
        let rest = url
            .split_at_checked(SCHEME.len())
            .filter(|(scheme, rest)| scheme.eq_ignore_ascii_case(SCHEME) && !rest.is_empty());
        let Some((_, rest)) = rest else {
            let url = String::from_utf8_lossy(url);
            return Err(format!("invalid URL prefix in OCSP responder \"{url}\""));
        };
        Self::parse(rest, now)
            .map_err(|why| format!("{why} in OCSP responder \"{}\"", String::from_utf8_lossy(rest)))
    }

    fn parse(rest: &[u8], now: bool) -> Result<Responder, &'static str> {
        let url = Url::parse(rest, true)?;
        let known = now || url.address.is_some();
        let addresses = if known { url.endpoints(PORT)? } else { Vec::new() };
        let mut path = url.uri;
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        let host = String::from_utf8_lossy(&url.host).into_owned();
        Ok(Responder { host, port: url.port.unwrap_or(PORT), addresses, path })
    }

    /// Whether its host is an address already.
    pub fn is_address(&self) -> bool {
        matches!(Url::parse(self.host.as_bytes(), false), Ok(Url { address: Some(_), .. }))
    }

    /// The responder at one of its addresses.
    pub fn at(&self, ip: IpAddr) -> PeerAddress {
        Host::Ip(ip).endpoint(self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let at = |url: &str| Responder::new(url.as_bytes(), false);
        let responder = at("HTTP://127.0.0.1:8080/ocsp").unwrap();
        assert_eq!((responder.host.as_str(), responder.port), ("127.0.0.1", 8080));
        assert_eq!(responder.path, b"/ocsp/");
        assert_eq!(responder.addresses.len(), 1);
        let named = at("http://responder.example").unwrap();
        assert_eq!((named.port, named.path.as_slice()), (80, &b"/"[..]));
        assert!(named.addresses.is_empty() && !named.is_address() && responder.is_address());
    }

    #[test]
    fn what_is_wrong_with_one_is_said() {
        let wrong = |url: &str| Responder::new(url.as_bytes(), false).unwrap_err();
        let text = "invalid URL prefix in OCSP responder \"https://a/\"";
        assert_eq!(wrong("https://a/"), text);
        assert_eq!(wrong("http://"), "invalid URL prefix in OCSP responder \"http://\"");
        assert_eq!(wrong("http://a:0/x"), "invalid port in OCSP responder \"a:0/x\"");
    }
}
