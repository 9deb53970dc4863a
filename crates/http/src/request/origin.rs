//! Keeps web pages of other sites away from what operators use: the API and the panel.
//!
//! A browser inside a network sends requests for any page that it shows. Two tricks lead them here. DNS rebinding: the
//! page's own host name resolves to this server's address, so the browser takes the server for a part of the site. Such
//! requests have that name as their `Host`. Forgery: the page sends a request to another origin without reading the
//! answer. Such requests have the page's `Origin`.

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_proto::http1::{HeaderId, Method};

use super::Request;
use crate::names::ServerName;

/// Why a request is refused that a page of another site could have sent; none for all others.
pub fn refuse(r: &Request) -> Option<String> {
    // No page can have a browser connect to a Unix-domain socket.
    if r.conn.peer_user().is_some() {
        return None;
    }
    if !is_own_name(&r.host, &r.server.names) {
        let host = weir_log::Bytes(&r.host);
        return Some(format!("the host \"{host}\" is neither an address nor in \"server_name\""));
    }
    let changes = !matches!(r.method, Method::Get | Method::Head);
    let origin = r.header_named(b"Origin").filter(|_| changes)?;
    let host = r.header(HeaderId::Host).unwrap_or(&r.host);
    (!is_same_origin(origin, host)).then(|| {
        let (origin, host) = (weir_log::Bytes(origin), weir_log::Bytes(host));
        format!("the origin \"{origin}\" is another one than the host \"{host}\"")
    })
}

/// Whether a host (lower case, without port) is one that no other site can have: an address, a name of this machine, or
/// below a name of the server. Patterns do not count if names of others fit them, as `www.*` and `~.` do.
fn is_own_name(host: &[u8], names: &[ServerName]) -> bool {
    let host = host.strip_suffix(b".").unwrap_or(host);
    let below = |name: &[u8]| host.strip_suffix(name).is_some_and(|rest| rest.ends_with(b"."));
    let is_named = |name: &ServerName| match name {
        ServerName::Exact(name) => host == name,
        ServerName::Head(name) => below(name),
        ServerName::Both(name) => host == name || below(name),
        ServerName::Tail(_) | ServerName::Regex(_) | ServerName::Bad(_) => false,
    };
    // A browser always sends a host.
    host.is_empty()
        || host == b"localhost"
        || below(b"localhost")
        || is_address(host)
        || names.iter().any(is_named)
}

fn is_address(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inside) => inside.parse::<Ipv6Addr>().is_ok(),
        None => host.parse::<Ipv4Addr>().is_ok(),
    }
}

/// Whether an `Origin` names a host as the `Host` does. The scheme does not count: TLS may end before this server.
fn is_same_origin(origin: &[u8], host: &[u8]) -> bool {
    let (origin, default) = match origin {
        [b'h', b't', b't', b'p', b':', b'/', b'/', rest @ ..] => (rest, b":80".as_slice()),
        [b'h', b't', b't', b'p', b's', b':', b'/', b'/', rest @ ..] => (rest, b":443".as_slice()),
        _ => return false,
    };
    let bare = |name| <[u8]>::strip_suffix(name, default).unwrap_or(name);
    !origin.is_empty() && bare(origin).eq_ignore_ascii_case(bare(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_other_sites_are_not_own_names() {
        let names = ["weir.example", "*.in.example", ".both.example", "www.*", ""];
        let names = names.map(|name| ServerName::parse(name.as_bytes()).unwrap());
        for own in [
            "",
            "localhost",
            "localhost.",
            "panel.localhost",
            "127.0.0.1",
            "10.1.2.3",
            "[::1]",
            "[fe80::1]",
            "weir.example",
            "weir.example.",
            "a.b.in.example",
            "both.example",
            "a.both.example",
        ] {
            assert!(is_own_name(own.as_bytes(), &names), "{own}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example",
            "evillocalhost",
            "127.0.0.1.evil.example",
            "127.1",
            "0x7f.1",
            "[127.0.0.1",
            "[evil]",
            "weir.example.evil.example",
            "notweir.example",
            "in.example",
            "evilin.example",
            "www.evil.example",
            "..",
        ] {
            assert!(!is_own_name(other.as_bytes(), &names), "{other}");
        }
    }

    #[test]
    fn an_origin_is_compared_with_the_host_and_its_port() {
        for (origin, host) in [
            ("http://weir.example", "weir.example"),
            ("http://weir.example", "weir.example:80"),
            ("https://weir.example", "weir.example:443"),
            ("https://weir.example", "weir.example"),
            ("http://WEIR.example:8080", "weir.example:8080"),
            ("http://[::1]:8080", "[::1]:8080"),
        ] {
            assert!(is_same_origin(origin.as_bytes(), host.as_bytes()), "{origin} {host}");
        }
        for (origin, host) in [
            ("null", "weir.example"),
            ("", ""),
            ("http://", ""),
            ("http://evil.example", "weir.example"),
            ("http://weir.example:81", "weir.example"),
            ("http://weir.example", "weir.example:81"),
            ("https://weir.example:80", "weir.example"),
            ("http://weir.example.evil.example", "weir.example"),
            ("file://weir.example", "weir.example"),
        ] {
            assert!(!is_same_origin(origin.as_bytes(), host.as_bytes()), "{origin} {host}");
        }
    }
}
