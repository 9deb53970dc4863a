//! `hash KEY`: the key selects the peer, by the hash function of Cache::Memcached and nginx.

use std::time::Instant;

use crc32fast::Hasher;

use super::{Balance, HASH_TRIES};
use crate::group::Choice;
use crate::peer_set::PeerSet;

/// `hash KEY`
#[derive(Debug, Default)]
pub struct Hash;

impl Balance for Hash {
    fn pick(&mut self, peers: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize> {
        let usable = !choice.key.is_empty() && peers.list().len() > 1 && peers.total_weight() > 0;
        while usable && choice.refused <= HASH_TRIES {
            let mut crc = Hasher::new();
            if choice.rehashed > 0 {
                crc.update(choice.rehashed.to_string().as_bytes());
            }
            crc.update(&choice.key);
            choice.hash += u64::from(crc.finalize() >> 16 & 0x7fff);
            choice.rehashed += 1;
            let at = peers.at_weight(choice.hash % peers.total_weight());
            if peers.is_free(at, &choice.tried, now) {
                return Some(at);
            }
            choice.refused += 1;
        }
        peers.turn(&choice.tried, now)
    }
}
