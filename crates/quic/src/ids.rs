//! Connection ids that say where a connection lives.
//!
//! An id is 17 bytes: 12 random ones, and five that hold the [`Place`] and a check, under a mask that the host key makes of the
//! random ones (as QUIC protects its packet numbers: RFC 9001, section 5.4). To others an id says nothing, and two ids of a
//! connection have nothing in common (RFC 9000, section 5.1).

use std::sync::Arc;

use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};

/// The length of an id.
pub const LENGTH: usize = 17;
const RANDOM: usize = 12;
/// What the last byte of an id is below its mask.
const CHECK: u8 = 0x5a;

/// Where a connection lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Place {
    /// Which configuration's workers: it grows with each reload.
    pub generation: u16,
    /// The loop among all of the server.
    pub row: u16,
}

/// Writes and reads ids.
#[derive(Clone)]
pub struct IdKey(Arc<HeaderProtectionKey>);

impl IdKey {
    /// With a secret of 16 bytes.
    pub fn new(secret: &[u8; 16]) -> Result<IdKey, Unspecified> {
        Ok(IdKey(Arc::new(HeaderProtectionKey::new(&AES_128, secret)?)))
    }

    fn mask(&self, random: &[u8]) -> [u8; 5] {
        let mut sample = [0; 16];
        for (to, from) in sample.iter_mut().zip(random.iter().take(RANDOM)) {
            *to = *from;
        }
        // A sample of this length is always taken.
        self.0.new_mask(&sample).unwrap_or_default()
    }

    /// A new id for a connection of this place.
    pub fn write(&self, place: Place) -> [u8; LENGTH] {
        let mut id = [0; LENGTH];
        let (random, rest) = id.split_at_mut(RANDOM);
        // Without randomness ids could still be told apart by quinn, which draws again; there is none such on Linux.
        let _ = rand::fill(random);
        let ([g, h], [r, s]) = (place.generation.to_be_bytes(), place.row.to_be_bytes());
        let plain = [g, h, r, s, CHECK];
        for ((to, plain), mask) in rest.iter_mut().zip(plain).zip(self.mask(random)) {
            *to = plain ^ mask;
        }
        id
    }

    /// Where the connection of this id lives; none if the id is not one of ours.
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

/// Gives ids to the connections of one place.
pub struct Ids {
    pub key: IdKey,
    pub place: Place,
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.key.write(self.place))
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

/// The destination's id in a packet's head (RFC 8999), if it can be one of ours.
pub fn destination(packet: &[u8]) -> Option<&[u8]> {
    const LONG: u8 = 0x80;
    match packet.first()? {
        first if first & LONG == 0 => packet.get(1..1 + LENGTH),
        _ if usize::from(*packet.get(5)?) == LENGTH => packet.get(6..6 + LENGTH),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_where_its_connection_lives() {
        let key = IdKey::new(&[7; 16]).unwrap();
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
        let (key, other) = (IdKey::new(&[7; 16]).unwrap(), IdKey::new(&[8; 16]).unwrap());
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
}
