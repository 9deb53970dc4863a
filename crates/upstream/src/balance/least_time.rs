//! `least_time`: the peer with the lowest product of average time and connections, in proportion to
//! its weight; round robin among equals.

use std::time::Instant;

use super::Balance;
use crate::group::Choice;
use crate::seat::{PeerState, UNIT};
use crate::seats::PeerSet;

/// The time that `least_time` compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Time until the connection is established.
    Connect,
    /// Time until the head of the answer, or the first bytes of a session.
    First,
    /// Time until the last byte.
    Last,
}

/// The method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeastTime {
    /// The time that is compared.
    pub measure: Measure,
    /// `inflight`: waiting times of requests without an answer count, too. So a peer that stops
    /// answering counts as slow at once.
    pub inflight: bool,
}

impl LeastTime {
    /// The expected wait: average time, multiplied by the connections including the new one.
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

/// The average time, halved for each `fail_timeout` without a choice of the peer. So a slow peer
/// gets requests again.
fn faded(time: u128, seat: &PeerState, now: Instant) -> u128 {
    let patience = seat.peer.options.fail_timeout.as_secs();
    let idle = seat.checked.map_or(0, |at| now.saturating_duration_since(at).as_secs());
    match idle > patience {
        true => time >> (idle / (patience + 1)).min(127),
        false => time,
    }
}

/// Rounds a time up to a multiple of 20 ms, at most 5 s, so that peers with similar times count as
/// equal.
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
                    seat.inflight.update_average(now);
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
            seat.inflight.add(now);
        }
        self.inflight
    }

    fn inflight_until(&self) -> Option<Measure> {
        // The last byte is the end of the request, which [`Group::ended`](crate::Group::ended)
        // reports anyway.
        Some(self.measure).filter(|measure| self.inflight && *measure != Measure::Last)
    }
}
