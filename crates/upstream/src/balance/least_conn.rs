//! The peer with the fewest connections for its weight; round robin among equals.

use std::time::Instant;

use super::Balance;
use crate::group::Choice;
use crate::seats::{Seat, Seats};

/// Fewest connections first.
#[derive(Debug, Default)]
pub struct LeastConn;

impl Balance for LeastConn {
    fn pick(&mut self, seats: &mut Seats, choice: &mut Choice, now: Instant) -> Option<usize> {
        let mut best: Option<&Seat> = None;
        for i in 0..seats.list.len() {
            if !seats.is_free(i, &choice.tried, now) {
                continue;
            }
            let seat = seats.list.get(i)?;
            if best.is_none_or(|b| less(seat, b)) {
                best = Some(seat);
            }
        }
        let (conns, weight) = best.map(|b| (b.conns, b.peer.options.weight))?;
        let equal =
            move |s: &Seat| product(s.conns, weight) == product(conns, s.peer.options.weight);
        seats.smooth(&choice.tried, now, equal)
    }
}

/// Compares loads without dividing.
pub fn less(a: &Seat, b: &Seat) -> bool {
    product(a.conns, b.peer.options.weight) < product(b.conns, a.peer.options.weight)
}

fn product(a: u32, b: u32) -> u64 {
    u64::from(a) * u64::from(b)
}
