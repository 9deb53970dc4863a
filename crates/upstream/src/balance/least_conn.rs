//! `least_conn`: the peer with the fewest connections in proportion to its weight; round robin
//! among equals.

use std::time::Instant;

use super::Balance;
use crate::group::Choice;
use crate::peer_set::PeerSet;
use crate::peer_state::PeerState;

/// The method.
#[derive(Debug, Default)]
pub struct LeastConn;

impl Balance for LeastConn {
    fn pick(&mut self, peers: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize> {
        let mut best: Option<&PeerState> = None;
        for i in 0..peers.list().len() {
            if !peers.is_free(i, &choice.tried, now) {
                continue;
            }
            let state = peers.list().get(i)?;
            if best.is_none_or(|b| less(state, b, now)) {
                best = Some(state);
            }
        }
        let (conns, share) = best.map(|b| (b.conns, b.share(now)))?;
        let equal = move |s: &PeerState| product(s.conns, share) == product(conns, s.share(now));
        peers.smooth(&choice.tried, now, equal)
    }
}

/// Whether `a` has fewer connections in proportion to its weight than `b`. Compares products, so
/// that nothing is rounded.
pub fn less(a: &PeerState, b: &PeerState, now: Instant) -> bool {
    product(a.conns, b.share(now)) < product(b.conns, a.share(now))
}

fn product(conns: u32, share: u64) -> u128 {
    u128::from(conns) * u128::from(share)
}
