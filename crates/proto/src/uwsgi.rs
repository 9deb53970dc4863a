//! Requests of the uwsgi protocol. Its answers have no framing. nginx: ngx_http_uwsgi_module.c.

use crate::pairs::{Pairs, PendingValue};

/// Bytes of a packet's head.
pub const HEAD: usize = 4;
/// The most that a packet holds.
pub const LONGEST: usize = 65535;

/// Names and values. Lengths beyond 16 bits make a packet that [`end`] refuses.
#[derive(Debug)]
pub enum Vars {}

impl Pairs for Vars {
    fn name(name: &[u8], out: &mut Vec<u8>) -> PendingValue {
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(name);
        let length = out.len();
        out.extend_from_slice(&[0, 0]);
        PendingValue { length, start: out.len() }
    }

    fn end(value: PendingValue, out: &mut Vec<u8>) {
        let length = out.len().saturating_sub(value.start) as u16;
        if let Some(place) = out.get_mut(value.length..value.start) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }
}

/// Makes what stands behind the room of a head, at the beginning of `out`, a packet. The error is its length, where it is
/// more than a packet holds.
pub fn end(modifier1: u8, modifier2: u8, out: &mut [u8]) -> Result<(), usize> {
    let length = out.len().saturating_sub(HEAD);
    let [low, high] = u16::try_from(length).map_err(|_| length)?.to_le_bytes();
    if let Some(room) = out.get_mut(..HEAD) {
        room.copy_from_slice(&[modifier1, low, high, modifier2]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type List = Vec<(Vec<u8>, Vec<u8>)>;

    /// Takes a packet apart, as a server does.
    fn read(packet: &[u8]) -> (u8, u8, List) {
        let length = usize::from(u16::from_le_bytes([packet[1], packet[2]]));
        assert_eq!(packet.len(), HEAD + length);
        let (mut rest, mut pairs) = (&packet[HEAD..], Vec::new());
        let text = |rest: &mut &[u8]| {
            let length = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
            let text = rest[2..2 + length].to_vec();
            *rest = &rest[2 + length..];
            text
        };
        while !rest.is_empty() {
            pairs.push((text(&mut rest), text(&mut rest)));
        }
        (packet[0], packet[3], pairs)
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            pairs in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..300),
                 proptest::collection::vec(any::<u8>(), 0..300)),
                0..8,
            ),
            modifiers in any::<(u8, u8)>(),
        ) {
            let mut out = vec![0; HEAD];
            for (name, value) in &pairs {
                Vars::pair(name, value, &mut out);
            }
            prop_assert_eq!(end(modifiers.0, modifiers.1, &mut out), Ok(()));
            prop_assert_eq!(read(&out), (modifiers.0, modifiers.1, pairs));
        }
    }

    #[test]
    fn more_than_a_packet_holds_is_refused() {
        let mut out = vec![0; HEAD];
        Vars::pair(b"A", &[0; LONGEST], &mut out);
        assert_eq!(end(0, 0, &mut out), Err(2 + 1 + 2 + LONGEST));
    }
}
