//! The peer that answers soonest for the requests it has; round robin among equals.

use std::time::Instant;

use super::Balance;
use crate::group::Choice;
use crate::seat::{PeerState, UNIT};
use crate::seats::PeerSet;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Time until there is a connection.
    Connect,
    /// Time to the head of an answer, or to a session's first bytes.
    First,
    /// Time to the last byte.
    Last,
}

/// Soonest answer first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeastTime {
    /// What is measured.
    pub measure: Measure,
    /// Requests that have no answer yet count, too: a peer that keeps them waiting is slow.
    pub inflight: bool,
}

impl LeastTime {
    /// Expected wait: average time, multiplied by the requests that it would have.
    fn cost(&self, seat: &PeerState, now: Instant) -> u128 {
        let mut time = faded(seat.times.of(self.measure).as_millis(), seat, now);
        if self.inflight && seat.inflight.count > 0 {
            time = time.max(seat.inflight.average.as_millis());
        }
        clustered(time) * u128::from(seat.conns + 1)
    }

    /// Whether `a` is expected to answer before `b`.
    pub fn sooner(&self, a: &PeerState, b: &PeerState, now: Instant) -> bool {
        let cost = |seat, of: &PeerState| self.cost(seat, now) * u128::from(of.share(now));
        cost(a, b) < cost(b, a)
    }

    fn per_share(&self, seat: &PeerState, now: Instant) -> u128 {
        self.cost(seat, now) * 1000 * UNIT as u128 / u128::from(seat.share(now))
    }
}

/// A slow peer that was left alone gets its chance again: half the time for each `fail_timeout` since.
fn faded(time: u128, seat: &PeerState, now: Instant) -> u128 {
    let patience = seat.peer.options.fail_timeout.as_secs();
    let idle = seat.checked.map_or(0, |at| now.saturating_duration_since(at).as_secs());
    match idle > patience {
        true => time >> (idle / (patience + 1)).min(127),
        false => time,
    }
}

/// Times that differ by less than 20 ms count as equal, and those above 5 s, too.
fn clustered(time: u128) -> u128 {
    if time > 5000 { 5000 } else { time + 20 - time % 20 }
}

impl Balance for LeastTime {
    fn pick(&mut self, seats: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize> {
        let mut least = None;
        for i in 0..seats.list().len() {
            if !seats.is_free(i, &choice.tried, now) {
                continue;
            }
            let cost = seats.change(i, now, |seat| {
                if self.inflight {
                    seat.inflight.look(now);
                }
                self.per_share(seat, now)
            })?;
            least = Some(least.map_or(cost, |l: u128| l.min(cost)));
        }
        let least = least?;
        seats.smooth(&choice.tried, now, |s| self.per_share(s, now) == least)
    }

    fn chosen(&mut self, seat: &mut PeerState, now: Instant) -> bool {
        if self.inflight {
            seat.inflight.begin(now);
        }
        self.inflight
    }

    fn hears_of(&self) -> Option<Measure> {
        // The last byte is the end, which is always heard of.
        Some(self.measure).filter(|measure| self.inflight && *measure != Measure::Last)
    }
}
