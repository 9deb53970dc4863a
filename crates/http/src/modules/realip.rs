//! Who asked, where trusted servers stand between the client and this one. nginx: ngx_http_realip_module.

use std::net::{IpAddr, SocketAddr};

use weir_conf::{Directive as Line, Error, values};

use crate::address::{self, Address};
use crate::cidr::{Cidr, parse_ip};
use crate::modules::{Module, Settings};
use crate::phases::Step;
use crate::request::Request;
use crate::scope::{Directive, Scope, Set, setting};

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// Who is believed.
    from: Vec<Cidr>,
    header: Source,
    recursive: bool,
}

impl Settings for Conf {}

/// Where the client's address stands.
#[derive(Debug, Clone, Default, PartialEq)]
enum Source {
    /// The first header `X-Real-IP`.
    #[default]
    XRealIp,
    /// All headers `X-Forwarded-For`, one list.
    XForwardedFor,
    /// The first header of another name.
    Header(Vec<u8>),
    /// What the connection began with.
    ProxyProtocol,
}

const DIRECTIVES: &[Directive] = &[
    Directive {
        name: "set_real_ip_from",
        help: "Addresses that are believed when they say who asked.",
        set: Set::Simple(from),
    },
    setting!(
        "real_ip_header",
        realip.header,
        source,
        "The header that says who asked, or `proxy_protocol`."
    ),
    setting!(
        "real_ip_recursive",
        realip.recursive,
        Line::flag,
        "Whether the last address that is not believed counts, or simply the last."
    ),
];

/// The module.
pub const MODULE: Module = Module {
    name: "http_realip",
    directives: DIRECTIVES,
    init: |setup| {
        setup.variables.define("realip_remote_addr", |r, out| {
            r.conn.peer.write_host(out);
            true
        });
        setup.variables.define("realip_remote_port", |r, out| {
            if let Some(port) = r.conn.peer.port().filter(|port| *port > 0) {
                crate::output::write_number(u64::from(port), out);
            }
            true
        });
    },
};

/// Replaces the client's address, once a request.
pub fn handler(r: &mut Request) -> Step {
    let conf = &r.conf().realip;
    if !conf.from.is_empty() && r.contexts.realip.is_none() {
        r.contexts.realip = find(r, conf).map(Box::new);
    }
    Step::Next
}

fn find(r: &Request, conf: &Conf) -> Option<Address> {
    let peer = &r.conn.peer;
    match &conf.header {
        Source::XRealIp => conf.walk(peer, r.header_named(b"x-real-ip")?).address(),
        Source::Header(name) => conf.walk(peer, r.header_named(name)?).address(),
        Source::ProxyProtocol => {
            let header = r.conn.proxy.get()?;
            match conf.walk(peer, &header.source).address()? {
                Address::Inet(inet) => {
                    Some(Address::Inet(SocketAddr::new(inet.ip(), header.source_port)))
                }
                other => Some(other),
            }
        }
        Source::XForwardedFor => {
            let name = b"x-forwarded-for";
            let all = r.headers().filter(|(n, _)| n.eq_ignore_ascii_case(name));
            let all: Vec<&[u8]> = all.map(|(_, value)| value).collect();
            conf.walk_all(peer, &all)
        }
    }
}

/// What a list of addresses came to, read from its end.
#[derive(Debug, PartialEq)]
enum Walk {
    /// Nothing: who says it is not believed, or it is no address.
    Nothing,
    /// This one; whoever stands before it is not believed.
    End(Address),
    /// This one, the first of the list; it might be believed itself.
    Through(Address),
}

impl Walk {
    fn address(self) -> Option<Address> {
        match self {
            Walk::Nothing => None,
            Walk::End(address) | Walk::Through(address) => Some(address),
        }
    }
}

impl Conf {
    fn believes(&self, address: &Address) -> bool {
        self.from.iter().any(|cidr| cidr.contains(address))
    }

    /// Reads a list from its end: as long as who says it is believed, or one address only.
    fn walk(&self, peer: &Address, list: &[u8]) -> Walk {
        let mut found: Option<Address> = None;
        let mut rest = list;
        loop {
            if !self.believes(found.as_ref().unwrap_or(peer)) {
                break;
            }
            let end = rest.iter().rposition(|b| !matches!(b, b' ' | b',')).map_or(0, |at| at + 1);
            let start = rest[..end].iter().rposition(|b| matches!(b, b' ' | b','));
            let start = start.map_or(0, |at| at + 1);
            let Some(address) = parse(&rest[start..end]) else { break };
            if !self.recursive || start == 0 {
                return Walk::Through(address);
            }
            found = Some(address);
            rest = &rest[..start - 1];
        }
        found.map_or(Walk::Nothing, Walk::End)
    }

    /// The same for a list in several headers, of which the last is read first.
    fn walk_all(&self, peer: &Address, lists: &[&[u8]]) -> Option<Address> {
        let mut found: Option<Address> = None;
        for list in lists.iter().rev() {
            match self.walk(found.as_ref().unwrap_or(peer), list) {
                Walk::Nothing => break,
                Walk::End(address) => return Some(address),
                Walk::Through(address) => found = Some(address),
            }
            if !self.recursive {
                break;
            }
        }
        found
    }
}

/// `address`, `address:port` or `[address]:port`. nginx: ngx_parse_addr_port.
fn parse(text: &[u8]) -> Option<Address> {
    let inet = |ip: IpAddr, port: u16| Some(Address::Inet(SocketAddr::new(ip, port)));
    if let Some(ip) = parse_ip(text) {
        return inet(ip, 0);
    }
    let colon = text.iter().rposition(|b| *b == b':')?;
    let (host, port) = (&text[..colon], &text[colon + 1..]);
    let host = match host.strip_prefix(b"[") {
        Some(host) => host.strip_suffix(b"]")?,
        None => host,
    };
    let port = values::number(port).filter(|port| *port > 0)?;
    inet(parse_ip(host)?, u16::try_from(port).ok()?)
}

fn from(s: &mut Scope<'_, '_>, d: &Line) -> Result<(), Error> {
    let first = s.first(d);
    let Some(word) = d.arg(0) else { return Ok(()) };
    let networks = match Cidr::parse(&word.bytes) {
        Some((cidr, odd)) => {
            if odd {
                let text = format!("low address bits of {} are meaningless", word.lossy());
                s.setup.warnings.push(d.warning(text));
            }
            vec![cidr]
        }
        None => named(&word.lossy()).map_err(|text| {
            d.error_at(word, format!("{text} in set_real_ip_from \"{}\"", word.lossy()))
        })?,
    };
    let conf = Scope::change(&mut s.location.realip);
    if first {
        conf.from.clear();
    }
    conf.from.extend(networks);
    Ok(())
}

fn named(host: &str) -> Result<Vec<Cidr>, &'static str> {
    let whole = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => Cidr::V4(ip.to_bits(), u32::MAX),
        IpAddr::V6(ip) => Cidr::V6(ip.to_bits(), u128::MAX),
    };
    Ok(address::named(host)?.into_iter().map(whole).collect())
}

fn source(d: &Line) -> Result<Source, Error> {
    let name = d.arg(0).map(|word| word.bytes.as_slice()).unwrap_or_default();
    Ok(match name {
        b"X-Real-IP" => Source::XRealIp,
        b"X-Forwarded-For" => Source::XForwardedFor,
        b"proxy_protocol" => Source::ProxyProtocol,
        name => Source::Header(name.to_vec()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn conf(recursive: bool) -> Conf {
        let from = ["10.0.0.0/8", "127.0.0.1"].map(|net| Cidr::parse(net.as_bytes()).unwrap().0);
        Conf { from: from.to_vec(), recursive, ..Conf::default() }
    }

    fn peer(text: &str) -> Address {
        parse(text.as_bytes()).unwrap()
    }

    fn walk(recursive: bool, lists: &[&str]) -> Option<String> {
        let lists: Vec<&[u8]> = lists.iter().map(|l| l.as_bytes()).collect();
        conf(recursive).walk_all(&peer("127.0.0.1"), &lists).map(|a| a.host())
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn forms_of_addresses() {
        assert_eq!(peer("192.0.2.1:81").port(), Some(81));
        assert_eq!(peer("[::1]:81"), Address::Inet("[::1]:81".parse().unwrap()));
        assert_eq!(peer("::1").port(), Some(0));
        for text in ["", "[::1]", "192.0.2.1:0", "192.0.2.1:65536", "192.0.2.1:", "host", "[::1:8"]
        {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_last_address_counts() {
        assert_eq!(walk(false, &["192.0.2.1, 192.0.2.2"]), some("192.0.2.2"));
        assert_eq!(walk(false, &["192.0.2.1", "10.0.0.1 ,, "]), some("10.0.0.1"));
        assert_eq!(walk(false, &["192.0.2.1, unknown"]), None);
        assert_eq!(walk(false, &[""]), None);
    }

    #[test]
    fn the_last_one_that_is_not_believed_counts() {
        assert_eq!(walk(true, &["192.0.2.1, 192.0.2.2"]), some("192.0.2.2"));
        assert_eq!(walk(true, &["192.0.2.1,10.0.0.1, 10.0.0.2"]), some("192.0.2.1"));
        assert_eq!(walk(true, &["192.0.2.1", "10.0.0.1, 10.0.0.2"]), some("192.0.2.1"));
        assert_eq!(walk(true, &["10.0.0.1,10.0.0.2"]), some("10.0.0.1"));
        assert_eq!(walk(true, &["unknown, 10.0.0.2"]), some("10.0.0.2"));
        assert_eq!(walk(true, &["unknown", "10.0.0.2"]), some("10.0.0.2"));
    }

    #[test]
    fn strangers_are_not_believed() {
        assert_eq!(conf(true).walk(&peer("192.0.2.9"), b"192.0.2.1"), Walk::Nothing);
        assert_eq!(conf(true).walk(&Address::Unix("".into()), b"192.0.2.1"), Walk::Nothing);
    }

    proptest! {
        #[test]
        fn any_list_is_decided(list in "[0-9., :\\[\\]]{0,40}", recursive: bool) {
            let _ = walk(recursive, &[&list]);
        }
    }
}
