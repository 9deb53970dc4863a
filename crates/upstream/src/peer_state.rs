//! A peer with the state that changes while it serves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Peer;
use crate::balance::Measure;
use crate::changes::{Changes, Duty};
use crate::health::{CheckResult, Health, Record};

/// The internal value of weight 1. Weights are scaled by it so that a slow start can raise them in
/// small steps.
pub const UNIT: i64 = 256;

/// A peer of a group with the state that balancing needs. nginx: ngx_http_upstream_rr_peer_t.
#[derive(Debug, Clone)]
pub struct PeerState {
    /// The server.
    pub peer: Arc<Peer>,
    /// The peer's [id](Peer::sid), if the group binds requests to peers.
    pub sid: Option<Box<str>>,
    /// Connections in use.
    pub conns: u32,
    /// Failures within `fail_timeout`.
    pub fails: u32,
    /// Smooth weighted round robin: nginx's `current_weight`, in `UNIT`s.
    pub current: i64,
    /// nginx's `effective_weight`: failures lower it, each choice raises it by 1 until it is the
    /// weight.
    pub effective: i64,
    /// Time of the last failure.
    pub accessed: Option<Instant>,
    /// nginx's `checked`: time of the last failure, or of the first choice after `fail_timeout` has
    /// passed.
    pub checked: Option<Instant>,
    /// When the peer recovered, which begins its slow start. None without `slow_start`.
    pub risen: Option<Instant>,
    /// Moving averages of response times.
    pub times: PeerTimes<Duration>,
    /// The result of health checks.
    pub health: Record,
    /// Requests without an answer yet, counted if the balancing method needs them.
    pub inflight: Inflight,
    /// Changes made by an operator at run time.
    pub changes: Changes,
}

/// The time that each [`Measure`] takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerTimes<T> {
    /// Until the connection is established.
    pub connect: T,
    /// Until the head of the answer, or the first bytes of a session.
    pub first: T,
    /// Until the last byte.
    pub last: T,
}

impl<T: Copy> PeerTimes<T> {
    /// The value of one measure.
    pub fn of(&self, measure: Measure) -> T {
        match measure {
            Measure::Connect => self.connect,
            Measure::First => self.first,
            Measure::Last => self.last,
        }
    }

    /// The value of one measure, to be changed.
    pub fn of_mut(&mut self, measure: Measure) -> &mut T {
        match measure {
            Measure::Connect => &mut self.connect,
            Measure::First => &mut self.first,
            Measure::Last => &mut self.last,
        }
    }
}

/// Requests in flight, and how long they have been waiting. nginx: `least_time ... inflight`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inflight {
    /// Number of requests.
    pub count: u32,
    /// Sum of their waiting times up to `since`.
    pub sum: Duration,
    /// When `count` last changed.
    pub since: Option<Instant>,
    /// Moving average of their mean waiting time.
    pub average: Duration,
}

impl PeerState {
    /// A peer without history. If `must_be_checked`, it is not used before it has passed a health
    /// check.
    pub fn new(peer: Arc<Peer>, must_be_checked: bool) -> PeerState {
        let effective = i64::from(peer.options.weight);
        let mut state = PeerState {
            peer,
            sid: None,
            conns: 0,
            fails: 0,
            current: 0,
            effective,
            accessed: None,
            checked: None,
            risen: None,
            times: PeerTimes::default(),
            health: Record::default(),
            inflight: Inflight::default(),
            changes: Changes::default(),
        };
        if must_be_checked {
            state.require_check(None);
        }
        state
    }

    /// Bars the peer until it passes a health check that begins at `since` or later; `None` for any
    /// check.
    pub fn require_check(&mut self, since: Option<Instant>) {
        self.health = Record::checking(since);
    }

    /// The weight in force.
    pub fn weight(&self) -> u32 {
        self.changes.weight.unwrap_or(self.peer.options.weight)
    }

    /// Which requests the peer serves now.
    pub fn duty(&self) -> Duty {
        self.changes.duty.unwrap_or_else(|| Duty::of(&self.peer.options))
    }

    /// Applies an operator's change. A peer that is put back into service begins its slow start.
    pub fn change(&mut self, change: &dyn Fn(&mut Changes), now: Instant) {
        let (weight, duty) = (self.weight(), self.duty());
        change(&mut self.changes);
        if self.weight() != weight {
            self.effective = self.weight().into();
        }
        if duty != Duty::Up && self.duty() == Duty::Up {
            self.rise(now);
        }
    }

    /// Whether the peer may get any request now.
    pub fn is_usable(&self, now: Instant) -> bool {
        self.duty() == Duty::Up && self.takes_bound(now)
    }

    /// Whether the peer is usable with its full weight and stays so until a request or a check
    /// fails or an operator changes it.
    pub fn is_steady(&self, now: Instant) -> bool {
        let weight = i64::from(self.weight());
        let is_whole = self.effective == weight && self.pull(now) == weight * UNIT;
        let is_unbounded = self.peer.options.max_conns == 0;
        weight > 0 && is_whole && is_unbounded && self.fails == 0 && self.is_usable(now)
    }

    /// Whether the peer may get a request that is bound to it. A draining peer may.
    pub fn takes_bound(&self, now: Instant) -> bool {
        let down = self.duty() == Duty::Down || !self.health.health.allows();
        !(down || self.has_failed(now) || self.is_full())
    }

    /// Whether the peer has `max_conns` connections.
    pub fn is_full(&self) -> bool {
        let most = self.peer.options.max_conns;
        most > 0 && self.conns >= most
    }

    /// The reason why the peer is not used, or `up`. Users see this word.
    pub fn availability(&self, now: Instant) -> &'static str {
        match self.health.health {
            _ if self.duty() == Duty::Down => "down",
            Health::Unhealthy => "unhealthy",
            Health::Checking => "checking",
            Health::Healthy if self.has_failed(now) => "unavail",
            Health::Healthy if self.is_full() => "full",
            Health::Healthy if self.duty() == Duty::Drain => "draining",
            Health::Healthy => "up",
        }
    }

    fn has_failed(&self, now: Instant) -> bool {
        let o = &self.peer.options;
        let recent = || self.checked.is_some_and(|at| since(at, now) <= o.fail_timeout);
        self.fails > 0 && o.max_fails > 0 && self.fails >= o.max_fails && recent()
    }

    /// The weight in force in `UNIT`s, reduced during a slow start. At least 1.
    pub fn share(&self, now: Instant) -> u64 {
        self.ramped(i64::from(self.weight()), now).max(1) as u64
    }

    /// As [`PeerState::share`], of the effective weight. May be 0.
    pub fn pull(&self, now: Instant) -> i64 {
        match self.effective {
            0 => 0,
            weight => self.ramped(weight, now).max(1),
        }
    }

    fn ramped(&self, weight: i64, now: Instant) -> i64 {
        let whole = weight * UNIT;
        let (Some(risen), slow) = (self.risen, self.peer.options.slow_start) else { return whole };
        let age = since(risen, now);
        if age >= slow {
            return whole;
        }
        (i128::from(whole) * age.as_millis() as i128 / slow.as_millis().max(1) as i128) as i64
    }

    /// Counts a connection of a request that chose this peer. If `fail_timeout` has passed, the
    /// request is a trial: a success clears the failures.
    pub fn chosen(&mut self, now: Instant) {
        self.conns += 1;
        if self.checked.is_none_or(|at| since(at, now) > self.peer.options.fail_timeout) {
            self.checked = Some(now);
        }
    }

    /// Counts a failure. True if the peer is unavailable now.
    pub fn failed(&mut self, now: Instant) -> bool {
        let o = &self.peer.options;
        self.fails += 1;
        (self.accessed, self.checked) = (Some(now), Some(now));
        if o.max_fails == 0 {
            return false;
        }
        let step = i64::from(self.changes.weight.unwrap_or(o.weight)) / i64::from(o.max_fails);
        self.effective = (self.effective - step).max(0);
        self.fails >= o.max_fails
    }

    /// Notes a success. It clears the failures if the last one came before `checked`.
    pub fn served(&mut self, now: Instant) {
        if self.accessed < self.checked {
            let most = self.peer.options.max_fails;
            if most > 0 && self.fails >= most {
                self.rise(now);
            }
            self.fails = 0;
        }
    }

    /// Begins the slow start of a recovered peer.
    pub fn rise(&mut self, now: Instant) {
        self.risen = Some(now).filter(|_| !self.peer.options.slow_start.is_zero());
    }

    /// Adds measured times to the averages.
    pub fn timed(&mut self, times: PeerTimes<Option<Duration>>) {
        average(&mut self.times.connect, times.connect);
        average(&mut self.times.first, times.first);
        average(&mut self.times.last, times.last);
    }

    /// Applies the result of a health check. True if it changed the health. Failures of requests
    /// are counted apart and stay.
    pub fn checked(&mut self, verdict: CheckResult, by: crate::Thresholds, now: Instant) -> bool {
        let was = self.health.health;
        let changed = self.health.checked(verdict, by);
        if changed && verdict.passed && was == Health::Unhealthy {
            self.rise(now);
        }
        changed
    }
}

impl Inflight {
    /// Adds the present mean waiting time to the average. Called each time that the method looks at
    /// the peer, as nginx does.
    pub fn update_average(&mut self, now: Instant) {
        if let Some(at) = self.since.filter(|_| self.count > 0) {
            average(&mut self.average, Some(self.sum / self.count + since(at, now)));
        }
    }

    /// Adds a request.
    pub fn add(&mut self, now: Instant) {
        if let Some(at) = self.since.filter(|_| self.count > 0) {
            self.sum += since(at, now) * self.count;
        }
        (self.since, self.count) = (Some(now), self.count + 1);
    }

    /// Removes a request that was in flight for `elapsed`.
    pub fn remove(&mut self, elapsed: Duration, now: Instant) {
        match self.since.filter(|_| self.count > 1) {
            None => self.sum = Duration::ZERO,
            Some(at) => {
                self.sum = (self.sum + since(at, now) * self.count).saturating_sub(elapsed);
                self.since = Some(now);
            }
        }
        self.count = self.count.saturating_sub(1);
    }
}

/// nginx's moving average: the new value counts one twentieth. The first value is taken as it is.
fn average(old: &mut Duration, new: Option<Duration>) {
    *old = match new {
        Some(new) if old.is_zero() => new,
        Some(new) => (*old * 19 + new) / 20,
        None => *old,
    };
}

fn since(at: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(at)
}
