//! The networks of this machine's interfaces, and the largest datagrams there.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};

/// The MTU of Ethernet, which most paths have.
const ETHERNET_MTU: u16 = 1500;
/// The smallest maximum datagram size of a QUIC path: RFC 9000, section 14.
const SMALLEST_DATAGRAM: u16 = 1200;
/// The largest datagrams that are tried. The loopback interface carries four times as much, but that is hardly faster, and a
/// full receive buffer would drop more at once.
const LARGEST_DATAGRAM: u16 = 16 << 10;

/// The size of the IP and UDP headers.
const HEADERS_V4: u16 = 20 + 8;
const HEADERS_V6: u16 = 40 + 8;

/// A network of an interface.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// The interface's address there.
    address: IpAddr,
    /// The network mask.
    mask: u128,
    /// The interface's MTU, with IP and UDP headers.
    mtu: u16,
}

/// The networks of all interfaces.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<Link>);

impl Links {
    /// The networks at the time of the first call. An interface without a readable MTU is left out.
    pub(crate) fn of_this_machine() -> &'static Links {
        static LINKS: OnceLock<Links> = OnceLock::new();
        LINKS.get_or_init(|| {
            Links(getifaddrs().into_iter().flatten().filter_map(Link::of).collect())
        })
    }

    /// All possible results of [`Links::longest_to`].
    pub(crate) fn lengths(&self) -> BTreeSet<u16> {
        let mtus = || self.0.iter().map(|link| link.mtu).chain([ETHERNET_MTU]);
        [HEADERS_V4, HEADERS_V6]
            .into_iter()
            .flat_map(|headers| mtus().map(move |mtu| datagram_size(mtu, headers)))
            .collect()
    }

    /// The upper bound of path MTU discovery towards this client: the MTU of the network that it is on, or Ethernet's behind a router.
    /// There, each probe that is too large would cost a round trip or more.
    pub(crate) fn longest_to(&self, client: SocketAddr) -> u16 {
        let ip = client.ip().to_canonical();
        let headers = if ip.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        let there = self.0.iter().filter(|link| link.leads_to(ip)).map(|link| link.mtu).min();
        datagram_size(there.unwrap_or(ETHERNET_MTU), headers)
    }
}

impl Link {
    fn of(interface: InterfaceAddress) -> Option<Link> {
        let ip = |address: Option<nix::sys::socket::SockaddrStorage>| {
            let address = address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        };
        let mtu =
            std::fs::read_to_string(format!("/sys/class/net/{}/mtu", interface.interface_name));
        let mtu = mtu.ok()?.trim().parse::<u32>().ok()?;
        Some(Link {
            address: ip(interface.address)?,
            mask: bits(ip(interface.netmask)?),
            mtu: u16::try_from(mtu).unwrap_or(u16::MAX),
        })
    }

    fn leads_to(&self, ip: IpAddr) -> bool {
        let is_same_family = self.address.is_ipv4() == ip.is_ipv4();
        is_same_family && (bits(self.address) ^ bits(ip)) & self.mask == 0
    }
}

fn datagram_size(mtu: u16, headers: u16) -> u16 {
    mtu.saturating_sub(headers).clamp(SMALLEST_DATAGRAM, LARGEST_DATAGRAM)
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
