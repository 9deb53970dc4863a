//! The state of peers in a zone: it is read before a choice and written after it.
//!
//! Balancing methods work on plain values, with a zone or without. A choice among ten peers reads
//! about 150 words.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use weir_zone::{Claimed, Row, Rows, Zone};

use crate::changes::Changes;
use crate::health::{Health, Record};
use crate::peer_set::PeerSet;
use crate::peer_state::{Inflight, PeerState, PeerTimes};

/// Words of a row.
pub const VALUES: usize = 17;

/// Limits for counts, times and current weights that are read. Sums of values within them do not
/// overflow.
const MOST: u64 = 1 << 24;
const MOST_MICROS: u64 = 1 << 48;
const MOST_OWED: i64 = 1 << 48;
/// How far the clocks of two loops may be apart, in milliseconds.
const CLOCK_SKEW: u64 = 60_000;

/// The rows of a tier's peers in a zone.
#[derive(Debug, Default)]
pub struct PeerSlots {
    of: Vec<PeerSlot>,
    /// The [generation](PeerSet::generation) of the list that the slots belong to.
    generation: u64,
}

/// The key of a peer in the zone, and its row once that is known.
#[derive(Debug, Clone, Copy)]
pub struct PeerSlot {
    name: u128,
    row: Option<Row>,
}

impl PeerSlots {
    /// The slot of a peer.
    pub fn get(&self, at: usize) -> Option<PeerSlot> {
        self.of.get(at).copied()
    }

    /// Raises the generation after a change of weights, so that methods compute their tables again.
    /// The peers are the same, so the slots stay valid.
    pub fn reweighed(&mut self, peers: &mut PeerSet) {
        let named = self.generation == peers.generation;
        peers.generation += 1;
        if named {
            self.generation = peers.generation;
        }
    }

    /// Computes the keys of the peers, if the list has changed.
    fn name(&mut self, group: &str, peers: &PeerSet) {
        if self.generation == peers.generation && self.of.len() == peers.list().len() {
            return;
        }
        self.generation = peers.generation;
        self.of.clear();
        let mut seen = HashMap::new();
        for state in peers.list() {
            let name = name(group, state);
            // A server that is listed twice has two rows.
            let nth = seen.entry(name).or_insert(0u128);
            self.of.push(PeerSlot { name: name.wrapping_add(*nth), row: None });
            *nth += 1;
        }
    }
}

/// A zone whose lock this thread holds.
pub struct Board<'z> {
    zone: &'z Zone,
    rows: Rows<'z>,
}

impl<'z> Board<'z> {
    /// Locks the zone.
    pub fn new(zone: &'z Zone) -> Board<'z> {
        Board { zone, rows: zone.rows(VALUES) }
    }

    /// Reads the state of one peer of a tier, or of all.
    pub fn read(
        &mut self,
        group: &str,
        peers: &mut PeerSet,
        slots: &mut PeerSlots,
        only: Option<usize>,
        now: Instant,
    ) {
        slots.name(group, peers);
        let mut reweighed = false;
        for (i, (state, slot)) in peers.each_mut().iter_mut().zip(&mut slots.of).enumerate() {
            if only.is_none_or(|only| only == i) {
                let before = state.changes.weight;
                self.read_one(state, slot, now);
                reweighed |= state.changes.weight != before;
            }
        }
        if reweighed {
            slots.reweighed(peers);
        }
    }

    fn read_one(&mut self, state: &mut PeerState, slot: &mut PeerSlot, now: Instant) {
        if let Some(row) = slot.row.filter(|row| self.rows.is(*row, slot.name)) {
            return self.load(state, row, now);
        }
        let claimed = self.rows.claim(slot.name, self.zone.msec(now));
        slot.row = claimed.map(|claimed| match claimed {
            Claimed::Known(row) => {
                self.load(state, row, now);
                row
            }
            Claimed::New(row) => {
                state.conns = 0;
                self.store(state, row);
                row
            }
        });
    }

    /// Writes the state of one peer, or of all.
    pub fn write(&mut self, peers: &PeerSet, slots: &PeerSlots, only: Option<usize>) {
        for (i, (state, slot)) in peers.list().iter().zip(&slots.of).enumerate() {
            if let Some(row) = slot.row.filter(|_| only.is_none_or(|only| only == i)) {
                self.store(state, row);
            }
        }
    }

    /// Counts a connection to the peer, in the name of this process. If the process dies, the zone
    /// subtracts its connections.
    pub fn hold(&mut self, slot: PeerSlot, now: Instant) {
        if let Some(row) = slot.row {
            self.rows.hold(row);
            self.rows.touch(row, self.zone.msec(now));
        }
    }

    /// Subtracts a connection.
    pub fn release(&mut self, slot: PeerSlot) {
        if let Some(row) = slot.row.filter(|row| self.rows.is(*row, slot.name)) {
            self.rows.release(row);
        }
    }

    /// Reads a row, with each value clamped to its range. A compromised process may write any
    /// words.
    fn load(&self, state: &mut PeerState, row: Row, now: Instant) {
        let word = |i| self.rows.value(row, i);
        let count = |word: u64| word.min(MOST) as u32;
        // A time in the future is invalid. The clock of another loop may be ahead by a turn.
        let latest = self.zone.msec(now) + CLOCK_SKEW;
        let instant =
            |i| Some(word(i)).filter(|w| (1..=latest).contains(w)).map(|w| self.zone.instant(w));
        let duration = |i| Duration::from_micros(word(i).min(MOST_MICROS));
        state.conns = count(self.rows.held(row));
        state.fails = count(word(0));
        state.current = (word(1) as i64).clamp(-MOST_OWED, MOST_OWED);
        // Another configuration may have written an effective weight above this peer's weight.
        state.changes = Changes::from_word(word(15));
        state.effective = (word(2) as i64).clamp(0, state.weight().into());
        state.accessed = instant(3);
        state.checked = instant(4);
        state.risen = instant(5);
        state.times = PeerTimes { connect: duration(14), first: duration(6), last: duration(7) };
        let against = count(word(9));
        let health = Health::from_word(word(8));
        state.health = Record { health, against, asked: instant(16) };
        // A process that was killed did not subtract its requests in flight. The zone subtracts its
        // connections, which bound them.
        let count = count(word(10)).min(state.conns);
        let (sum, since, average) = (duration(11), instant(12), duration(13));
        state.inflight = Inflight { count, sum, since, average };
    }

    fn store(&mut self, state: &PeerState, row: Row) {
        let msec = |at: Option<Instant>| at.map_or(0, |at| self.zone.msec(at));
        let micros = |d: Duration| d.as_micros() as u64;
        let values: [u64; VALUES] = [
            state.fails.into(),
            state.current as u64,
            state.effective as u64,
            msec(state.accessed),
            msec(state.checked),
            msec(state.risen),
            micros(state.times.first),
            micros(state.times.last),
            state.health.health.to_word(),
            state.health.against.into(),
            state.inflight.count.into(),
            micros(state.inflight.sum),
            msec(state.inflight.since),
            micros(state.inflight.average),
            micros(state.times.connect),
            state.changes.to_word(),
            msec(state.health.asked),
        ];
        for (i, value) in values.into_iter().enumerate() {
            self.rows.set_value(row, i, value);
        }
    }
}

/// The key of a peer in the zone.
fn name(group: &str, state: &PeerState) -> u128 {
    // The hash must be the same in every process, so it has no random keys.
    let hash = BuildHasherDefault::<DefaultHasher>::default();
    let peer = &state.peer;
    let all = (group, &peer.server, &peer.name, peer.options.backup);
    u128::from(hash.hash_one((0u8, &all))) << 64 | u128::from(hash.hash_one((1u8, &all)))
}
