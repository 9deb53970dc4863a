//! A URL as a request on one of the site's listening sockets.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use weir_http::explain::{Question, SupposedAnswer};
use weir_http::{Address, Site};

/// The request to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AskedRequest {
    pub secure: bool,
    /// The `Host` header, with the port if the URL has one.
    pub host: String,
    pub name: String,
    pub port: u16,
    pub target: String,
    pub method: String,
    /// Header lines.
    pub headers: Vec<String>,
    /// The supposed answer of the upstream server.
    pub answer: Option<SupposedAnswer>,
}

/// Why a request cannot be explained.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AskError {
    /// Not a usable URL.
    Url(String, UrlFault),
    /// Not a header line.
    Header(String),
    /// The argument of `--to` is not an address.
    To(String),
    /// No server listens there. Contains the addresses that have servers.
    NotListening(String, Vec<Address>),
}

/// What is wrong with a URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UrlFault {
    /// Neither `http` nor `https`.
    Scheme,
    /// The port is not a number below 65536.
    Port,
    /// No host.
    Host,
    /// It has a space or a control character. Also used for the method.
    Byte,
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AskError::Url(url, fault) => {
                let fault = match fault {
                    UrlFault::Scheme => "a URL begins with http:// or https://",
                    UrlFault::Port => "this is no port",
                    UrlFault::Host => "it names no host",
                    UrlFault::Byte => "spaces and control characters cannot be sent, write %20",
                };
                write!(f, "\"{url}\": {fault}")
            }
            AskError::Header(line) => {
                write!(f, "a header line is \"Name: value\", and \"{line}\" is none")
            }
            AskError::To(text) => {
                write!(f, "--to is address:port or unix:/path, not \"{text}\"")
            }
            AskError::NotListening(at, addresses) => {
                let all: Vec<String> = addresses.iter().map(Address::to_string).collect();
                write!(f, "no server listens on {at}; there are {}", all.join(", "))
            }
        }
    }
}

impl AskedRequest {
    /// Parses `http[s]://host[:port][/path][?args]`. The host of a path alone is `localhost`.
    pub(crate) fn read(
        url: &str,
        method: &str,
        headers: &[String],
    ) -> Result<AskedRequest, AskError> {
        let bad = |fault| Err(AskError::Url(url.to_owned(), fault));
        let (secure, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return bad(UrlFault::Scheme),
            None if url.starts_with('/') => (false, ""),
            None => (false, url),
        };
        let rest = if rest.is_empty() { format!("localhost{url}") } else { rest.to_owned() };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, target) = rest.split_at(end);
        let target = target.split('#').next().unwrap_or_default();
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        let usual = if secure { 443 } else { 80 };
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => match port.parse() {
                Ok(port) => (name, port),
                Err(_) => return bad(UrlFault::Port),
            },
            _ => (host, usual),
        };
        if name.is_empty() {
            return bad(UrlFault::Host);
        }
        let printable = |text: &str| text.bytes().all(|b| b > b' ' && b != 127);
        if !printable(&target) || !printable(host) || !printable(method) || method.is_empty() {
            return bad(UrlFault::Byte);
        }
        if let Some(line) =
            headers.iter().find(|line| !line.contains(':') || line.contains(['\r', '\n']))
        {
            return Err(AskError::Header(line.clone()));
        }
        Ok(AskedRequest {
            secure,
            host: host.to_owned(),
            name: name.trim_matches(['[', ']']).to_owned(),
            port,
            target,
            method: method.to_owned(),
            headers: headers.to_vec(),
            answer: None,
        })
    }

    /// Adds a supposed answer with this status and these header lines.
    pub(crate) fn supposing(self, status: Option<u16>, lines: &[String]) -> Result<Self, AskError> {
        if let Some(line) = lines.iter().find(|line| !line.contains(':')) {
            return Err(AskError::Header(line.clone()));
        }
        let fields = lines.iter().map(|line| format!("{line}\r\n")).collect::<String>();
        let answer = SupposedAnswer { status: status.unwrap_or(200), fields: fields.into_bytes() };
        let is_given = status.is_some() || !lines.is_empty();
        Ok(AskedRequest { answer: is_given.then_some(answer), ..self })
    }

    /// Finds the listening socket of the request: at `to`, or at the address in the URL. A host
    /// name is not resolved: then it is the first socket with the URL's port.
    pub(crate) fn question(&self, site: &Site, to: Option<&str>) -> Result<Question, AskError> {
        // The request is made over TCP. QUIC may use the same address.
        let streams = || site.listens().iter().enumerate().filter(|(_, listen)| !listen.udp);
        let position = |fits: &dyn Fn(&Address) -> bool| {
            streams()
                .find(|(_, listen)| fits(&listen.address))
                .map(|(at, listen)| (at, &listen.address))
        };
        let not_listening = |at: &str| {
            let addresses = streams().map(|(_, listen)| listen.address.clone()).collect();
            AskError::NotListening(at.to_owned(), addresses)
        };
        let (port, ip) = match to {
            Some(path) if path.starts_with("unix:") => {
                let shown = |at: &Address| at.to_string() == path;
                let (listen, address) = position(&shown).ok_or_else(|| not_listening(path))?;
                return Ok(self.at(listen, address.clone()));
            }
            Some(text) => match text.parse::<SocketAddr>() {
                Ok(address) => (address.port(), Some(address.ip())),
                Err(_) => return Err(AskError::To(text.to_owned())),
            },
            None => (self.port, self.name.parse::<IpAddr>().ok()),
        };
        let exact = |at: &Address| at.port() == Some(port) && ip.is_some() && at.ip() == ip;
        let family = |at: &Address| {
            ip.is_none_or(|ip| at.ip().is_some_and(|at| at.is_ipv4() == ip.is_ipv4()))
        };
        let open = |at: &Address| at.port() == Some(port) && at.is_wildcard() && family(at);
        let any = |at: &Address| at.port() == Some(port) && ip.is_none();
        let found =
            [&exact as &dyn Fn(&Address) -> bool, &open, &any].into_iter().find_map(position);
        let (listen, own) = found.ok_or_else(|| not_listening(&format!("port {port}")))?;
        let ip = ip.or(own.ip().filter(|_| !own.is_wildcard())).unwrap_or(match own.ip() {
            Some(IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
            _ => Ipv4Addr::LOCALHOST.into(),
        });
        Ok(self.at(listen, Address::Inet(SocketAddr::new(ip, port))))
    }

    fn at(&self, listen: usize, local: Address) -> Question {
        let secure = self.secure.then(|| self.name.clone().into_bytes());
        Question { listen, local, secure, request: self.request(), answer: self.answer.clone() }
    }

    fn request(&self) -> Vec<u8> {
        let given = |name: &str| {
            self.headers.iter().any(|line| {
                line.split(':').next().is_some_and(|own| own.trim().eq_ignore_ascii_case(name))
            })
        };
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !given("Host") {
            text += &format!("Host: {}\r\n", self.host);
        }
        for line in &self.headers {
            text += &format!("{line}\r\n");
        }
        text += "Connection: close\r\n\r\n";
        text.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_people_write_them() {
        let read = |url: &str| {
            AskedRequest::read(url, "GET", &[]).map(|a| (a.secure, a.name, a.port, a.target))
        };
        let said = |secure, name: &str, port, target: &str| {
            Ok((secure, name.to_owned(), port, target.to_owned()))
        };
        assert_eq!(read("https://a.example"), said(true, "a.example", 443, "/"));
        assert_eq!(read("http://[::1]:81/x?y#z"), said(false, "::1", 81, "/x?y"));
        assert_eq!(read("a?b"), said(false, "a", 80, "/?b"));
        assert_eq!(read("/only/path"), said(false, "localhost", 80, "/only/path"));
        for bad in ["ftp://a/", "http:///", "http://a:b/", "http://a/x y"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
