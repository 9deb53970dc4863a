//! Seats with state in a zone: read from it before a choice, written to it after.
//!
//! The methods of balancing work on plain values, in a zone or not. A choice among ten peers reads
//! some 150 words.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::{Duration, Instant};

use weir_zone::{Claimed, Row, Rows, Zone};

use crate::changes::Changes;
use crate::health::{Health, Record};
use crate::seat::{Inflight, PeerState, PeerTimes};
use crate::seats::PeerSet;

/// Values of a row.
pub const VALUES: usize = 17;

/// Counts, times and debts beyond these mean nothing; within them sums do not overflow.
const MOST: u64 = 1 << 24;
const MOST_MICROS: u64 = 1 << 48;
const MOST_OWED: i64 = 1 << 48;
/// Milliseconds.
const TURN: u64 = 60_000;

/// Where a group's peers stand in a zone.
#[derive(Debug, Default)]
pub struct PeerSlots {
    of: Vec<PeerSlot>,
    /// The list of peers that they belong to.
    generation: u64,
}

/// Where one peer stands.
#[derive(Debug, Clone, Copy)]
pub struct PeerSlot {
    name: u128,
    row: Option<Row>,
}

impl PeerSlots {
    /// Where the peer of a seat stands.
    pub fn get(&self, at: usize) -> Option<PeerSlot> {
        self.of.get(at).copied()
    }

    /// Weights were changed: what was computed from them is computed anew. The peers are the same.
    pub fn reweighed(&mut self, seats: &mut PeerSet) {
        let named = self.generation == seats.generation;
        seats.generation += 1;
        if named {
            self.generation = seats.generation;
        }
    }

    /// Finds out the names of the peers in the zone, if their list has changed.
    fn name(&mut self, group: &str, seats: &PeerSet) {
        if self.generation == seats.generation && self.of.len() == seats.list().len() {
            return;
        }
        self.generation = seats.generation;
        self.of.clear();
        let mut seen = HashMap::new();
        for seat in seats.list() {
            let name = name(group, seat);
            // The same server may be listed twice.
            let nth = seen.entry(name).or_insert(0u128);
            self.of.push(PeerSlot { name: name.wrapping_add(*nth), row: None });
            *nth += 1;
        }
    }
}

/// A zone, held by this thread.
pub struct Board<'z> {
    zone: &'z Zone,
    rows: Rows<'z>,
}

impl<'z> Board<'z> {
    /// Takes the zone.
    pub fn new(zone: &'z Zone) -> Board<'z> {
        Board { zone, rows: zone.rows(VALUES) }
    }

    /// Reads what others have made of one peer of a tier, or of all.
    pub fn read(
        &mut self,
        group: &str,
        seats: &mut PeerSet,
        places: &mut PeerSlots,
        only: Option<usize>,
        now: Instant,
    ) {
        places.name(group, seats);
        let mut reweighed = false;
        for (i, (seat, place)) in seats.each_mut().iter_mut().zip(&mut places.of).enumerate() {
            if only.is_none_or(|only| only == i) {
                let before = seat.changes.weight;
                self.read_one(seat, place, now);
                reweighed |= seat.changes.weight != before;
            }
        }
        if reweighed {
            places.reweighed(seats);
        }
    }

    fn read_one(&mut self, seat: &mut PeerState, place: &mut PeerSlot, now: Instant) {
        if let Some(row) = place.row.filter(|row| self.rows.is(*row, place.name)) {
            return self.load(seat, row, now);
        }
        let claimed = self.rows.claim(place.name, self.zone.msec(now));
        place.row = claimed.map(|claimed| match claimed {
            Claimed::Known(row) => {
                self.load(seat, row, now);
                row
            }
            Claimed::New(row) => {
                seat.conns = 0;
                self.store(seat, row);
                row
            }
        });
    }

    /// Writes what was changed of one peer, or of any.
    pub fn write(&mut self, seats: &PeerSet, places: &PeerSlots, only: Option<usize>) {
        for (i, (seat, place)) in seats.list().iter().zip(&places.of).enumerate() {
            if let Some(row) = place.row.filter(|_| only.is_none_or(|only| only == i)) {
                self.store(seat, row);
            }
        }
    }

    /// A peer was chosen: its connection counts for this process.
    pub fn hold(&mut self, place: PeerSlot, now: Instant) {
        if let Some(row) = place.row {
            self.rows.hold(row);
            self.rows.touch(row, self.zone.msec(now));
        }
    }

    /// The connection is given back.
    pub fn release(&mut self, place: PeerSlot) {
        if let Some(row) = place.row.filter(|row| self.rows.is(*row, place.name)) {
            self.rows.release(row);
        }
    }

    /// Takes what the words can mean: a process that an attacker has taken over may write any.
    fn load(&self, seat: &mut PeerState, row: Row, now: Instant) {
        let word = |i| self.rows.value(row, i);
        let count = |word: u64| word.min(MOST) as u32;
        // An instant that is still to come was written by no process; clocks of loops differ by a turn.
        let latest = self.zone.msec(now) + TURN;
        let instant =
            |i| Some(word(i)).filter(|w| (1..=latest).contains(w)).map(|w| self.zone.instant(w));
        let duration = |i| Duration::from_micros(word(i).min(MOST_MICROS));
        seat.conns = count(self.rows.held(row));
        seat.fails = count(word(0));
        seat.current = (word(1) as i64).clamp(-MOST_OWED, MOST_OWED);
        // Another configuration may have given it another weight.
        seat.changes = Changes::from_word(word(15));
        seat.effective = (word(2) as i64).clamp(0, seat.weight().into());
        seat.accessed = instant(3);
        seat.checked = instant(4);
        seat.risen = instant(5);
        seat.times = PeerTimes { connect: duration(14), first: duration(6), last: duration(7) };
        let against = count(word(9));
        let health = Health::from_word(word(8));
        seat.health = Record { health, against, asked: instant(16) };
        // A killed process does not tell the method that its connections are gone.
        let count = count(word(10)).min(seat.conns);
        let (sum, since, average) = (duration(11), instant(12), duration(13));
        seat.inflight = Inflight { count, sum, since, average };
    }

    fn store(&mut self, seat: &PeerState, row: Row) {
        let msec = |at: Option<Instant>| at.map_or(0, |at| self.zone.msec(at));
        let micros = |d: Duration| d.as_micros() as u64;
        let values: [u64; VALUES] = [
            seat.fails.into(),
            seat.current as u64,
            seat.effective as u64,
            msec(seat.accessed),
            msec(seat.checked),
            msec(seat.risen),
            micros(seat.times.first),
            micros(seat.times.last),
            seat.health.health.to_word(),
            seat.health.against.into(),
            seat.inflight.count.into(),
            micros(seat.inflight.sum),
            msec(seat.inflight.since),
            micros(seat.inflight.average),
            micros(seat.times.connect),
            seat.changes.to_word(),
            msec(seat.health.asked),
        ];
        for (i, value) in values.into_iter().enumerate() {
            self.rows.set_value(row, i, value);
        }
    }
}

/// A peer's name in the zone.
fn name(group: &str, seat: &PeerState) -> u128 {
    // The same in every process: no random keys.
    let hash = BuildHasherDefault::<DefaultHasher>::default();
    let peer = &seat.peer;
    let all = (group, &peer.server, &peer.name, peer.options.backup);
    u128::from(hash.hash_one((0u8, &all))) << 64 | u128::from(hash.hash_one((1u8, &all)))
}
