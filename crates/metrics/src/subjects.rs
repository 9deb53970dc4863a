//! Counters under names: zones of servers and locations, servers behind, caches.
//!
//! Each loop has a cell of its own for each name that it counts under, so that it counts with plain
//! stores. A loop takes cells out of memory that all processes share when it begins, or when it
//! needs a new name. Readers add up the cells of one name. The number of cells is limited: beyond
//! it, a loop counts all further names of a kind in one cell.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use crate::{Registry, Times, histogram};

/// What a name is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubjectKind {
    /// `status_zone` of servers and locations.
    Zone,
    /// Servers that requests are passed to.
    Peer,
    /// Servers that sessions are passed to.
    StreamPeer,
    /// Caches.
    Cache,
    /// Threads for file operations.
    Pool,
}

const KINDS: [SubjectKind; 5] = [
    SubjectKind::Zone,
    SubjectKind::Peer,
    SubjectKind::StreamPeer,
    SubjectKind::Cache,
    SubjectKind::Pool,
];

/// What pages call all that a loop found no cell for.
pub const OTHERS: &str = "(others)";

/// So many names a loop counts apart.
pub const MOST_NAMES: usize = 1000;

/// So many cells there are for all loops and names.
pub const MOST_CELLS: usize = 16 << 10;

/// Words of a cell: the tally that it belongs to, 0 for none; its name; its numbers; its times.
const OWNER: usize = 0;
const NAME: usize = 1;
const NUMBERS: usize = 2;
const TIMES: usize = NUMBERS + COUNTS;
const CELL: usize = (TIMES + histogram::WORDS).next_multiple_of(crate::LINE);

/// Numbers of a cell. Their meaning comes from the code that counts; the last is a gauge.
pub const COUNTS: usize = 16;
/// How many there are right now.
pub const GAUGE: usize = COUNTS - 1;

/// Words of all cells, behind the number of those that were ever used.
pub(crate) const WORDS: usize = crate::LINE + MOST_CELLS * CELL;

/// A loop's numbers under one name.
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

    /// Takes from the gauge.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.change(NUMBERS + GAUGE, |value| value.wrapping_sub(n));
    }

    /// Sets the gauge.
    #[inline]
    pub fn set(&self, n: u64) {
        self.change(NUMBERS + GAUGE, |_| n);
    }

    /// Adds a time.
    #[inline]
    pub fn record(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.change(TIMES + histogram::bucket(micros), |n| n.wrapping_add(1));
        self.change(TIMES + histogram::COUNT, |n| n.wrapping_add(1));
        self.change(TIMES + histogram::SUM, |n| n.wrapping_add(micros));
    }

    /// Load and store are enough, since only this loop writes here.
    #[inline]
    fn change(&self, at: usize, change: impl FnOnce(u64) -> u64) {
        if let Some(word) = self.words.get(at) {
            word.store(change(word.load(Relaxed)), Relaxed);
        }
    }
}

/// What all loops have counted under one name.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// The numbers.
    pub numbers: [u64; COUNTS],
    /// The times.
    pub times: Times,
}

impl Counted {
    /// The gauge. Loops that are between two steps may come to less than nothing together.
    pub fn gauge(&self) -> u64 {
        self.numbers[GAUGE].cast_signed().max(0).cast_unsigned()
    }
}

/// All that was counted, by names.
#[derive(Debug, Default)]
pub struct AllCounted(HashMap<u64, Counted>);

impl AllCounted {
    /// What was counted under a name; nothing where it is unknown.
    pub fn of(&self, kind: SubjectKind, name: &str) -> Counted {
        self.0.get(&hash(kind, name)).cloned().unwrap_or_default()
    }

    /// What had no cell of its own; none if nothing had to do without.
    pub fn others(&self, kind: SubjectKind) -> Option<Counted> {
        let others = self.0.get(&others(kind));
        others.filter(|counted| counted.numbers.iter().any(|n| *n > 0)).cloned()
    }
}

/// The cells of one loop.
#[derive(Debug)]
pub struct Cells {
    registry: Registry,
    tally: usize,
    known: RefCell<HashMap<u64, Option<Cell>>>,
}

impl Cells {
    /// For the loop of this tally.
    pub fn new(registry: Registry, tally: usize) -> Cells {
        Cells { registry, tally, known: RefCell::default() }
    }

    /// The counters of all loops.
    pub fn registry(&self) -> Registry {
        self.registry
    }

    /// The cell of a name. To be asked once for each and kept.
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
}

/// Takes a cell for a tally.
fn take(registry: &Registry, tally: usize, name: u64) -> Option<Cell> {
    let (used, cells) = parts(registry)?;
    let from = used.load(SeqCst) as usize;
    // What was given back is looked for only when all have been used once.
    let order = (from..MOST_CELLS).chain(0..from.min(MOST_CELLS));
    for i in order {
        let Some(words) = cells.get(i * CELL..(i + 1) * CELL) else { break };
        let owner = words.first()?;
        if owner.load(Relaxed) == 0
            && owner.compare_exchange(0, tally as u64 + 1, SeqCst, SeqCst).is_ok()
        {
            words.get(NAME)?.store(name, SeqCst);
            used.fetch_max(i as u64 + 1, SeqCst);
            return Some(Cell { words });
        }
    }
    None
}

/// Adds up all cells.
pub(crate) fn counted(registry: &Registry) -> AllCounted {
    let mut all: HashMap<u64, Counted> = HashMap::new();
    for words in used(registry) {
        let get = |at: usize| words.get(at).map_or(0, |word| word.load(Relaxed));
        if get(OWNER) == 0 {
            continue;
        }
        let counted = all.entry(get(NAME)).or_default();
        for (i, number) in counted.numbers.iter_mut().enumerate() {
            *number = number.wrapping_add(get(NUMBERS + i));
        }
        counted.times.add(words.get(TIMES..).unwrap_or_default());
    }
    AllCounted(all)
}

/// What the loop of a tally has counted goes to tally `to`.
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
                for at in NUMBERS..CELL {
                    store(into, at, load(into, at).wrapping_add(load(words, at)));
                    store(words, at, 0);
                }
                store(words, OWNER, 0);
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

fn parts(registry: &Registry) -> Option<(&'static AtomicU64, &'static [AtomicU64])> {
    let words = registry.words.get(crate::HEAD..)?.get(..WORDS)?;
    Some((words.first()?, words.get(crate::LINE..)?))
}

/// Cells that were ever used; to look at others would cost memory.
fn used(registry: &Registry) -> impl Iterator<Item = &'static [AtomicU64]> {
    let found = parts(registry).map(|(used, cells)| {
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

/// No name is like this.
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
