//! The client behind proxies, from `X-Forwarded-For` and similar fields. nginx:
//! ngx_http_get_forwarded_addr.

use std::net::SocketAddr;

use weir_proto::proxy_protocol::ProxyHeader;

use crate::address::Address;
use crate::cidr::{self, Cidr};

/// The client in a PROXY header, with its port, if the balancer is a trusted proxy.
pub fn introduced(peer: &Address, header: &ProxyHeader, proxies: &[Cidr]) -> Option<Address> {
    let found = client(peer, &[&header.source], proxies, false)?;
    Some(match found {
        Address::Inet(mut inet) => {
            inet.set_port(header.source_port);
            Address::Inet(inet)
        }
        other => other,
    })
}

/// The client behind `peer`, if `peer` is a trusted proxy and the field names a client. `lines` are
/// the field's values in the order in which they were sent. With `recursive`, trusted proxies in
/// the list are skipped.
pub fn client(
    peer: &Address,
    lines: &[&[u8]],
    proxies: &[Cidr],
    recursive: bool,
) -> Option<Address> {
    let trusted = |address: &Address| proxies.iter().any(|cidr| cidr.contains(address));
    let mut found: Option<Address> = None;
    for line in lines.iter().rev() {
        let mut rest = *line;
        loop {
            if !trusted(found.as_ref().unwrap_or(peer)) {
                return found;
            }
            let (before, last) = split_last(rest);
            match parse(last) {
                Some(address) => found = Some(address),
                None => return found,
            }
            if !recursive {
                return found;
            }
            match before {
                Some(before) => rest = before,
                None => break,
            }
        }
    }
    found
}

/// The last entry of a list separated by commas or spaces, and the list before it.
fn split_last(list: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let separator = |b: &u8| matches!(b, b' ' | b',');
    let end = list.iter().rposition(|b| !separator(b)).map_or(0, |at| at + 1);
    let list = list.get(..end).unwrap_or_default();
    match list.iter().rposition(separator) {
        Some(at) => (list.get(..at), list.get(at + 1..).unwrap_or_default()),
        None => (None, list),
    }
}

/// An address with or without port: `1.2.3.4`, `1.2.3.4:80`, `::1`, `[::1]`, `[::1]:80`.
pub fn parse(text: &[u8]) -> Option<Address> {
    let bare = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]"));
    if let Some(ip) = cidr::parse_ip(bare.unwrap_or(text)) {
        return Some(Address::Inet(SocketAddr::new(ip, 0)));
    }
    let colon = memchr::memrchr(b':', text)?;
    let (host, port) = (text.get(..colon)?, text.get(colon + 1..)?);
    let host = match host.strip_prefix(b"[") {
        Some(host) => host.strip_suffix(b"]")?,
        None => host,
    };
    let port = weir_conf::values::number(port).filter(|port| *port > 0)?;
    let address = SocketAddr::new(cidr::parse_ip(host)?, u16::try_from(port).ok()?);
    Some(Address::Inet(address))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn behind(peer: &str, lines: &[&str], proxies: &[&str], recursive: bool) -> Option<String> {
        let proxies: Vec<Cidr> =
            proxies.iter().map(|text| Cidr::parse(text.as_bytes()).unwrap().0).collect();
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        client(&parse(peer.as_bytes()).unwrap(), &lines, &proxies, recursive)
            .map(|address| address.to_string())
    }

    #[test]
    fn an_address_may_stand_in_brackets() {
        let shown = |text: &str| parse(text.as_bytes()).map(|address| address.to_string());
        for text in ["2001:db8::1", "[2001:db8::1]"] {
            assert_eq!(behind("10.0.0.1", &[text], &["10.0.0.0/8"], false), shown("2001:db8::1"));
        }
        assert_eq!(shown("[1.2.3.4]"), shown("1.2.3.4"));
        for text in ["[", "[]", "[[::1]]", "[::1", "::1]"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn only_trusted_proxies_name_clients() {
        assert_eq!(behind("9.9.9.9", &["1.1.1.1"], &["10.0.0.0/8"], false), None);
        let from_proxy = |list| behind("10.0.0.1", &[list], &["10.0.0.0/8"], false);
        assert_eq!(from_proxy("1.1.1.1, 2.2.2.2"), Some("2.2.2.2:0".into()));
        assert_eq!(from_proxy("1.1.1.1:77 , "), Some("1.1.1.1:77".into()));
        assert_eq!(from_proxy("[::5]:77"), Some("[::5]:77".into()));
        assert_eq!(from_proxy("nobody"), None);
        assert_eq!(from_proxy(""), None);
    }

    #[test]
    fn proxies_in_the_list_are_passed_over() {
        let through = |lines: &[&str]| behind("10.0.0.1", lines, &["10.0.0.0/8"], true);
        assert_eq!(through(&["1.1.1.1, 2.2.2.2, 10.0.0.2"]), Some("2.2.2.2:0".into()));
        assert_eq!(through(&["10.0.0.4, 10.0.0.2"]), Some("10.0.0.4:0".into()));
        assert_eq!(through(&["1.1.1.1, x, 10.0.0.2"]), Some("10.0.0.2:0".into()));
        assert_eq!(through(&["3.3.3.3", "10.0.0.9"]), Some("3.3.3.3:0".into()));
        assert_eq!(through(&["unknown", "10.0.0.2"]), Some("10.0.0.2:0".into()));
    }

    #[test]
    fn forms_of_addresses() {
        assert_eq!(parse(b"192.0.2.1:81").unwrap().port(), Some(81));
        assert_eq!(parse(b"::1").unwrap().port(), Some(0));
        for text in ["", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3.4:", "host", "[::1:8"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_list_panics(line: Vec<u8>, recursive: bool) {
            let peer = parse(b"10.0.0.1").unwrap();
            let _ = client(&peer, &[&line], &[Cidr::V4(0, 0)], recursive);
        }
    }
}
