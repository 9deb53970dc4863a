//! Fuzz targets: datagrams of any sender, and messages between loops.
//!
//! As plain tests they run the kept corpus (`__fuzz__/*/corpus`) and a second of random inputs;
//! CONTRIBUTING.md tells how to let a fuzzer look for longer.

use crate::ids::{IdKey, LENGTH, Place, Steering, chosen_by_client, destination};
use crate::packet::{Packet, for_quinn};
use crate::paths::each_token;

/// The connection IDs that a loop reads before it has a key for the packet.
#[test]
fn destinations() {
    let key = IdKey::new(&[7; 16], Steering::new(&[7; 8], 3)).unwrap();
    bolero::check!().for_each(|input: &[u8]| {
        if let Some(id) = chosen_by_client(input) {
            assert_eq!(id.len(), usize::from(input[5]));
            assert!(key.hash(id) < 1 << 40);
        }
        let Some(id) = destination(input) else { return };
        let long = input[0] & 0x80 > 0;
        let at = if long { 6 } else { 1 };
        assert_eq!(id, &input[at..at + LENGTH]);
        assert!(!long || usize::from(input[5]) == LENGTH);
        // The check byte lets one foreign ID in 256 pass.
        if let Some(place) = key.read(id) {
            let own = key.write(place);
            assert_eq!(key.read(&own), Some(place));
        }
    });
}

/// Each ID decodes to its place, and an ID of another length does not decode.
#[test]
fn places() {
    let key = IdKey::new(&[9; 16], Steering::new(&[9; 8], 3)).unwrap();
    bolero::check!().with_type().for_each(|(generation, row, cut): &(u16, u16, u8)| {
        let place = Place { generation: *generation, row: *row };
        let id = key.write(place);
        assert_eq!(key.read(&id), Some(place));
        let cut = usize::from(*cut) % LENGTH;
        assert_eq!(key.read(&id[..cut]), None);
    });
}

/// A message that is read and written again reads as the same datagram.
#[test]
fn messages() {
    bolero::check!().for_each(|input: &[u8]| {
        let Some((bound, packet)) = Packet::read(input) else { return };
        let mut again = Vec::new();
        packet.write(bound, &mut again);
        assert_eq!(again.len(), input.len());
        assert_eq!(Packet::read(&again), Some((bound, packet)));
    });
}

/// A converted datagram is a prefix of the original but for type bits, and no packet in it is a server's.
#[test]
fn datagrams() {
    bolero::check!().for_each(|input: &[u8]| {
        let left = for_quinn(input);
        assert!(left.len() <= input.len());
        let changed = left.iter().zip(input).filter(|(read, came)| read != came);
        assert!(changed.clone().all(|(read, came)| read & !0x30 == came & !0x30));
        if changed.count() == 0 {
            assert_eq!(for_quinn(&left), left);
        }
    });
}

/// Each path token that is found is in the input.
#[test]
fn tokens() {
    bolero::check!().for_each(|input: &[u8]| {
        for kind in [0x1a, 0x1b] {
            let mut found = 0;
            each_token(input, kind, |token| {
                found += 1;
                assert!(input.windows(8).any(|window| window == token));
            });
            assert!(found * 9 <= input.len());
        }
    });
}
