//! The peers of one tier: the usual ones, or the backups.

use std::sync::Arc;
use std::time::Instant;

use crate::Peer;
use crate::changes::Duty;
use crate::rotation::Rotation;
use crate::seat::{PeerState, UNIT};

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

    /// Takes an index out.
    pub fn remove(&mut self, i: usize) {
        if i < 64 {
            self.low &= !(1 << i);
        } else if let Some(bits) = self.high.get_mut(i / 64 - 1) {
            *bits &= !(1 << (i % 64));
        }
    }

    /// Whether the index is in it.
    pub fn contains(&self, i: usize) -> bool {
        if i < 64 {
            return self.low & 1 << i != 0;
        }
        self.high.get(i / 64 - 1).is_some_and(|bits| bits & 1 << (i % 64) != 0)
    }

    /// Nothing was tried.
    pub fn is_empty(&self) -> bool {
        self.low == 0 && self.high.iter().all(|bits| *bits == 0)
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.low = 0;
        self.high.clear();
    }
}

/// One tier of peers.
#[derive(Debug, Clone, Default)]
pub struct PeerSet {
    list: Vec<PeerState>,
    /// Counts changes of the list.
    pub generation: u64,
    /// Requests may be bound to a peer, so that each needs a name for that.
    bound: bool,
    /// Peers must pass a check before they are used.
    guarded: bool,
    random: u64,
    /// The order of turns, while all seats are alike. What they are owed stands in them only when it is settled.
    rotation: Option<Rotation>,
    /// Turns for which each seat was looked at, since an order was looked for or all seats were changed. State that comes from a
    /// zone before each turn would be the end of any order.
    looks: usize,
}

impl PeerSet {
    /// No peer has failed yet.
    pub fn new(peers: Vec<Arc<Peer>>, seed: u64) -> PeerSet {
        let mut seats = PeerSet { random: seed | 1, ..PeerSet::default() };
        seats.replace(peers);
        seats
    }

    /// Takes a new list. Peers that stay keep their state.
    pub fn replace(&mut self, peers: Vec<Arc<Peer>>) {
        self.settle();
        let mut old = std::mem::take(&mut self.list);
        for peer in peers {
            let at = old.iter().position(|s| *s.peer == *peer);
            self.list.push(match at {
                Some(at) => old.swap_remove(at),
                None => PeerState::new(peer, self.guarded),
            });
        }
        self.generation += 1;
        if self.bound {
            self.bind();
        }
    }

    /// The peers.
    pub fn list(&self) -> &[PeerState] {
        &self.list
    }

    /// All of them, to be changed.
    pub fn each_mut(&mut self) -> &mut [PeerState] {
        self.settle();
        self.looks = 0;
        &mut self.list
    }

    /// Changes one of them, in whatever but its weight.
    pub fn change<T>(
        &mut self,
        i: usize,
        now: Instant,
        change: impl FnOnce(&mut PeerState) -> T,
    ) -> Option<T> {
        let seat = self.list.get_mut(i)?;
        let changed = change(seat);
        if self.rotation.is_some() && !seat.is_steady(now) {
            self.settle();
        }
        Some(changed)
    }

    /// Seats are taken in a known order.
    #[cfg(test)]
    pub fn rotates(&self) -> bool {
        self.rotation.is_some()
    }

    /// Seats are no longer taken in a fixed order.
    fn settle(&mut self) {
        if let Some(rotation) = self.rotation.take() {
            rotation.settle(&mut self.list);
        }
    }

    /// Requests may be bound to a peer from now on.
    pub fn bind(&mut self) {
        self.bound = true;
        for seat in &mut self.list {
            seat.sid.get_or_insert_with(|| seat.peer.sid().into());
        }
    }

    /// Peers must pass a check before they are used: those that have not been checked yet, and
    /// those to come.
    pub fn guard(&mut self) {
        self.guarded = true;
        self.each_mut().iter_mut().for_each(|seat| seat.guard(None));
    }

    /// The seat that requests know by this name, if it may serve one that has not tried it.
    pub fn bound_to(&self, sid: &[u8], tried: &Tried, now: Instant) -> Option<usize> {
        let fits = |s: &PeerState| s.sid.as_ref().is_some_and(|own| own.as_bytes() == sid);
        let at = self.list.iter().position(fits)?;
        let free = !tried.contains(at) && self.list.get(at)?.takes_bound(now);
        free.then_some(at)
    }

    /// Whether a request that has not tried this seat may have it now.
    pub fn is_free(&self, i: usize, tried: &Tried, now: Instant) -> bool {
        self.list.get(i).is_some_and(|seat| !tried.contains(i) && seat.is_usable(now))
    }

    /// Sum of their weights.
    pub fn total_weight(&self) -> u64 {
        self.list.iter().map(|s| u64::from(s.weight())).sum()
    }

    /// How many may be tried at all.
    pub fn tries(&self) -> u32 {
        if self.rotation.is_some() {
            return self.list.len() as u32;
        }
        let wanted = |s: &&PeerState| s.duty() == Duty::Up;
        self.list.iter().filter(wanted).count() as u32
    }

    /// The seat that owns this point of the sum of weights.
    pub fn at_weight(&self, mut point: u64) -> usize {
        for (i, seat) in self.list.iter().enumerate() {
            let weight = u64::from(seat.weight());
            if point < weight {
                return i;
            }
            point -= weight;
        }
        0
    }

    /// The seat whose turn it is by smooth weighted round robin.
    pub fn turn(&mut self, tried: &Tried, now: Instant) -> Option<usize> {
        if let Some(rotation) = &mut self.rotation
            && tried.is_empty()
            && let Some(at) = rotation.next()
            && self.list.get(at).is_some_and(|seat| seat.is_usable(now))
        {
            rotation.advance();
            return Some(at);
        }
        let found = self.smooth(tried, now, |_| true);
        self.looks += 1;
        if self.looks >= self.list.len() {
            self.looks = 0;
            self.rotation = Rotation::of(&self.list, now);
        }
        found
    }

    /// Smooth weighted round robin among the free seats that `among` accepts.
    pub fn smooth(
        &mut self,
        tried: &Tried,
        now: Instant,
        among: impl Fn(&PeerState) -> bool,
    ) -> Option<usize> {
        let (best, total) = self.weigh(tried, now, among);
        let i = best?;
        if let Some(seat) = self.list.get_mut(i) {
            seat.current -= total;
        }
        Some(i)
    }

    /// A bound request takes a seat out of its turn, which counts, but no more than one turn ahead: the others
    /// shall not have to make up for all that bound requests bring.
    pub fn out_of_turn(&mut self, i: usize, tried: &Tried, now: Instant) {
        self.settle();
        let Some(seat) = self.list.get(i) else { return };
        let others = self.total_weight().saturating_sub(seat.weight().into());
        if seat.current <= -(others as i64 * UNIT) {
            return;
        }
        let (_, total) = self.weigh(tried, now, |_| true);
        if let Some(seat) = self.list.get_mut(i) {
            seat.current -= total;
        }
    }

    /// Gives each free seat what it is owed; the one that is owed most, and how much was given.
    fn weigh(
        &mut self,
        tried: &Tried,
        now: Instant,
        among: impl Fn(&PeerState) -> bool,
    ) -> (Option<usize>, i64) {
        self.settle();
        let (mut best, mut total) = (None::<(usize, i64)>, 0);
        for i in 0..self.list.len() {
            if !self.is_free(i, tried, now) {
                continue;
            }
            let Some(seat) = self.list.get_mut(i).filter(|seat| among(seat)) else { continue };
            let pull = seat.pull(now);
            seat.current += pull;
            total += pull;
            if seat.effective < i64::from(seat.weight()) {
                seat.effective += 1;
            }
            if best.is_none_or(|(_, most)| seat.current > most) {
                best = Some((i, seat.current));
            }
        }
        (best.map(|(i, _)| i), total)
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
