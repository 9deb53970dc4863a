//! Connection IDs that encode the loop of their connection.
//!
//! An ID has 17 bytes: 12 random ones, then the [`Place`] and a check byte, encrypted. The mask comes from the host key and the
//! random bytes, as in header protection (RFC 9001, section 5.4). So an observer cannot correlate IDs of a connection (RFC 9000,
//! section 5.1).
//!
//! The first four bytes also encode the loop, so that an eBPF program can read it ([`Steering`]). This encoding is weaker: an
//! observer of many IDs could find out which loop has a connection, but not which IDs belong to the same connection.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

use crate::version::{LongKind, Version};

/// The length of a connection ID.
pub const LENGTH: usize = 17;
const RANDOM: usize = 12;
/// The plaintext of an ID's last byte.
const CHECK: u8 = 0x5a;

/// The generation in the connection ID of a Retry. No configuration has it: any workers may accept the connection.
pub const ANY_GENERATION: u16 = u16::MAX;

/// The loop that has a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Place {
    /// The number of the workers' configuration. It grows with each reload, and wraps.
    pub generation: u16,
    /// The index of the loop among the loops of the configuration that serve QUIC.
    pub row: u16,
}

impl Place {
    /// Whether its configuration is newer than this one. Numbers wrap.
    pub fn is_newer_than(&self, generation: u16) -> bool {
        self.generation.wrapping_sub(generation) as i16 > 0
    }
}

/// The parameters by which the kernel finds the loop of a connection ID: the upper 16 bits of `(first ^ xor) * factor`, modulo
/// `loops`, where `first` is the ID's first four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steering {
    /// The mask of the first four bytes.
    pub xor: u32,
    /// An odd factor, so that it has an inverse modulo 2^32.
    pub factor: u32,
    /// The number of loops.
    pub loops: u16,
}

impl Steering {
    /// Parameters of secret words.
    pub fn new(words: &[u8; 8], loops: u16) -> Steering {
        let [a, b, c, d, e, f, g, h] = *words;
        let (xor, factor) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        Steering { xor, factor: factor | 1, loops: loops.max(1) }
    }

    /// The loop of an ID with these first four bytes, computed as in the eBPF program.
    pub fn row(&self, first: u32) -> u16 {
        let product = (first ^ self.xor).wrapping_mul(self.factor);
        (product >> 16) as u16 % self.loops
    }

    /// The first four bytes of an ID for this loop, made of random ones.
    fn write(&self, random: u32, row: u16) -> u32 {
        let (upper, loops) = ((random >> 16) as u16, self.loops);
        let wanted = (upper - upper % loops).checked_add(row % loops);
        // Above the last multiple of `loops` the sum may overflow 16 bits.
        let wanted = wanted.unwrap_or(row % loops);
        let product = u32::from(wanted) << 16 | random & 0xffff;
        product.wrapping_mul(inverse(self.factor)) ^ self.xor
    }
}

/// The inverse of an odd number modulo 2^32, by Newton's method. Each step doubles the number of correct bits.
fn inverse(odd: u32) -> u32 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(x))))
}

/// Encodes and decodes connection IDs.
#[derive(Clone)]
pub struct IdKey {
    key: Arc<HeaderProtectionKey>,
    steering: Steering,
}

impl IdKey {
    /// A key of this secret.
    pub fn new(secret: &[u8; 16], steering: Steering) -> Result<IdKey, Unspecified> {
        let key = Arc::new(HeaderProtectionKey::new(&AES_128, secret)?);
        Ok(IdKey { key, steering })
    }

    /// The server has more than one loop.
    pub fn has_other_loops(&self) -> bool {
        self.steering.loops > 1
    }

    /// A keyed hash of 40 bits of a connection ID that a client has chosen. Clients cannot predict it.
    pub fn hash(&self, id: &[u8]) -> u64 {
        // An ID has up to 20 bytes, the sample 16.
        let mut folded = [0; 16];
        for (at, byte) in id.iter().enumerate() {
            if let Some(to) = folded.get_mut(at % 16) {
                *to ^= byte;
            }
        }
        let mask = self.key.new_mask(&folded).unwrap_or_default();
        mask.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn mask(&self, random: &[u8]) -> [u8; 5] {
        let mut sample = [0; 16];
        for (to, from) in sample.iter_mut().zip(random.iter().take(RANDOM)) {
            *to = *from;
        }
        // The key accepts each sample of this length.
        self.key.new_mask(&sample).unwrap_or_default()
    }

    /// A new ID for a connection of this place.
    pub fn write(&self, place: Place) -> [u8; LENGTH] {
        let mut id = [0; LENGTH];
        let (random, rest) = id.split_at_mut(RANDOM);
        // This cannot fail on Linux. quinn generates another ID if one is in use.
        let _ = rand::fill(random);
        if let Some(first) = random.first_chunk_mut::<4>() {
            *first = self.steering.write(u32::from_be_bytes(*first), place.row).to_be_bytes();
        }
        let ([g, h], [r, s]) = (place.generation.to_be_bytes(), place.row.to_be_bytes());
        let plain = [g, h, r, s, CHECK];
        for ((to, plain), mask) in rest.iter_mut().zip(plain).zip(self.mask(random)) {
            *to = plain ^ mask;
        }
        id
    }

    /// The place in an ID; `None` if this key has not made the ID. One foreign ID in 256 passes the check by chance.
    pub fn read(&self, id: &[u8]) -> Option<Place> {
        let id: &[u8; LENGTH] = id.try_into().ok()?;
        let (random, rest) = id.split_at(RANDOM);
        let mut plain = [0; 5];
        for ((to, hidden), mask) in plain.iter_mut().zip(rest).zip(self.mask(random)) {
            *to = hidden ^ mask;
        }
        let [g, h, r, s, check] = plain;
        let place =
            Place { generation: u16::from_be_bytes([g, h]), row: u16::from_be_bytes([r, s]) };
        (check == CHECK).then_some(place)
    }
}

/// quinn's generator of connection IDs for one place.
pub struct Ids {
    pub key: IdKey,
    pub place: Place,
    /// The next ID is for a Retry. Its place has no generation: newer workers may receive the client's next packet.
    pub for_retry: Arc<AtomicBool>,
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let place = match self.for_retry.load(Relaxed) {
            true => Place { generation: ANY_GENERATION, ..self.place },
            false => self.place,
        };
        ConnectionId::new(&self.key.write(place))
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        self.key.read(id).map(drop).ok_or(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

/// The destination connection ID of a packet (RFC 8999), if it has the length of weir's IDs.
pub fn destination(packet: &[u8]) -> Option<&[u8]> {
    const LONG: u8 = 0x80;
    match packet.first()? {
        first if first & LONG == 0 => packet.get(1..1 + LENGTH),
        _ if usize::from(*packet.get(5)?) == LENGTH => packet.get(6..6 + LENGTH),
        _ => None,
    }
}

/// The destination connection ID of an Initial or 0-RTT packet. A client chooses it for its first packets (RFC 9000, section 7.2).
pub fn chosen_by_client(packet: &[u8]) -> Option<&[u8]> {
    let kind = Version::of_packet(packet)?.kind(*packet.first()?);
    let (length, rest) = packet.get(5..)?.split_first()?;
    let early = matches!(kind, LongKind::Initial | LongKind::Early);
    rest.get(..usize::from(*length)).filter(|_| early)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steering(loops: u16) -> Steering {
        Steering::new(b"8 bytes!", loops)
    }

    #[test]
    fn an_id_says_where_its_connection_lives() {
        let key = IdKey::new(&[7; 16], steering(3)).unwrap();
        let place = Place { generation: 513, row: 65_535 };
        let (a, b) = (key.write(place), key.write(place));
        assert_eq!(key.read(&a), Some(place));
        assert_eq!(key.read(&b), Some(place));
        assert_ne!(a[RANDOM..], b[RANDOM..], "what is under the mask does not show");
        assert_eq!(key.read(&a[1..]), None);
        let mut broken = a;
        broken[LENGTH - 1] ^= 1;
        assert_eq!(key.read(&broken), None);
    }

    #[test]
    fn another_key_reads_few_ids() {
        let [key, other] = [7, 8].map(|byte| IdKey::new(&[byte; 16], steering(3)).unwrap());
        let read = (0..2000).filter(|_| other.read(&key.write(Place::default())).is_some());
        assert!(read.count() < 50, "one in 256 by chance");
    }

    #[test]
    fn the_destination_stands_behind_the_version_or_the_first_byte() {
        let id = [9; LENGTH];
        let short = [&[0x40][..], &id, &[1, 2, 3]].concat();
        assert_eq!(destination(&short), Some(&id[..]));
        let long = [&[0xc0, 0, 0, 0, 1, 17][..], &id, &[0]].concat();
        assert_eq!(destination(&long), Some(&id[..]));
        let chosen = [&[0xc0, 0, 0, 0, 1, 8][..], &[1; 8], &[0]].concat();
        assert_eq!(destination(&chosen), None);
        assert!(destination(&[]).is_none() && destination(&[0x40, 1]).is_none());
        assert!(destination(&[0xc0, 0, 0, 0, 1]).is_none());
    }

    #[test]
    fn the_kernel_finds_the_loop_of_each_id() {
        for loops in [1, 2, 3, 12, 64, 1000, 65_535] {
            let key = IdKey::new(&[7; 16], steering(loops)).unwrap();
            for row in [0, 1, loops / 2, loops - 1].map(|row| row % loops) {
                let mut seen = std::collections::HashSet::new();
                for _ in 0..200 {
                    let id = key.write(Place { generation: 1, row });
                    let first = u32::from_be_bytes(*id.first_chunk().unwrap());
                    assert_eq!(steering(loops).row(first), row, "{loops}");
                    seen.insert(first);
                }
                assert!(seen.len() > 150, "ids of a loop differ: {}", seen.len());
            }
        }
    }

    #[test]
    fn first_packets_have_an_id_of_the_clients_choice() {
        let packet = |first: u8, version: [u8; 4]| {
            [&[first][..], &version, &[8, 1, 2, 3, 4, 5, 6, 7, 8], &[0; 4]].concat()
        };
        let (v1, v2) = ([0, 0, 0, 1], [0x6b, 0x33, 0x43, 0xcf]);
        for (first, version, is) in [
            (0xc0, v1, true),
            (0xd0, v1, true),
            (0xe0, v1, false),
            (0xd0, v2, true),
            (0xe0, v2, true),
            (0xc0, v2, false),
            (0xc0, [0; 4], false),
            (0x40, v1, false),
        ] {
            let packet = packet(first, version);
            let found = chosen_by_client(&packet);
            assert_eq!(found, is.then_some(&[1, 2, 3, 4, 5, 6, 7, 8][..]), "{first:x}");
        }
        assert_eq!(chosen_by_client(&[0xc0, 0, 0, 0, 1, 8, 1]), None);
    }
}
