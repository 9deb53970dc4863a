//! The networks that this machine is attached to, and how long datagrams may be there.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};

/// What most paths carry at once, with the heads of IP and UDP.
const OF_ETHERNET: u16 = 1500;
/// Each path of QUIC carries datagrams of so many bytes. RFC 9000 section 14.
const LEAST: u16 = 1200;
/// Datagrams of loopback could have four times as much. Those cost hardly less, and a receiver without room loses more at once.
const MOST: u16 = 16 << 10;

/// What the heads of IP and UDP take.
const HEADS_V4: u16 = 20 + 8;
const HEADS_V6: u16 = 40 + 8;

/// A network of an interface.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// The interface's address there.
    address: IpAddr,
    /// The bits that all addresses of the network share.
    mask: u128,
    /// What the interface carries at once, with the heads of IP and UDP.
    mtu: u16,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

impl Links {
    /// Those that there were when they were asked for first. Without what the system does not tell.
    pub(crate) fn of_this_machine() -> &'static Links {
        static LINKS: OnceLock<Links> = OnceLock::new();
        LINKS.get_or_init(|| {
            Links(getifaddrs().into_iter().flatten().filter_map(Link::of).collect())
        })
    }

    /// All that [`Links::longest_to`] gives.
    pub(crate) fn lengths(&self) -> BTreeSet<u16> {
        let mtus = || self.0.iter().map(|link| link.mtu).chain([OF_ETHERNET]);
        [HEADS_V4, HEADS_V6]
            .into_iter()
            .flat_map(|heads| mtus().map(move |mtu| room(mtu, heads)))
            .collect()
    }

    /// The longest datagrams that are tried towards this client. What Ethernet carries, unless a network of this machine leads there
    /// without a router: behind one, each size that fails would cost a round trip or more.
    pub(crate) fn longest_to(&self, client: SocketAddr) -> u16 {
        let ip = client.ip().to_canonical();
        let heads = if ip.is_ipv4() { HEADS_V4 } else { HEADS_V6 };
        let there = self.0.iter().filter(|link| link.leads_to(ip)).map(|link| link.mtu).min();
        room(there.unwrap_or(OF_ETHERNET), heads)
    }
}

impl Link {
    fn of(said: InterfaceAddress) -> Option<Link> {
        let ip = |address: Option<nix::sys::socket::SockaddrStorage>| {
            let address = address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        };
        let mtu = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", said.interface_name));
        let mtu = mtu.ok()?.trim().parse::<u32>().ok()?;
        Some(Link {
            address: ip(said.address)?,
            mask: bits(ip(said.netmask)?),
            mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
        })
    }

    fn leads_to(&self, ip: IpAddr) -> bool {
        let is_of_one_kind = self.address.is_ipv4() == ip.is_ipv4();
        is_of_one_kind && (bits(self.address) ^ bits(ip)) & self.mask == 0
    }
}

fn room(mtu: u16, heads: u16) -> u16 {
    mtu.saturating_sub(heads).clamp(LEAST, MOST)
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(address: &str, prefix: u32, mtu: u16) -> Link {
        let address: IpAddr = address.parse().unwrap();
        let all = if address.is_ipv4() { u32::MAX.into() } else { u128::MAX };
        let len = if address.is_ipv4() { 32 } else { 128 };
        Link { address, mask: all & !((1_u128 << (len - prefix)) - 1), mtu }
    }

    #[test]
    fn datagrams_are_as_long_as_the_network_of_the_client_carries() {
        let links = Links(vec![
            link("127.0.0.1", 8, u16::MAX),
            link("10.1.0.1", 16, 9000),
            link("10.1.7.1", 24, 1400),
            link("10.9.0.1", 24, 576),
            link("fd00::1", 64, 9000),
        ]);
        for (client, longest) in [
            ("127.3.2.1", 16_384),
            ("::ffff:127.0.0.1", 16_384),
            ("10.1.2.3", 8972),
            ("10.1.7.3", 1372),
            ("10.9.0.3", 1200),
            ("10.2.2.3", 1472),
            ("fd00::9", 8952),
            ("fd00:0:0:1::9", 1452),
            ("::1", 1452),
        ] {
            let client = SocketAddr::new(client.parse().unwrap(), 443);
            assert_eq!(links.longest_to(client), longest, "{client}");
        }
    }

    #[test]
    fn the_loopback_network_of_this_machine_is_known() {
        let longest = |client: &str| Links::of_this_machine().longest_to(client.parse().unwrap());
        assert!(longest("127.0.0.2:443") > 1472, "{:?}", Links::of_this_machine());
        assert_eq!(longest("240.0.0.1:443"), 1472);
    }
}
