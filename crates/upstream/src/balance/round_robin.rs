//! Smooth weighted round robin: of weights 5, 1, 1 it makes a a b a c a a, not a a a a a b c.

use std::time::Instant;

use super::Balance;
use crate::group::Choice;
use crate::peer_set::PeerSet;

/// The method.
#[derive(Debug, Default)]
pub struct RoundRobin;

impl Balance for RoundRobin {
    fn pick(&mut self, peers: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize> {
        peers.turn(&choice.tried, now)
    }

    fn out_of_turn(&mut self, peers: &mut PeerSet, at: usize, choice: &Choice, now: Instant) {
        peers.out_of_turn(at, &choice.tried, now);
    }
}
