//! Smooth round robin among peers of equal weight, without a scan of all peers for each request.
//!
//! If all peers are free and have the same weight, round robin repeats one order. Each choice
//! lowers the chosen peer's current weight by the sum of all weights, so that it becomes the last
//! one. The order holds until a peer fails, fills up or is changed. [`Rotation::settle`] then
//! computes the current weights that round robin would have reached.

use std::cmp::Reverse;
use std::time::Instant;

use crate::peer_state::{PeerState, UNIT};

/// A round-robin order that repeats itself.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// Indices of all peers.
    order: Vec<u32>,
    /// How many peers of the order were taken since their current weights were correct.
    taken: usize,
    /// What each choice adds to every current weight.
    pull: i64,
}

impl Rotation {
    /// The order of these peers. `None` if their weights differ, if one is not steady, or if their
    /// order does not repeat itself yet.
    pub fn of(list: &[PeerState], now: Instant) -> Option<Rotation> {
        let weight = list.first()?.weight();
        if !list.iter().all(|state| state.weight() == weight && state.is_steady(now)) {
            return None;
        }
        let pull = i64::from(weight) * UNIT;
        let owed = |i: &u32| list.get(*i as usize).map_or(0, |state| state.current);
        let mut order: Vec<u32> = (0..list.len() as u32).collect();
        // The sort is stable: of equal current weights, the first in the list comes first.
        order.sort_by_key(|i| Reverse(owed(i)));
        let (first, last) = (order.first()?, order.last()?);
        let (spread, whole) = (owed(first) - owed(last), pull * list.len() as i64);
        // A peer that was taken must come last: its current weight must be the smallest, or equal
        // only to peers before it in the list.
        let repeats = spread < whole || spread == whole && first > last;
        repeats.then_some(Rotation { order, taken: 0, pull })
    }

    /// The next peer.
    pub fn next(&self) -> Option<usize> {
        self.order.get(self.taken).map(|i| *i as usize)
    }

    /// Moves on to the following peer.
    pub fn advance(&mut self) {
        // After a full round, all current weights are as before it.
        self.taken = (self.taken + 1) % self.order.len().max(1);
    }

    /// Writes the current weights that the choices so far have led to.
    pub fn settle(&self, list: &mut [PeerState]) {
        let (got, whole) = (self.taken as i64 * self.pull, self.order.len() as i64 * self.pull);
        list.iter_mut().for_each(|state| state.current += got);
        for i in self.order.iter().take(self.taken) {
            if let Some(state) = list.get_mut(*i as usize) {
                state.current -= whole;
            }
        }
    }
}
