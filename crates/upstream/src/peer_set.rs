//! The peers of one tier: the primary servers, or the backups.

use std::sync::Arc;
use std::time::Instant;

use crate::Peer;
use crate::changes::Duty;
use crate::peer_state::{PeerState, UNIT};
use crate::rotation::Rotation;

/// The peers that a request has tried, as a set of indices into its tier.
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

    /// Removes an index.
    pub fn remove(&mut self, i: usize) {
        if i < 64 {
            self.low &= !(1 << i);
        } else if let Some(bits) = self.high.get_mut(i / 64 - 1) {
            *bits &= !(1 << (i % 64));
        }
    }

    /// Whether the set has this index.
    pub fn contains(&self, i: usize) -> bool {
        if i < 64 {
            return self.low & 1 << i != 0;
        }
        self.high.get(i / 64 - 1).is_some_and(|bits| bits & 1 << (i % 64) != 0)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.low == 0 && self.high.iter().all(|bits| *bits == 0)
    }

    /// Removes all indices.
    pub fn clear(&mut self) {
        self.low = 0;
        self.high.clear();
    }
}

/// One tier of peers.
#[derive(Debug, Clone, Default)]
pub struct PeerSet {
    list: Vec<PeerState>,
    /// Counts changes of the list, so that a request notices that its indices are stale.
    pub generation: u64,
    /// Requests may be bound to peers, so each peer needs an id.
    bound: bool,
    /// New peers must pass a health check before they are used.
    must_be_checked: bool,
    random: u64,
    /// The round-robin order, while it repeats itself. Current weights are up to date only after
    /// [`PeerSet::settle`].
    rotation: Option<Rotation>,
    /// Choices that scanned all peers, since the last attempt to find a [`Rotation`] or the last
    /// change of all peers. With a zone, state is read before each choice, which would end any
    /// rotation.
    looks: usize,
}

impl PeerSet {
    /// Peers without history. `seed` starts the random sequence.
    pub fn new(peers: Vec<Arc<Peer>>, seed: u64) -> PeerSet {
        let mut set = PeerSet { random: seed | 1, ..PeerSet::default() };
        set.replace(peers);
        set
    }

    /// Replaces the list. Peers that are in both lists keep their state.
    pub fn replace(&mut self, peers: Vec<Arc<Peer>>) {
        self.settle();
        let mut old = std::mem::take(&mut self.list);
        for peer in peers {
            let at = old.iter().position(|s| *s.peer == *peer);
            self.list.push(match at {
                Some(at) => old.swap_remove(at),
                None => PeerState::new(peer, self.must_be_checked),
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

    /// All peers, to be changed in any way.
    pub fn each_mut(&mut self) -> &mut [PeerState] {
        self.settle();
        self.looks = 0;
        &mut self.list
    }

    /// Changes one peer. `change` must not change its weight.
    pub fn change<T>(
        &mut self,
        i: usize,
        now: Instant,
        change: impl FnOnce(&mut PeerState) -> T,
    ) -> Option<T> {
        let state = self.list.get_mut(i)?;
        let changed = change(state);
        if self.rotation.is_some() && !state.is_steady(now) {
            self.settle();
        }
        Some(changed)
    }

    /// Whether peers are chosen by a [`Rotation`].
    #[cfg(test)]
    pub fn rotates(&self) -> bool {
        self.rotation.is_some()
    }

    /// Ends the rotation and writes the current weights that it stands for.
    fn settle(&mut self) {
        if let Some(rotation) = self.rotation.take() {
            rotation.settle(&mut self.list);
        }
    }

    /// Gives each peer an id, so that requests can be bound to it.
    pub fn bind(&mut self) {
        self.bound = true;
        for state in &mut self.list {
            state.sid.get_or_insert_with(|| state.peer.sid().into());
        }
    }

    /// Bars all peers, and peers that are added later, until they pass a health check.
    pub fn require_check(&mut self) {
        self.must_be_checked = true;
        self.each_mut().iter_mut().for_each(|state| state.require_check(None));
    }

    /// The peer with this id, if the request has not tried it and it accepts bound requests.
    pub fn bound_to(&self, sid: &[u8], tried: &Tried, now: Instant) -> Option<usize> {
        let fits = |s: &PeerState| s.sid.as_ref().is_some_and(|own| own.as_bytes() == sid);
        let at = self.list.iter().position(fits)?;
        let free = !tried.contains(at) && self.list.get(at)?.takes_bound(now);
        free.then_some(at)
    }

    /// Whether the peer is usable and was not tried.
    pub fn is_free(&self, i: usize, tried: &Tried, now: Instant) -> bool {
        self.list.get(i).is_some_and(|state| !tried.contains(i) && state.is_usable(now))
    }

    /// The sum of the weights.
    pub fn total_weight(&self) -> u64 {
        self.list.iter().map(|s| u64::from(s.weight())).sum()
    }

    /// How many peers a request may try.
    pub fn tries(&self) -> u32 {
        if self.rotation.is_some() {
            return self.list.len() as u32;
        }
        let wanted = |s: &&PeerState| s.duty() == Duty::Up;
        self.list.iter().filter(wanted).count() as u32
    }

    /// The peer at this point of the weights laid end to end.
    pub fn at_weight(&self, mut point: u64) -> usize {
        for (i, state) in self.list.iter().enumerate() {
            let weight = u64::from(state.weight());
            if point < weight {
                return i;
            }
            point -= weight;
        }
        0
    }

    /// The next peer by smooth weighted round robin.
    pub fn turn(&mut self, tried: &Tried, now: Instant) -> Option<usize> {
        if let Some(rotation) = &mut self.rotation
            && tried.is_empty()
            && let Some(at) = rotation.next()
            && self.list.get(at).is_some_and(|state| state.is_usable(now))
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

    /// Smooth weighted round robin among the free peers that `among` accepts.
    pub fn smooth(
        &mut self,
        tried: &Tried,
        now: Instant,
        among: impl Fn(&PeerState) -> bool,
    ) -> Option<usize> {
        let (best, total) = self.weigh(tried, now, among);
        let i = best?;
        if let Some(state) = self.list.get_mut(i) {
            state.current -= total;
        }
        Some(i)
    }

    /// Counts a bound request as a turn of its peer, but at most one turn in advance. Otherwise the
    /// peer would get no other requests until the rest had made up for all its bound ones.
    pub fn out_of_turn(&mut self, i: usize, tried: &Tried, now: Instant) {
        self.settle();
        let Some(state) = self.list.get(i) else { return };
        let others = self.total_weight().saturating_sub(state.weight().into());
        if state.current <= -(others as i64 * UNIT) {
            return;
        }
        let (_, total) = self.weigh(tried, now, |_| true);
        if let Some(state) = self.list.get_mut(i) {
            state.current -= total;
        }
    }

    /// Adds to each free peer its effective weight. Returns the peer with the largest current
    /// weight, and the sum that was added.
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
            let Some(state) = self.list.get_mut(i).filter(|state| among(state)) else { continue };
            let pull = state.pull(now);
            state.current += pull;
            total += pull;
            if state.effective < i64::from(state.weight()) {
                state.effective += 1;
            }
            if best.is_none_or(|(_, most)| state.current > most) {
                best = Some((i, state.current));
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
