//! A datagram as it came, also on its way from the loop that has received it to the loop that has its connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A datagram, as it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its sender.
    pub from: SocketAddr,
    /// The address of this host that it was sent to, where the socket tells.
    pub to: Option<IpAddr>,
    /// Its bits of explicit congestion notification.
    pub ecn: u8,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// A family, an address, a port.
const ADDRESS: usize = 1 + 16 + 2;

impl<'a> Packet<'a> {
    /// The bytes of a message to another loop; `bound` is the address of the socket that the datagram came to.
    pub fn write(&self, bound: SocketAddr, out: &mut Vec<u8>) {
        out.push(self.ecn);
        put(Some(bound.ip()), bound.port(), out);
        put(Some(self.from.ip()), self.from.port(), out);
        put(self.to, 0, out);
        out.extend_from_slice(self.bytes);
    }

    /// What such a message says.
    pub fn read(message: &'a [u8]) -> Option<(SocketAddr, Packet<'a>)> {
        let (ecn, mut rest) = message.split_first()?;
        let (bound, bound_port) = take(&mut rest)?;
        let (from, from_port) = take(&mut rest)?;
        let (to, _) = take(&mut rest)?;
        let from = SocketAddr::new(from?, from_port);
        let packet = Packet { from, to, ecn: *ecn, bytes: rest };
        Some((SocketAddr::new(bound?, bound_port), packet))
    }
}

fn put(ip: Option<IpAddr>, port: u16, out: &mut Vec<u8>) {
    let (family, bytes) = match ip {
        None => (0, [0; 16]),
        Some(IpAddr::V4(v4)) => {
            let mut bytes = [0; 16];
            for (to, from) in bytes.iter_mut().zip(v4.octets()) {
                *to = from;
            }
            (4, bytes)
        }
        Some(IpAddr::V6(v6)) => (6, v6.octets()),
    };
    out.push(family);
    out.extend_from_slice(&bytes);
    out.extend_from_slice(&port.to_be_bytes());
}

fn take(rest: &mut &[u8]) -> Option<(Option<IpAddr>, u16)> {
    let (address, after) = rest.split_at_checked(ADDRESS)?;
    *rest = after;
    let (family, address) = address.split_first()?;
    let (ip, port) = address.split_first_chunk::<16>()?;
    let ip = match family {
        0 => None,
        4 => Some(IpAddr::from(Ipv4Addr::from(*ip.first_chunk::<4>()?))),
        6 => Some(IpAddr::from(Ipv6Addr::from(*ip))),
        _ => return None,
    };
    Some((ip, u16::from_be_bytes(*port.first_chunk::<2>()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_to_another_loop_says_all_of_a_datagram() {
        let both: [SocketAddr; 2] =
            ["127.0.0.1:443", "[2001:db8::7]:8443"].map(|text| text.parse().unwrap());
        for (bound, from) in [(both[0], both[1]), (both[1], both[0])] {
            for to in [None, Some(both[0].ip()), Some(both[1].ip())] {
                let packet = Packet { from, to, ecn: 2, bytes: b"abc" };
                let mut message = Vec::new();
                packet.write(bound, &mut message);
                assert_eq!(Packet::read(&message), Some((bound, packet)));
                for short in 0..1 + 3 * ADDRESS {
                    assert_eq!(Packet::read(&message[..short]), None);
                }
            }
        }
    }
}
