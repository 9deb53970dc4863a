//! The counts under each name, added up over the cells of all loops.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use super::outcomes::Outcomes;
use super::{COUNTS, GAUGE, NAME, NUMBERS, OWNER, SubjectKind, TIMES, hash, others, used};
use crate::registry::TRIES;
use crate::{Registry, Times};

/// The counts of all loops under one name.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// The numbers.
    pub numbers: [u64; COUNTS],
    /// The times.
    pub times: Times,
    /// The last success and the last failure.
    pub outcomes: Outcomes,
}

impl Counted {
    /// Adds the counts under another name.
    pub fn add(&mut self, other: &Counted) {
        for (sum, n) in self.numbers.iter_mut().zip(&other.numbers) {
            *sum = sum.wrapping_add(*n);
        }
        self.times.merge(&other.times);
        self.outcomes = self.outcomes.merged(other.outcomes);
    }

    /// The gauge. It may be below 0 for a moment, while loops are between two updates; this returns
    /// 0 then.
    pub fn gauge(&self) -> u64 {
        self.numbers[GAUGE].cast_signed().max(0).cast_unsigned()
    }
}

/// All counters, by name.
#[derive(Debug, Default)]
pub struct AllCounted(HashMap<u64, Counted>);

impl AllCounted {
    /// The counts under a name. Empty if the name is unknown.
    pub fn of(&self, kind: SubjectKind, name: &str) -> Counted {
        self.get(kind, name).cloned().unwrap_or_default()
    }

    /// The counts under a name. None if the name is unknown.
    pub fn get(&self, kind: SubjectKind, name: &str) -> Option<&Counted> {
        self.0.get(&hash(kind, name))
    }

    /// The counts without a cell of their own. None if there are none.
    pub fn others(&self, kind: SubjectKind) -> Option<Counted> {
        let others = self.0.get(&others(kind));
        others.filter(|counted| counted.numbers.iter().any(|n| *n > 0)).cloned()
    }
}

/// Adds up the cells, some at a time.
#[derive(Debug)]
pub struct Counting {
    registry: Registry,
    all: HashMap<u64, Counted>,
    at: usize,
    /// How often values had been moved when the first cell was read.
    moves: u64,
    tries: usize,
}

impl Counting {
    /// Begins with the first cell.
    pub fn new(registry: Registry) -> Counting {
        Counting { registry, all: HashMap::new(), at: 0, moves: 0, tries: 0 }
    }

    /// Adds up to `n` cells. False after the last one.
    pub fn more(&mut self, n: usize) -> bool {
        if self.at == 0 {
            self.moves = self.registry.moves();
            if !self.moves.is_multiple_of(2) && self.may_try_again() {
                std::hint::spin_loop();
                return true;
            }
        }
        let before = self.at;
        for words in used(&self.registry).skip(before).take(n) {
            self.at += 1;
            add(&mut self.all, words);
        }
        if self.at - before == n {
            return true;
        }
        fence(SeqCst);
        if self.registry.moves() != self.moves && self.may_try_again() {
            (self.at, self.all) = (0, HashMap::new());
            return true;
        }
        false
    }

    fn may_try_again(&mut self) -> bool {
        self.tries += 1;
        self.tries < TRIES
    }

    /// The sums.
    pub fn end(self) -> AllCounted {
        AllCounted(self.all)
    }
}

fn add(all: &mut HashMap<u64, Counted>, words: &[AtomicU64]) {
    let get = |at: usize| words.get(at).map_or(0, |word| word.load(Relaxed));
    if get(OWNER) == 0 {
        return;
    }
    let counted = all.entry(get(NAME)).or_default();
    for (i, number) in counted.numbers.iter_mut().enumerate() {
        *number = number.wrapping_add(get(NUMBERS + i));
    }
    counted.times.add(words.get(TIMES..).unwrap_or_default());
    counted.outcomes = counted.outcomes.merged(Outcomes::of(words));
}
