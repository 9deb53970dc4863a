//! Fuzz targets: datagrams of any sender, and messages between loops.
//!
//! As plain tests they run the kept corpus (`__fuzz__/*/corpus`) and a second of random inputs;
//! CONTRIBUTING.md tells how to let a fuzzer look for longer.

use crate::ids::{IdKey, LENGTH, Place, Steering, chosen_by_client, destination};
use crate::packet::{Packet, of_clients};
use crate::paths::each_token;

/// What a loop reads of a datagram before any key is known.
#[test]
fn destinations() {
    let key = IdKey::new(&[7; 16], Steering::new(&[7; 8], 3)).unwrap();
    bolero::check!().for_each(|input: &[u8]| {
        if let Some(id) = chosen_by_client(input) {
            assert_eq!(id.len(), usize::from(input[5]));
            assert!(key.number(id) < 1 << 40);
        }
        let Some(id) = destination(input) else { return };
        let long = input[0] & 0x80 > 0;
        let at = if long { 6 } else { 1 };
        assert_eq!(id, &input[at..at + LENGTH]);
        assert!(!long || usize::from(input[5]) == LENGTH);
        // An id of ours has been made by the key; whatever else there is has no place, but for one in 256.
        if let Some(place) = key.read(id) {
            let own = key.write(place);
            assert_eq!(key.read(&own), Some(place));
        }
    });
}

/// Any place can be read back from any id of it, and no id of another length is one.
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

/// A message says what another one says that has been written from it.
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

/// What is left of a datagram is its beginning, but for types of packets, and it has no packet that only servers send.
#[test]
fn datagrams() {
    bolero::check!().for_each(|input: &[u8]| {
        let left = of_clients(input);
        assert!(left.len() <= input.len());
        let changed = left.iter().zip(input).filter(|(read, came)| read != came);
        assert!(changed.clone().all(|(read, came)| read & !0x30 == came & !0x30));
        if changed.count() == 0 {
            assert_eq!(of_clients(&left), left);
        }
    });
}

/// Each token that is found stands behind its frame's type.
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
