//! Ranges of addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::str::FromStr;

/// A range of addresses for Gateways, such as `10.0.0.0/24`, or one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

impl AddressRange {
    /// Whether the range has an address.
    pub(super) fn has(&self, address: &IpAddr) -> bool {
        // The order of addresses is by family first, so an address of the other family is outside.
        self.first <= *address && *address <= self.last
    }

    /// The lowest address of the range that is not taken.
    pub(super) fn free(&self, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        let mut next = self.first;
        loop {
            if !taken.contains(&next) {
                return Some(next);
            }
            if next == self.last {
                return None;
            }
            next = match next {
                IpAddr::V4(address) => {
                    u32::from(address).checked_add(1).map(|n| IpAddr::V4(n.into()))
                }
                IpAddr::V6(address) => {
                    u128::from(address).checked_add(1).map(|n| IpAddr::V6(n.into()))
                }
            }?;
        }
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<AddressRange, String> {
        let wrong = || format!("\"{text}\" is no address and no range as 10.0.0.0/24");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let host = bits - prefix.unwrap_or(bits).min(bits);
        if prefix.is_some_and(|prefix| prefix > bits) {
            return Err(wrong());
        }
        // The bits of the host. With a prefix of 0 they are all bits, which `checked_shl` does not
        // shift.
        let mask = 1_u128.checked_shl(host).map_or(u128::MAX, |n| n - 1);
        // The first and last address of an IPv4 network are no hosts.
        let spare = u128::from(bits == 32 && host > 1);
        let number = match address {
            IpAddr::V4(address) => u128::from(u32::from(address)),
            IpAddr::V6(address) => u128::from(address),
        };
        let of = |number: u128| match u32::try_from(number) {
            Ok(number) if bits == 32 => IpAddr::V4(number.into()),
            _ => IpAddr::V6(number.into()),
        };
        Ok(AddressRange { first: of((number & !mask) + spare), last: of((number | mask) - spare) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_a_network_or_an_address() {
        for (text, wanted) in [
            ("10.0.0.0/24", Some(("10.0.0.1", "10.0.0.254"))),
            ("10.0.0.77/30", Some(("10.0.0.77", "10.0.0.78"))),
            ("10.0.0.4/31", Some(("10.0.0.4", "10.0.0.5"))),
            ("10.0.0.4", Some(("10.0.0.4", "10.0.0.4"))),
            ("0.0.0.0/0", Some(("0.0.0.1", "255.255.255.254"))),
            ("fd00::/127", Some(("fd00::", "fd00::1"))),
            ("::/0", Some(("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))),
            ("10.0.0.0/33", None),
            ("10.0.0.0/", None),
            ("x/8", None),
        ] {
            let read = text.parse::<AddressRange>().ok();
            let read = read.map(|range| (range.first.to_string(), range.last.to_string()));
            let wanted = wanted.map(|(a, b)| (a.to_owned(), b.to_owned()));
            assert_eq!(read, wanted, "{text}");
        }
    }
}
