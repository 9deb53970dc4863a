//! Smooth round robin among seats of one weight, without a look at each of them for each request.
//!
//! Seats that are all free and pull alike are taken in an order that repeats itself: the one that is owed most gives up what
//! all together have got, and is then owed least. So that order is enough, until a seat fails, fills up or is changed. Then
//! [`Rotation::settle`] gives the seats what the method would have given them by then.

use std::cmp::Reverse;
use std::time::Instant;

use crate::seat::{PeerState, UNIT};

/// An order that repeats itself.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// Indices of all seats.
    order: Vec<u32>,
    /// How many of them have been taken since what the seats say they are owed was true.
    taken: usize,
    /// What each seat gets at a choice.
    pull: i64,
}

impl Rotation {
    /// The order for these seats. `None`: they are not alike, or their order does not repeat itself yet.
    pub fn of(list: &[PeerState], now: Instant) -> Option<Rotation> {
        let weight = list.first()?.weight();
        if !list.iter().all(|seat| seat.weight() == weight && seat.is_steady(now)) {
            return None;
        }
        let pull = i64::from(weight) * UNIT;
        let owed = |i: &u32| list.get(*i as usize).map_or(0, |seat| seat.current);
        let mut order: Vec<u32> = (0..list.len() as u32).collect();
        // Of those that are owed the same, the first one of the list comes first.
        order.sort_by_key(|i| Reverse(owed(i)));
        let (first, last) = (order.first()?, order.last()?);
        let (spread, whole) = (owed(first) - owed(last), pull * list.len() as i64);
        // A seat that was taken must be owed less than all others, or as much as some that stand before it in the list.
        let repeats = spread < whole || spread == whole && first > last;
        repeats.then_some(Rotation { order, taken: 0, pull })
    }

    /// The seat whose turn it is.
    pub fn next(&self) -> Option<usize> {
        self.order.get(self.taken).map(|i| *i as usize)
    }

    /// That seat was taken.
    pub fn advance(&mut self) {
        // After a whole turn all are owed what they were owed before it.
        self.taken = (self.taken + 1) % self.order.len().max(1);
    }

    /// Gives the seats what they are owed now.
    pub fn settle(&self, list: &mut [PeerState]) {
        let (got, whole) = (self.taken as i64 * self.pull, self.order.len() as i64 * self.pull);
        list.iter_mut().for_each(|seat| seat.current += got);
        for i in self.order.iter().take(self.taken) {
            if let Some(seat) = list.get_mut(*i as usize) {
                seat.current -= whole;
            }
        }
    }
}
