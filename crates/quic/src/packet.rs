//! Received datagrams: their message form between loops, and their conversion for quinn.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::BytesMut;

use crate::paths::Frames;
use crate::version::{LongKind, Version};

/// A received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Its sender.
    pub from: SocketAddr,
    /// The address of this host that it was sent to, if the socket reports it.
    pub to: Option<IpAddr>,
    /// Its ECN bits.
    pub ecn: u8,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// The length of an address in a message: family, IP address, port.
const ADDRESS: usize = 1 + 16 + 2;

impl<'a> Packet<'a> {
    /// Writes a message to another loop. `bound` is the address of the receiving socket.
    pub fn write(&self, bound: SocketAddr, out: &mut Vec<u8>) {
        out.push(self.ecn);
        put(Some(bound.ip()), bound.port(), out);
        put(Some(self.from.ip()), self.from.port(), out);
        put(self.to, 0, out);
        out.extend_from_slice(self.bytes);
    }

    /// Reads such a message: the address of the receiving socket, and the datagram.
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

/// Converts a client's datagram for quinn: all packets get type bits of version 1 (see [`Version::read_header`]).
///
/// The datagram is cut off before a Version Negotiation or Retry packet. Only servers send these, and they are not authenticated
/// by a key of the connection. Such a packet is corrupt or forged, but quinn would close the connection.
pub fn for_quinn(datagram: &[u8]) -> BytesMut {
    let mut read = BytesMut::from(datagram);
    let mut at = 0;
    while let Some(packet) = read.get_mut(at..) {
        if is_negotiation(packet) {
            read.truncate(at);
            break;
        }
        let (Some(version), Some(first)) = (Version::of_packet(packet), packet.first()) else {
            break;
        };
        let kind = version.kind(*first);
        if kind == LongKind::Retry {
            read.truncate(at);
            break;
        }
        version.read_header(packet);
        match length(kind, packet) {
            Some(length) => at += length,
            None => break,
        }
    }
    read
}

/// A Version Negotiation packet: RFC 8999, section 6.
fn is_negotiation(packet: &[u8]) -> bool {
    matches!(packet, [first, 0, 0, 0, 0, ..] if first & 0x80 > 0)
}

/// The length of a packet with a long header. `None` if it is truncated.
fn length(kind: LongKind, packet: &[u8]) -> Option<usize> {
    let mut rest = packet.get(5..)?;
    for _ in 0..2 {
        let (length, id) = rest.split_first()?;
        rest = id.get(usize::from(*length)..)?;
    }
    let mut rest = Frames(rest);
    if kind == LongKind::Initial {
        rest.length_prefixed()?;
    }
    rest.length_prefixed()?;
    Some(packet.len() - rest.0.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_only_servers_send_are_cut_off() {
        let initial = [&[0xc0, 0, 0, 0, 1, 2, 7, 7, 1, 8, 1, 9, 4][..], &[5; 4]].concat();
        let handshake = [&[0xe0, 0, 0, 0, 1, 2, 7, 7, 1, 8, 3][..], &[5; 3]].concat();
        let retry = [&[0xf0, 0, 0, 0, 1, 2, 7, 7, 1, 8][..], &[5; 20]].concat();
        let negotiation = [0xf0, 0, 0, 0, 0, 1, 7, 1, 8, 0, 0, 0, 1];
        let short = [0x40, 7, 7, 7];
        for whole in [
            &[][..],
            &initial,
            &[&initial[..], &handshake, &short].concat(),
            &[0xf0, 0x1a, 0x2a, 0x3a, 0x4a, 1, 7],
            &initial[..9],
        ] {
            assert_eq!(for_quinn(whole), whole);
        }
        for last in [&retry[..], &negotiation] {
            assert!(for_quinn(last).is_empty());
            for before in [initial.clone(), [&initial[..], &handshake].concat()] {
                assert_eq!(for_quinn(&[&before[..], last].concat()), before);
            }
        }
    }

    #[test]
    fn packets_of_version_2_get_the_types_of_version_1() {
        let packet = |first: u8, rest: &[u8]| {
            [&[first, 0x6b, 0x33, 0x43, 0xcf, 2, 7, 7, 1, 8][..], rest].concat()
        };
        let (initial, early, handshake) = (&[1, 9, 4, 5, 5, 5, 5][..], &[2, 5, 5][..], &[1, 5][..]);
        let short = [0x50, 7, 7, 7];
        let sent = [packet(0xd3, initial), packet(0xe0, early), packet(0xff, handshake)].concat();
        let read = [packet(0xc3, initial), packet(0xd0, early), packet(0xef, handshake)].concat();
        let whole = [&sent[..], &short].concat();
        assert_eq!(for_quinn(&whole), [&read[..], &short].concat());
        let retry = packet(0xcf, &[5; 20]);
        assert_eq!(for_quinn(&[sent, retry].concat()), read);
    }

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
