//! A peer with the state that changes while it serves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Peer;
use crate::balance::Measure;
use crate::changes::{Changes, Duty};
use crate::health::{CheckResult, Health, Record};

/// A weight of 1, in which a slow start can be told in steps.
pub const UNIT: i64 = 256;

/// A peer of a group, with what its balancing needs to know. nginx: ngx_http_upstream_rr_peer_t.
#[derive(Debug, Clone)]
pub struct PeerState {
    /// The server.
    pub peer: Arc<Peer>,
    /// What bound requests know it by, where requests are bound.
    pub sid: Option<Box<str>>,
    /// Connections in use.
    pub conns: u32,
    /// Failures that count.
    pub fails: u32,
    /// Smooth weighted round robin: what it is owed, in `UNIT`s.
    pub current: i64,
    /// Its weight, lowered by failures and recovering step by step.
    pub effective: i64,
    /// When it failed last.
    pub accessed: Option<Instant>,
    /// When its failures began to count.
    pub checked: Option<Instant>,
    /// When it came back from a failure: its slow start.
    pub risen: Option<Instant>,
    /// Moving averages of its times.
    pub times: PeerTimes<Duration>,
    /// What its checks say.
    pub health: Record,
    /// Requests that are not answered yet, where the method asks.
    pub inflight: Inflight,
    /// What was changed of it while it serves.
    pub changes: Changes,
}

/// How long what a [`Measure`] names takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerTimes<T> {
    /// Until there is a connection.
    pub connect: T,
    /// To the head of an answer, or to a session's first bytes.
    pub first: T,
    /// To the last byte.
    pub last: T,
}

impl<T: Copy> PeerTimes<T> {
    /// One of them.
    pub fn of(&self, measure: Measure) -> T {
        match measure {
            Measure::Connect => self.connect,
            Measure::First => self.first,
            Measure::Last => self.last,
        }
    }

    /// The place of one of them.
    pub fn of_mut(&mut self, measure: Measure) -> &mut T {
        match measure {
            Measure::Connect => &mut self.connect,
            Measure::First => &mut self.first,
            Measure::Last => &mut self.last,
        }
    }
}

/// Requests in flight, and how long they have been.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Inflight {
    /// How many.
    pub count: u32,
    /// Sum of their times up to `since`.
    pub sum: Duration,
    /// When their number last changed.
    pub since: Option<Instant>,
    /// Moving average of their mean time.
    pub average: Duration,
}

impl PeerState {
    /// Nothing is known of the peer yet.
    pub fn new(peer: Arc<Peer>, guarded: bool) -> PeerState {
        let effective = i64::from(peer.options.weight);
        let mut seat = PeerState {
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
        if guarded {
            seat.guard(None);
        }
        seat
    }

    /// It must pass a check before it is used, which is asked from `since` on.
    pub fn guard(&mut self, since: Option<Instant>) {
        self.health = Record::checking(since);
    }

    /// Its weight as it is now.
    pub fn weight(&self) -> u32 {
        self.changes.weight.unwrap_or(self.peer.options.weight)
    }

    /// Which requests it serves now.
    pub fn duty(&self) -> Duty {
        self.changes.duty.unwrap_or_else(|| Duty::of(&self.peer.options))
    }

    /// Applies a change. A peer that comes back begins slowly, where that is configured.
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

    /// It serves all that the method sends.
    pub fn is_usable(&self, now: Instant) -> bool {
        self.duty() == Duty::Up && self.takes_bound(now)
    }

    /// It is usable with its whole weight, and remains so until a request fails, a check does, or it is changed.
    pub fn is_steady(&self, now: Instant) -> bool {
        let weight = i64::from(self.weight());
        let is_whole = self.effective == weight && self.pull(now) == weight * UNIT;
        let is_unbounded = self.peer.options.max_conns == 0;
        weight > 0 && is_whole && is_unbounded && self.fails == 0 && self.is_usable(now)
    }

    /// It serves requests that are bound to it.
    pub fn takes_bound(&self, now: Instant) -> bool {
        let down = self.duty() == Duty::Down || !self.health.health.allows();
        !(down || self.has_failed(now) || self.is_full())
    }

    /// All the connections that it may have are in use.
    pub fn is_full(&self) -> bool {
        let most = self.peer.options.max_conns;
        most > 0 && self.conns >= most
    }

    /// What keeps it from being used, or `up`.
    pub fn state(&self, now: Instant) -> &'static str {
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

    /// Its share of requests now: its weight in `UNIT`s, less while it starts slowly. Never 0.
    pub fn share(&self, now: Instant) -> u64 {
        self.ramped(i64::from(self.weight()), now).max(1) as u64
    }

    /// The same of its effective weight; may be 0.
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

    /// It was chosen: its connection counts, and an old failure is about to be forgiven.
    pub fn chosen(&mut self, now: Instant) {
        self.conns += 1;
        if self.checked.is_none_or(|at| since(at, now) > self.peer.options.fail_timeout) {
            self.checked = Some(now);
        }
    }

    /// A failure; true if it made the peer unavailable.
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

    /// It served: failures before the last check are forgotten.
    pub fn served(&mut self, now: Instant) {
        if self.accessed < self.checked {
            let most = self.peer.options.max_fails;
            if most > 0 && self.fails >= most {
                self.rise(now);
            }
            self.fails = 0;
        }
    }

    /// It is back: begins its slow start.
    pub fn rise(&mut self, now: Instant) {
        self.risen = Some(now).filter(|_| !self.peer.options.slow_start.is_zero());
    }

    /// Notes how long something took.
    pub fn timed(&mut self, times: PeerTimes<Option<Duration>>) {
        average(&mut self.times.connect, times.connect);
        average(&mut self.times.first, times.first);
        average(&mut self.times.last, times.last);
    }

    /// What a check has found; true if it changed the state. Failures of requests are another matter, and stay.
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
    /// The mean time so far, smoothed; called at each look, as nginx does.
    pub fn look(&mut self, now: Instant) {
        if let Some(at) = self.since.filter(|_| self.count > 0) {
            average(&mut self.average, Some(self.sum / self.count + since(at, now)));
        }
    }

    /// One more.
    pub fn begin(&mut self, now: Instant) {
        if let Some(at) = self.since.filter(|_| self.count > 0) {
            self.sum += since(at, now) * self.count;
        }
        (self.since, self.count) = (Some(now), self.count + 1);
    }

    /// One less, which took so long.
    pub fn end(&mut self, took: Duration, now: Instant) {
        match self.since.filter(|_| self.count > 1) {
            None => self.sum = Duration::ZERO,
            Some(at) => {
                self.sum = (self.sum + since(at, now) * self.count).saturating_sub(took);
                self.since = Some(now);
            }
        }
        self.count = self.count.saturating_sub(1);
    }
}

/// A moving average as nginx makes it: a twentieth of what is new.
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
