//! `random`: a random peer, by weight. With `two`, the less loaded of two random peers.

use std::time::Instant;

use super::{Balance, HASH_TRIES, LeastTime, least_conn};
use crate::group::Choice;
use crate::seats::PeerSet;

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
    fn pick(&mut self, seats: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize> {
        let first = draw(seats, choice, now, None);
        let (Some(first), Some(two)) = (first, self.two) else {
            return first.or_else(|| seats.turn(&choice.tried, now));
        };
        let Some(second) = draw(seats, choice, now, Some(first)) else { return Some(first) };
        let (a, b) = (seats.list().get(first)?, seats.list().get(second)?);
        let second_wins = match two {
            Two::LeastConn => least_conn::less(b, a, now),
            Two::LeastTime(how) => how.sooner(b, a, now),
        };
        Some(if second_wins { second } else { first })
    }
}

fn draw(seats: &mut PeerSet, choice: &Choice, now: Instant, but: Option<usize>) -> Option<usize> {
    let total = seats.total_weight();
    if total == 0 {
        return None;
    }
    for _ in 0..HASH_TRIES {
        let point = seats.random() % total;
        let at = seats.at_weight(point);
        if Some(at) != but && seats.is_free(at, &choice.tried, now) {
            return Some(at);
        }
    }
    None
}
