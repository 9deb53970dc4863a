//! Networks as configurations name them: `10.0.0.0/8`, `2001:db8::/32`, `unix:`. nginx: ngx_ptocidr.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::address::Address;

/// A set of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cidr {
    /// IPv4: address and mask.
    V4(u32, u32),
    /// IPv6: address and mask.
    V6(u128, u128),
    /// All Unix sockets.
    Unix,
}

impl Cidr {
    /// Parses a network. The flag says whether bits are set that the mask clears.
    pub fn parse(text: &[u8]) -> Option<(Cidr, bool)> {
        if text == b"unix:" {
            return Some((Cidr::Unix, false));
        }
        let slash = memchr::memchr(b'/', text);
        let (address, length) = match slash {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        let length = length.map(weir_conf::values::number);
        match parse_ip(address)? {
            IpAddr::V4(ip) => {
                let length = length.unwrap_or(Some(32)).filter(|n| *n <= 32)?;
                let mask = u32::MAX.checked_shl(32 - length as u32).unwrap_or(0);
                let bits = ip.to_bits();
                Some((Cidr::V4(bits & mask, mask), bits & !mask != 0))
            }
            IpAddr::V6(ip) => {
                let length = length.unwrap_or(Some(128)).filter(|n| *n <= 128)?;
                let mask = u128::MAX.checked_shl(128 - length as u32).unwrap_or(0);
                let bits = ip.to_bits();
                Some((Cidr::V6(bits & mask, mask), bits & !mask != 0))
            }
        }
    }

    /// Whether the network contains an address. An IPv4-mapped IPv6 address is in IPv4 networks.
    pub fn contains(self, address: &Address) -> bool {
        match (self, address) {
            (Cidr::Unix, Address::Unix(_)) => true,
            (Cidr::V4(net, mask), Address::Inet(inet)) => match inet.ip().to_canonical() {
                IpAddr::V4(ip) => ip.to_bits() & mask == net,
                IpAddr::V6(_) => false,
            },
            (Cidr::V6(net, mask), Address::Inet(inet)) => match inet.ip() {
                IpAddr::V6(ip) => ip.to_bits() & mask == net,
                IpAddr::V4(_) => false,
            },
            _ => false,
        }
    }
}

/// Parses an address without port. Four decimal numbers are an IPv4 address, even with leading
/// zeros.
pub fn parse_ip(text: &[u8]) -> Option<IpAddr> {
    if let Some(ip) = parse_ipv4(text) {
        return Some(IpAddr::V4(ip));
    }
    let text = std::str::from_utf8(text).ok()?;
    text.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// Parses four decimal numbers. The system's resolver would read numbers with leading zeros as
/// octal, so it never gets them.
pub fn parse_ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split(|b| *b == b'.');
    for octet in &mut octets {
        *octet = u8::try_from(weir_conf::values::number(parts.next()?)?).ok()?;
    }
    // As in nginx, which cannot tell the broadcast address from an error.
    (parts.next().is_none() && octets != [255; 4]).then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holds(net: &str, ip: &str) -> bool {
        let address = Address::Inet((ip.parse::<IpAddr>().unwrap(), 80).into());
        Cidr::parse(net.as_bytes()).unwrap().0.contains(&address)
    }

    #[test]
    fn networks() {
        assert!(holds("10.0.0.0/8", "10.255.0.1"));
        assert!(!holds("10.0.0.0/8", "11.0.0.1"));
        assert!(holds("0.0.0.0/0", "1.2.3.4"));
        assert!(holds("1.2.3.4", "::ffff:1.2.3.4"));
        assert!(holds("2001:db8::/32", "2001:db8:1::1"));
        assert!(!holds("::/0", "1.2.3.4"));
        assert!(holds("127.0.0.001", "127.0.0.1"));
    }

    #[test]
    fn bits_below_the_mask_are_noticed() {
        assert_eq!(Cidr::parse(b"10.0.0.1/8"), Some((Cidr::V4(10 << 24, 255 << 24), true)));
        assert!(!Cidr::parse(b"10.0.0.0/8").unwrap().1);
    }

    #[test]
    fn wrong_texts() {
        for text in ["", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.4/33", "1.2.3.4/", "::/129", "x"]
        {
            assert_eq!(Cidr::parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_address_is_in_all_its_networks(bits: u32, length in 0u32..=32) {
            let ip = Ipv4Addr::from_bits(bits);
            prop_assume!(bits != u32::MAX);
            let text = format!("{ip}/{length}");
            prop_assert!(holds(&text, &ip.to_string()));
        }

        #[test]
        fn no_text_panics(text: Vec<u8>) {
            let _ = Cidr::parse(&text);
        }
    }
}
