//! `random`: a random peer, by weight. With `two`, the less loaded of two random peers.

use std::time::Instant;

use super::{Balance, HASH_TRIES, LeastTime, least_conn};
use crate::group::Choice;
use crate::peer_set::PeerSet;

/// How one of two peers is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Two {
    /// The peer with fewer connections.
    LeastConn,
    /// The peer that is expected to answer sooner.
    LeastTime(LeastTime),
}

/// `random [two [METHOD]]`
#[derive(Debug, Default)]
pub struct Random {
    /// How to choose between two peers; `None` if one is drawn.
    pub two: Option<Two>,
}

impl Balance for Random {
    fn pick(&mut self, peers: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize> {
        let first = draw(peers, choice, now, None);
        let (Some(first), Some(two)) = (first, self.two) else {
            return first.or_else(|| peers.turn(&choice.tried, now));
        };
        let Some(second) = draw(peers, choice, now, Some(first)) else { return Some(first) };
        let (a, b) = (peers.list().get(first)?, peers.list().get(second)?);
        let second_wins = match two {
            Two::LeastConn => least_conn::less(b, a, now),
            Two::LeastTime(how) => how.sooner(b, a, now),
        };
        Some(if second_wins { second } else { first })
    }
}

fn draw(peers: &mut PeerSet, choice: &Choice, now: Instant, but: Option<usize>) -> Option<usize> {
    let total = peers.total_weight();
    if total == 0 {
        return None;
    }
    for _ in 0..HASH_TRIES {
        let point = peers.random() % total;
        let at = peers.at_weight(point);
        if Some(at) != but && peers.is_free(at, &choice.tried, now) {
            return Some(at);
        }
    }
    None
}
