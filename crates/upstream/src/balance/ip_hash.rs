//! `ip_hash`: the peer follows from the client's address, the first three bytes of IPv4 or all of
//! IPv6. The hash is nginx's, so that clients stay with their peers when a configuration moves.

use std::time::Instant;

use super::{Balance, HASH_TRIES};
use crate::group::Choice;
use crate::peer_set::PeerSet;

/// The method. [`Choice::key`] is the client's address.
#[derive(Debug, Default)]
pub struct IpHash;

const START: u64 = 89;
const FACTOR: u64 = 113;
const MODULUS: u64 = 6271;

impl Balance for IpHash {
    fn pick(&mut self, peers: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize> {
        if choice.rehashed == 0 {
            choice.hash = START;
        }
        while choice.refused <= HASH_TRIES && peers.list().len() > 1 && peers.total_weight() > 0 {
            for byte in &choice.key {
                choice.hash = (choice.hash * FACTOR + u64::from(*byte)) % MODULUS;
            }
            let at = peers.at_weight(choice.hash % peers.total_weight());
            choice.rehashed += 1;
            if peers.is_free(at, &choice.tried, now) {
                return Some(at);
            }
            choice.refused += 1;
        }
        peers.turn(&choice.tried, now)
    }
}
