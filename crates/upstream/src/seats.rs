//! The peers of one tier (the usual ones, or the backups) with what changes while they serve.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Peer;

/// A peer at work.
#[derive(Debug, Clone)]
pub struct Seat {
    /// Who sits here.
    pub peer: Arc<Peer>,
    /// Connections in use.
    pub conns: u32,
    /// Failures that count.
    pub fails: u32,
    /// Smooth weighted round robin: what it is owed.
    pub current: i64,
    /// Its weight, lowered by failures and recovering step by step.
    pub effective: i64,
    /// When it failed last.
    pub accessed: Option<Instant>,
    /// When its failures began to count.
    pub checked: Option<Instant>,
    /// Moving average of the time to the head of an answer.
    pub header_time: Duration,
    /// Moving average of the time to an answer's last byte.
    pub response_time: Duration,
}

/// Which seats a request has tried: a set of indices.
#[derive(Debug, Clone, Default)]
pub struct Tried {
    low: u64,
    high: Vec<u64>,
}

impl Tried {
    /// Adds an index.
    pub fn insert(&mut self, i: usize) {
        if i < 64 {
            self.low |= 1 << i;
            return;
        }
        let word = i / 64 - 1;
        if self.high.len() <= word {
            self.high.resize(word + 1, 0);
        }
        if let Some(bits) = self.high.get_mut(word) {
            *bits |= 1 << (i % 64);
        }
    }

    /// Whether the index is in it.
    pub fn contains(&self, i: usize) -> bool {
        if i < 64 {
            return self.low & 1 << i != 0;
        }
        self.high.get(i / 64 - 1).is_some_and(|bits| bits & 1 << (i % 64) != 0)
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.low = 0;
        self.high.clear();
    }
}

/// One tier of peers.
#[derive(Debug, Clone, Default)]
pub struct Seats {
    /// The peers.
    pub list: Vec<Seat>,
    /// Sum of their weights.
    pub total_weight: u64,
    /// Counts changes of the list.
    pub generation: u64,
    random: u64,
}

impl Seats {
    /// Nobody has failed yet.
    pub fn new(peers: Vec<Arc<Peer>>, seed: u64) -> Seats {
        let mut seats = Seats { random: seed | 1, ..Seats::default() };
        seats.replace(peers);
        seats
    }

    /// Takes a new list; those who stay keep their state.
    pub fn replace(&mut self, peers: Vec<Arc<Peer>>) {
        let mut old = std::mem::take(&mut self.list);
        for peer in peers {
            let at = old.iter().position(|s| *s.peer == *peer);
            self.list.push(match at {
                Some(at) => old.swap_remove(at),
                None => Seat::new(peer),
            });
        }
        self.total_weight = self.list.iter().map(|s| u64::from(s.peer.options.weight)).sum();
        self.generation += 1;
    }

    /// Whether a request that has not tried this seat may have it now.
    pub fn is_free(&self, i: usize, tried: &Tried, now: Instant) -> bool {
        self.list.get(i).is_some_and(|seat| !tried.contains(i) && seat.is_usable(now))
    }

    /// How many may be tried at all.
    pub fn tries(&self) -> u32 {
        self.list.iter().filter(|s| !s.peer.options.down).count() as u32
    }

    /// The seat that owns this point of the sum of weights.
    pub fn at_weight(&self, mut point: u64) -> usize {
        for (i, seat) in self.list.iter().enumerate() {
            let weight = u64::from(seat.peer.options.weight);
            if point < weight {
                return i;
            }
            point -= weight;
        }
        0
    }

    /// Smooth weighted round robin among the free seats that `among` accepts.
    pub fn smooth(
        &mut self,
        tried: &Tried,
        now: Instant,
        among: impl Fn(&Seat) -> bool,
    ) -> Option<usize> {
        let (mut best, mut total) = (None::<(usize, i64)>, 0);
        for i in 0..self.list.len() {
            if !self.is_free(i, tried, now) {
                continue;
            }
            let Some(seat) = self.list.get_mut(i).filter(|seat| among(seat)) else { continue };
            seat.current += seat.effective;
            total += seat.effective;
            if seat.effective < i64::from(seat.peer.options.weight) {
                seat.effective += 1;
            }
            if best.is_none_or(|(_, most)| seat.current > most) {
                best = Some((i, seat.current));
            }
        }
        let (i, _) = best?;
        if let Some(seat) = self.list.get_mut(i) {
            seat.current -= total;
        }
        Some(i)
    }

    /// The next number of the tier's own sequence (xorshift64).
    pub fn random(&mut self) -> u64 {
        let mut x = self.random;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random = x;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

impl Seat {
    fn new(peer: Arc<Peer>) -> Seat {
        let effective = i64::from(peer.options.weight);
        Seat {
            peer,
            conns: 0,
            fails: 0,
            current: 0,
            effective,
            accessed: None,
            checked: None,
            header_time: Duration::ZERO,
            response_time: Duration::ZERO,
        }
    }

    fn is_usable(&self, now: Instant) -> bool {
        let o = &self.peer.options;
        !(o.down || self.has_failed(now) || self.is_full())
    }

    /// All the connections that it may have are in use.
    pub fn is_full(&self) -> bool {
        let most = self.peer.options.max_conns;
        most > 0 && self.conns >= most
    }

    fn has_failed(&self, now: Instant) -> bool {
        let o = &self.peer.options;
        let recent = self.checked.is_some_and(|at| since(at, now) <= o.fail_timeout);
        o.max_fails > 0 && self.fails >= o.max_fails && recent
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
        let step = i64::from(o.weight) / i64::from(o.max_fails);
        self.effective = (self.effective - step).max(0);
        self.fails >= o.max_fails
    }

    /// It served: failures before the last check are forgotten.
    pub fn served(&mut self) {
        if self.accessed < self.checked {
            self.fails = 0;
        }
    }

    /// Notes how long an answer took.
    pub fn timed(&mut self, header: Option<Duration>, response: Option<Duration>) {
        let average = |old: Duration, new: Option<Duration>| match new {
            Some(new) if old.is_zero() => new,
            Some(new) => (old * 19 + new) / 20,
            None => old,
        };
        self.header_time = average(self.header_time, header);
        self.response_time = average(self.response_time, response);
    }
}

fn since(at: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(at)
}
