//! The address of a responder.

use std::fmt;
use std::net::IpAddr;

use weir_upstream::PeerAddress;
use weir_upstream::config::{Host, Url};

/// The port of HTTP.
const PORT: u16 = 80;

/// A responder. It is asked over plain HTTP, since its responses are signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Responder {
    /// The host as in the URL, without the port.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The addresses that are known before the name is resolved.
    pub addresses: Vec<PeerAddress>,
    /// The path of the URL, with a slash at its end.
    pub path: Vec<u8>,
}

/// What is wrong with a responder's URL, in nginx's words.
#[derive(Debug)]
pub enum ResponderError {
    /// It does not begin with `http://`.
    Prefix(String),
    /// The rest of it names no server, for this reason.
    Server(&'static str, String),
}

impl fmt::Display for ResponderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResponderError::Prefix(url) => {
                write!(f, "invalid URL prefix in OCSP responder \"{url}\"")
            }
            ResponderError::Server(why, rest) => write!(f, "{why} in OCSP responder \"{rest}\""),
        }
    }
}

impl Responder {
    /// Parses a URL. With `now`, the addresses of a name are looked up, which may block: only while
    /// a configuration is read.
    pub fn new(url: &[u8], now: bool) -> Result<Responder, ResponderError> {
        const SCHEME: &[u8] = b"http://";
        let rest = url
            .split_at_checked(SCHEME.len())
            .filter(|(scheme, rest)| scheme.eq_ignore_ascii_case(SCHEME) && !rest.is_empty());
        let Some((_, rest)) = rest else {
            return Err(ResponderError::Prefix(String::from_utf8_lossy(url).into_owned()));
        };
        Self::parse(rest, now)
            .map_err(|why| ResponderError::Server(why, String::from_utf8_lossy(rest).into_owned()))
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

    /// Whether the host is an address.
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
    fn errors_in_urls_are_reported() {
        let wrong = |url: &str| Responder::new(url.as_bytes(), false).unwrap_err().to_string();
        let text = "invalid URL prefix in OCSP responder \"https://a/\"";
        assert_eq!(wrong("https://a/"), text);
        assert_eq!(wrong("http://"), "invalid URL prefix in OCSP responder \"http://\"");
        assert_eq!(wrong("http://a:0/x"), "invalid port in OCSP responder \"a:0/x\"");
    }
}
