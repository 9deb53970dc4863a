//! URLs of the command line: `http[s]://host[:port]/path`.

use std::fmt;

use weir_proto::base64::{self, Alphabet};
use weir_proto::uri::{Unescape, unescape};

/// The parts of a URL that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Host name or address. An IPv6 address has no brackets.
    pub host: String,
    /// Whether the scheme is `https`.
    pub secure: bool,
    /// The port. 80 by default, 443 for `https`.
    pub port: u16,
    /// The `Host` header: host and port as in the URL.
    pub authority: String,
    /// Path and query, at least `/`.
    pub path: String,
    /// `user:password` of the URL as an `Authorization` header.
    pub authorization: Option<String>,
}

/// Why a text is not a usable URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// Neither `http` nor `https`.
    Scheme,
    /// No host.
    Host,
    /// The port is not a number below 65536.
    Port,
    /// It has a space or a control character.
    Byte,
}

impl Url {
    /// Parses a URL. The default scheme is `http`. A fragment is dropped.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        if text.bytes().any(|b| b <= b' ' || b == 0x7f) {
            return Err(UrlError::Byte);
        }
        let (secure, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, _)) if !scheme.contains(['/', '?']) => return Err(UrlError::Scheme),
            _ => (false, text),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, authority) = match authority.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, authority),
        };
        let authorization = user.map(basic);
        let (host, port) = host_and_port(authority)?;
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let port = port.unwrap_or(if secure { 443 } else { 80 });
        Ok(Url { host, secure, port, authority: authority.to_owned(), path, authorization })
    }
}

/// Encodes a user and password for `Authorization`. RFC 7617.
fn basic(user: &str) -> String {
    let mut plain = Vec::new();
    unescape(Unescape::All, user.as_bytes(), &mut plain);
    if !plain.contains(&b':') {
        plain.push(b':');
    }
    let mut out = b"Basic ".to_vec();
    base64::encode(Alphabet::Plain, &plain, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`.
pub(crate) fn host_and_port(text: &str) -> Result<(String, Option<u16>), UrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or(UrlError::Host)?;
            let port = match after {
                "" => None,
                _ => Some(after.strip_prefix(':').ok_or(UrlError::Port)?),
            };
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(UrlError::Host);
    }
    let port = port.map(|p| p.parse().map_err(|_| UrlError::Port)).transpose()?;
    Ok((host.to_owned(), port))
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UrlError::Scheme => "only http and https are supported",
            UrlError::Host => "there is no host",
            UrlError::Port => "the port is not a number below 65536",
            UrlError::Byte => "there is a space or a control character",
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(text: &str) -> (String, u16, String, String) {
        let url = Url::parse(text).unwrap();
        (url.host, url.port, url.authority, url.path)
    }

    #[test]
    fn urls_have_parts() {
        let of = |a: &str, b, c: &str, d: &str| (a.to_owned(), b, c.to_owned(), d.to_owned());
        assert_eq!(parts("http://a.a/"), of("a.a", 80, "a.a", "/"));
        assert_eq!(parts("a.a:81?x=1#f"), of("a.a", 81, "a.a:81", "/?x=1"));
        assert_eq!(parts("HTTP://[::1]:8/b/c"), of("::1", 8, "[::1]:8", "/b/c"));
        assert_eq!(parts("http://u:p@h/a://b"), of("h", 80, "h", "/a://b"));
        let user = Url::parse("http://u%41:p@h/").unwrap().authorization;
        assert_eq!(user.as_deref(), Some("Basic dUE6cA=="));
        assert_eq!(Url::parse("http://h/a@b").unwrap().authorization, None);
        assert_eq!(parts("h/x?u=http://y"), of("h", 80, "h", "/x?u=http://y"));
        assert_eq!(parts("https://h"), of("h", 443, "h", "/"));
        assert!(Url::parse("https://h:81/").unwrap().secure);
    }

    #[test]
    fn others_are_refused() {
        for (text, why) in [
            ("ftp://a/", UrlError::Scheme),
            ("http:///x", UrlError::Host),
            ("http://a:70000/", UrlError::Port),
            ("http://[::1]x/", UrlError::Port),
            ("http://a/b c", UrlError::Byte),
        ] {
            assert_eq!(Url::parse(text), Err(why), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".*") {
            if let Ok(url) = Url::parse(&text) {
                prop_assert!(url.path.starts_with('/'));
                prop_assert!(!url.host.is_empty());
            }
        }
    }
}
