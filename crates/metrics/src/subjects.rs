//! Counters under names: zones of servers and locations, upstream servers, caches.
//!
//! Each loop has its own cell for each name that it counts under, so it counts with plain stores.
//! It takes cells out of memory that all processes share, at its start or when it needs a new name.
//! Readers add up the cells of a name. The number of cells is limited. Beyond it, a loop counts all
//! further names of a kind in one cell.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use crate::layout::{HEAD, LINE};
use crate::{Registry, histogram};

mod counted;
mod outcomes;

pub use counted::{AllCounted, Counted, Counting};
pub use outcomes::Outcomes;

/// The kind of thing that a name belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubjectKind {
    /// `status_zone` of servers and locations.
    Zone,
    /// Upstream servers of requests.
    Peer,
    /// Upstream servers of sessions.
    StreamPeer,
    /// Caches.
    Cache,
    /// File pools.
    Pool,
    /// Requests that wait for a free server of an `upstream`.
    Queue,
}

const KINDS: [SubjectKind; 6] = [
    SubjectKind::Zone,
    SubjectKind::Peer,
    SubjectKind::StreamPeer,
    SubjectKind::Cache,
    SubjectKind::Pool,
    SubjectKind::Queue,
];

/// The name that pages show for counts without a cell of their own.
pub const OTHERS: &str = "(others)";

/// The most names that a loop counts separately at a time.
pub const MOST_NAMES: usize = 8000;

/// The number of cells for all loops and names. Unused cells take no memory.
pub const MOST_CELLS: usize = 64 << 10;

/// The words of a cell: its tally (0 for none), its name, the times of the last success and
/// failure, the reason of the failure, the failures in a row and since when, the numbers, and the
/// histogram.
const OWNER: usize = 0;
const NAME: usize = 1;
const SUCCESS: usize = 2;
const FAILURE: usize = 3;
const REASON: usize = 4;
const IN_A_ROW: usize = 5;
const FAILING: usize = 6;
const NUMBERS: usize = 7;
const TIMES: usize = NUMBERS + COUNTS;
const CELL: usize = (TIMES + histogram::WORDS).next_multiple_of(LINE);

/// The numbers of a cell. Their meaning comes from the code that counts; the last one is a gauge.
pub const COUNTS: usize = 16;
/// The index of the gauge.
pub const GAUGE: usize = COUNTS - 1;

/// The words before the cells: how many were ever used, and about how many of these were given
/// back.
const GIVEN_BACK: usize = 1;

/// The words of all cells, and those before them.
pub(crate) const WORDS: usize = LINE + MOST_CELLS * CELL;

/// A loop's counters under one name.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    words: &'static [AtomicU64],
}

impl Cell {
    /// Adds to a number.
    #[inline]
    pub fn add(&self, at: usize, n: u64) {
        self.change(NUMBERS + at.min(GAUGE), |value| value.wrapping_add(n));
    }

    /// Subtracts from the gauge.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.change(NUMBERS + GAUGE, |value| value.wrapping_sub(n));
    }

    /// Sets the gauge.
    #[inline]
    pub fn set(&self, n: u64) {
        self.change(NUMBERS + GAUGE, |_| n);
    }

    /// Adds a time to the histogram.
    #[inline]
    pub fn record(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.change(TIMES + histogram::bucket(micros), |n| n.wrapping_add(1));
        self.change(TIMES + histogram::COUNT, |n| n.wrapping_add(1));
        self.change(TIMES + histogram::SUM, |n| n.wrapping_add(micros));
    }

    /// Records a success at this time, in milliseconds since 1970.
    #[inline]
    pub fn succeeded(&self, at: u64) {
        // Keeps the order of two results within a millisecond.
        let after = load(self.words, FAILURE).saturating_add(1);
        self.change(SUCCESS, |_| at.max(after));
        self.change(IN_A_ROW, |_| 0);
    }

    /// Records a failure. The code that counts knows the meaning of `reason`.
    pub fn failed(&self, at: u64, reason: u64) {
        let after = load(self.words, SUCCESS).saturating_add(1);
        self.change(REASON, |_| reason);
        self.change(FAILURE, |_| at.max(after));
        if load(self.words, IN_A_ROW) == 0 {
            self.change(FAILING, |_| at.max(after));
        }
        self.change(IN_A_ROW, |n| n.wrapping_add(1));
    }

    /// A load and a store are enough, since only this loop writes here.
    #[inline]
    fn change(&self, at: usize, change: impl FnOnce(u64) -> u64) {
        if let Some(word) = self.words.get(at) {
            word.store(change(word.load(Relaxed)), Relaxed);
        }
    }
}

/// The cells of one loop.
#[derive(Debug)]
pub struct Cells {
    registry: Registry,
    tally: usize,
    known: RefCell<HashMap<u64, Option<Cell>>>,
    /// How many holders each name has.
    held: RefCell<HashMap<u64, usize>>,
}

/// A name that keeps its cell until it is released.
#[derive(Debug)]
pub struct HeldName(u64);

impl Cells {
    /// For the loop with this tally.
    pub fn new(registry: Registry, tally: usize) -> Cells {
        Cells { registry, tally, known: RefCell::default(), held: RefCell::default() }
    }

    /// The registry of all loops' counters.
    pub fn registry(&self) -> Registry {
        self.registry
    }

    /// The cell of a name. Callers look it up once and keep it.
    pub fn of(&self, kind: SubjectKind, name: &str) -> Option<Cell> {
        let mut known = self.known.borrow_mut();
        if known.is_empty() {
            for kind in KINDS {
                known.insert(others(kind), take(&self.registry, self.tally, others(kind)));
            }
        }
        let name = hash(kind, name);
        if let Some(cell) = known.get(&name) {
            return *cell;
        }
        let own = (known.len() < MOST_NAMES + KINDS.len())
            .then(|| take(&self.registry, self.tally, name))
            .flatten();
        let cell = own.or_else(|| known.get(&others(kind)).copied().flatten());
        if own.is_some() {
            known.insert(name, cell);
        }
        cell
    }

    /// The cell of a name, which keeps the cell until all its holders release it.
    pub fn hold(&self, kind: SubjectKind, name: &str) -> Option<(Cell, HeldName)> {
        let cell = self.of(kind, name)?;
        let name = hash(kind, name);
        *self.held.borrow_mut().entry(name).or_default() += 1;
        Some((cell, HeldName(name)))
    }

    /// Releases a name that was held.
    pub fn release(&self, HeldName(name): HeldName) {
        let mut held = self.held.borrow_mut();
        let Some(count) = held.get_mut(&name) else { return };
        *count -= 1;
        if *count == 0 {
            held.remove(&name);
            self.give_back_hashed(name);
        }
    }

    /// Gives back the cell of a name. This loop must not count there any more.
    pub fn give_back(&self, kind: SubjectKind, name: &str) {
        self.give_back_hashed(hash(kind, name));
    }

    fn give_back_hashed(&self, name: u64) {
        let Some(Some(cell)) = self.known.borrow_mut().remove(&name) else { return };
        let Some((_, given_back, _)) = parts(&self.registry) else { return };
        clear(cell.words);
        given_back.fetch_add(1, SeqCst);
    }
}

/// Empties a cell for its next owner.
fn clear(words: &[AtomicU64]) {
    for at in NAME..CELL {
        store(words, at, 0);
    }
    store(words, OWNER, 0);
}

/// Takes a cell for a tally: one that was given back, or an unused one.
fn take(registry: &Registry, tally: usize, name: u64) -> Option<Cell> {
    let (used, given_back, cells) = parts(registry)?;
    let from = used.load(SeqCst) as usize;
    let again = if given_back.load(SeqCst) > 0 { 0..from.min(MOST_CELLS) } else { 0..0 };
    let is_again = |i: usize| i < again.end;
    for i in again.clone().chain(from..MOST_CELLS) {
        let Some(words) = cells.get(i * CELL..(i + 1) * CELL) else { break };
        let owner = words.first()?;
        if owner.load(Relaxed) == 0
            && owner.compare_exchange(0, tally as u64 + 1, SeqCst, SeqCst).is_ok()
        {
            words.get(NAME)?.store(name, SeqCst);
            used.fetch_max(i as u64 + 1, SeqCst);
            if is_again(i) {
                // The number is only a hint. If it is wrong, a search finds nothing.
                let _ = given_back.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
            }
            return Some(Cell { words });
        }
    }
    None
}

/// Moves the counts of a tally to tally `to`.
pub(crate) fn bury(registry: &Registry, tally: usize, to: usize) {
    let of = |tally: usize| tally as u64 + 1;
    let mut owned: HashMap<u64, &[AtomicU64]> = HashMap::new();
    for words in used(registry).filter(|words| load(words, OWNER) == of(to)) {
        owned.insert(load(words, NAME), words);
    }
    for words in used(registry).filter(|words| load(words, OWNER) == of(tally)) {
        store(words, NUMBERS + GAUGE, 0);
        match owned.get(&load(words, NAME)) {
            None => {
                owned.insert(load(words, NAME), words);
                store(words, OWNER, of(to));
            }
            Some(into) => {
                Outcomes::of(into).merged(Outcomes::of(words)).store(into);
                for at in NUMBERS..CELL {
                    store(into, at, load(into, at).wrapping_add(load(words, at)));
                }
                clear(words);
                if let Some((_, given_back, _)) = parts(registry) {
                    given_back.fetch_add(1, SeqCst);
                }
            }
        }
    }
}

fn load(words: &[AtomicU64], at: usize) -> u64 {
    words.get(at).map_or(0, |word| word.load(SeqCst))
}

fn store(words: &[AtomicU64], at: usize, value: u64) {
    if let Some(word) = words.get(at) {
        word.store(value, SeqCst);
    }
}

/// The two numbers before the cells, and the cells.
fn parts(
    registry: &Registry,
) -> Option<(&'static AtomicU64, &'static AtomicU64, &'static [AtomicU64])> {
    let words = registry.words.get(HEAD..)?.get(..WORDS)?;
    Some((words.first()?, words.get(GIVEN_BACK)?, words.get(LINE..)?))
}

/// The cells that were ever used. Reading others would make the kernel allocate their memory.
fn used(registry: &Registry) -> impl Iterator<Item = &'static [AtomicU64]> {
    let found = parts(registry).map(|(used, _, cells)| {
        let used = used.load(SeqCst) as usize;
        cells.chunks_exact(CELL).take(used)
    });
    found.into_iter().flatten()
}

fn hash(kind: SubjectKind, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (kind, name).hash(&mut hasher);
    hasher.finish()
}

/// A key that no name has.
fn others(kind: SubjectKind) -> u64 {
    hash(kind, "\0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry() -> Registry {
        let words: Vec<_> = (0..Registry::words_for(4)).map(|_| AtomicU64::new(0)).collect();
        Registry::new(words.leak())
    }

    #[test]
    fn loops_count_apart_and_are_added_up() {
        let all = registry();
        let (one, two) = (Cells::new(all, 1), Cells::new(all, 2));
        one.of(SubjectKind::Zone, "a").unwrap().add(3, 5);
        two.of(SubjectKind::Zone, "a").unwrap().add(3, 6);
        two.of(SubjectKind::Peer, "a").unwrap().add(3, 100);
        two.of(SubjectKind::Zone, "a").unwrap().record(Duration::from_millis(2));
        let counted = all.counted();
        assert_eq!(counted.of(SubjectKind::Zone, "a").numbers[3], 11);
        assert_eq!(counted.of(SubjectKind::Zone, "a").times.count, 1);
        assert_eq!(counted.of(SubjectKind::Zone, "b").numbers[3], 0);
        assert!(counted.others(SubjectKind::Zone).is_none());
    }

    #[test]
    fn what_a_dead_loop_counted_stays() {
        let all = registry();
        let own = all.tally(0).unwrap();
        for round in 1..=3 {
            let cell = Cells::new(all, 1).of(SubjectKind::Zone, "a").unwrap();
            cell.add(0, 7);
            cell.add(GAUGE, 2);
            cell.record(Duration::from_millis(2));
            all.bury(1, &own);
            let counted = all.counted().of(SubjectKind::Zone, "a");
            assert_eq!((counted.numbers[0], counted.numbers[GAUGE]), (7 * round, 0));
            assert_eq!(counted.times.count, round);
        }
    }

    #[test]
    fn a_cell_that_was_given_back_begins_anew_under_another_name() {
        let all = registry();
        let cells = Cells::new(all, 1);
        let (kept, gone) = (SubjectKind::Zone, SubjectKind::Peer);
        cells.of(kept, "a").unwrap().add(0, 1);
        let used = |all: Registry| used(&all).count();
        for n in 0..100 {
            let name = n.to_string();
            let cell = cells.of(gone, &name).unwrap();
            cell.add(0, 7);
            cell.failed(3, 111);
            let counted = all.counted();
            let counted = counted.get(gone, &name).unwrap();
            assert_eq!((counted.numbers[0], counted.outcomes.in_a_row), (7, 1));
            cells.give_back(gone, &name);
        }
        assert_eq!(used(all), KINDS.len() + 2, "one cell is used again and again");
        assert_eq!(all.counted().of(kept, "a").numbers[0], 1);
        for _ in 0..2 {
            let held = ["b", "b", "c"].map(|name| cells.hold(gone, name).unwrap());
            let [(cell, b), (_, other), (_, c)] = held;
            cell.add(0, 1);
            cells.release(b);
            cells.release(c);
            assert_eq!(all.counted().of(gone, "b").numbers[0], 1, "it is still held");
            cells.release(other);
            assert!(all.counted().get(gone, "b").is_none());
        }
    }

    #[test]
    fn cells_are_added_up_some_at_a_time() {
        let all = registry();
        let cells = Cells::new(all, 1);
        for n in 0..50 {
            cells.of(SubjectKind::Zone, &n.to_string()).unwrap().add(0, n);
        }
        let mut counting = Counting::new(all);
        let mut pieces = 1;
        while counting.more(5) {
            pieces += 1;
        }
        assert_eq!(pieces, (50 + KINDS.len()).div_ceil(5));
        let counted = counting.end();
        assert!((0..50).all(|n| counted.of(SubjectKind::Zone, &n.to_string()).numbers[0] == n));
    }

    #[test]
    fn failures_count_from_the_last_success_of_any_loop() {
        let all = registry();
        let own = all.tally(0).unwrap();
        let of = |tally: usize| Cells::new(all, tally).of(SubjectKind::Peer, "a").unwrap();
        let seen = || all.counted().of(SubjectKind::Peer, "a").outcomes;
        assert!(!seen().is_failing());
        let (one, two) = (of(1), of(2));
        one.failed(5, 111);
        one.failed(6, 111);
        two.failed(7, 104);
        assert_eq!((seen().failure, seen().in_a_row), (Some((7, 104)), 3));
        assert_eq!(seen().failing, Some(5));
        assert!(seen().is_failing());
        two.succeeded(7);
        assert_eq!((seen().success, seen().in_a_row), (Some(8), 0), "the order is kept");
        assert!(!seen().is_failing());
        one.failed(9, 110);
        assert!(seen().is_failing() && seen().in_a_row >= 1);
        all.bury(1, &own);
        all.bury(2, &own);
        assert_eq!((seen().success, seen().failure), (Some(8), Some((9, 110))));
        assert!(seen().is_failing());
    }

    #[test]
    fn a_subject_without_a_cell_is_counted_with_others() {
        let all = registry();
        let cells = Cells::new(all, 1);
        for n in 0..MOST_NAMES + 5 {
            cells.of(SubjectKind::Peer, &n.to_string()).unwrap().add(0, 1);
        }
        let counted = all.counted();
        assert_eq!(counted.others(SubjectKind::Peer).unwrap().numbers[0], 5);
        assert_eq!(counted.of(SubjectKind::Peer, "999").numbers[0], 1);
        assert!(counted.others(SubjectKind::Zone).is_none());
    }
}
