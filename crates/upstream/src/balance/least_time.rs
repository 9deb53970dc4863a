//! `least_time`: the peer with the lowest product of average time and connections, in proportion to
//! its weight; round robin among equals.

use std::time::Instant;

use super::Balance;
use crate::group::Choice;
use crate::peer_set::PeerSet;
use crate::peer_state::{PeerState, UNIT};

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
    fn cost(&self, state: &PeerState, now: Instant) -> u128 {
        let mut time = faded(state.times.of(self.measure).as_millis(), state, now);
        if self.inflight && state.inflight.count > 0 {
            time = time.max(state.inflight.average.as_millis());
        }
        clustered(time) * u128::from(state.conns + 1)
    }

    /// Whether `a` is expected to answer before `b`.
    pub fn sooner(&self, a: &PeerState, b: &PeerState, now: Instant) -> bool {
        let cost = |state, of: &PeerState| self.cost(state, now) * u128::from(of.share(now));
        cost(a, b) < cost(b, a)
    }

    fn per_share(&self, state: &PeerState, now: Instant) -> u128 {
        self.cost(state, now) * 1000 * UNIT as u128 / u128::from(state.share(now))
    }
}

/// The average time, halved for each `fail_timeout` without a choice of the peer. So a slow peer
/// gets requests again.
fn faded(time: u128, state: &PeerState, now: Instant) -> u128 {
    let patience = state.peer.options.fail_timeout.as_secs();
    let idle = state.checked.map_or(0, |at| now.saturating_duration_since(at).as_secs());
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
    fn pick(&mut self, peers: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize> {
        let mut least = None;
        for i in 0..peers.list().len() {
            if !peers.is_free(i, &choice.tried, now) {
                continue;
            }
            let cost = peers.change(i, now, |state| {
                if self.inflight {
                    state.inflight.update_average(now);
                }
                self.per_share(state, now)
            })?;
            least = Some(least.map_or(cost, |l: u128| l.min(cost)));
        }
        let least = least?;
        peers.smooth(&choice.tried, now, |s| self.per_share(s, now) == least)
    }

    fn chosen(&mut self, state: &mut PeerState, now: Instant) -> bool {
        if self.inflight {
            state.inflight.add(now);
        }
        self.inflight
    }

    fn inflight_until(&self) -> Option<Measure> {
        // The last byte is the end of the request, which [`Group::ended`](crate::Group::ended)
        // reports anyway.
        Some(self.measure).filter(|measure| self.inflight && *measure != Measure::Last)
    }
}
