//! Several processes use one table and the same rows. Any of them may be stopped or killed before
//! any step of shared memory, and others continue. The next process always finds a consistent
//! state: unfinished changes are complete or undone, living processes keep what they hold, and no
//! other process is inside the lock.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_testkit::processes::{Me, ProcessWorld};
use weir_testkit::{Dice, number, seed};

use crate::rows::{Claimed, Row, Rows};
use crate::table::{End, Locked, Shape};

/// The operations in a process's life.
const OPERATIONS: usize = 30;

/// A key, its first value and its items.
type Entries = Vec<(Vec<u8>, u64, VecDeque<Vec<u8>>)>;

/// The expected content, after the operations of all processes.
#[derive(Default)]
struct Truth {
    entries: Entries,
    /// The entries after the change that is in progress.
    unfinished: Option<Entries>,
    /// The process that uses the table, and the one that uses the rows.
    inside: [Option<u64>; 2],
    /// How often each process holds each name.
    held: BTreeMap<(u64, u128), u64>,
    /// A change of `held` that is in progress.
    changes: Option<((u64, u128), u64)>,
}

struct ZoneCase {
    world: Arc<ProcessWorld>,
    table: Vec<AtomicU64>,
    shape: Shape,
    rows: Vec<AtomicU64>,
    truth: Mutex<Truth>,
}

const VALUES: usize = 2;

fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

impl ZoneCase {
    fn new(seed: u64) -> ZoneCase {
        let table = words(300);
        let rows = words(crate::rows::words_for(3, VALUES));
        ZoneCase {
            world: ProcessWorld::new(seed),
            shape: Shape::new(table.len(), VALUES).expect("room for some"),
            table,
            rows,
            truth: Mutex::default(),
        }
    }

    fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this process is inside the lock. No other living process may be.
    fn enter(&self, which: usize, owner: u64) {
        let before = self.truth().inside[which].replace(owner);
        assert!(before.is_none_or(|other| !self.world.lives(other)), "two are inside");
    }

    fn leave(&self, which: usize) {
        self.truth().inside[which] = None;
    }

    /// Compares the table with the expected entries, with or without the unfinished change of a
    /// dead process.
    fn check_table(&self, table: &Locked<'_>) -> Entries {
        let mut seen = Entries::new();
        for entry in table.entries() {
            let mut key = Vec::new();
            table.key(entry, &mut key);
            assert_eq!(table.find(&key), Some(entry), "an entry that is not found");
            seen.push((key, table.value(entry, 0), table.all_items(entry).into()));
        }
        assert_eq!(table.len(), seen.len() as u64);
        let taken = table.entries().map(|entry| table.cells_of(entry)).sum::<usize>() as u64;
        assert_eq!(table.free() / 64 + taken, table.cells(), "cells are lost");
        let mut truth = self.truth();
        let soon = truth.unfinished.take();
        assert!(seen == truth.entries || soon.is_some_and(|soon| soon == seen), "half a change");
        truth.entries = seen.clone();
        seen
    }

    fn use_table(&self, owner: u64, dice: &mut Dice) {
        let mut table = Locked::new(&self.table, &self.shape, "table");
        self.enter(0, owner);
        let mut soon = self.check_table(&table);
        let name = dice.below(6);
        let key = [b'a' + name as u8].repeat(if name.is_multiple_of(2) { 3 } else { 90 });
        let place = soon.iter().position(|(other, ..)| *other == key);
        let entry = table.find(&key);
        assert_eq!(place.is_some(), entry.is_some());
        let plan = |soon: &Entries| self.truth().unfinished = Some(soon.clone());
        match (entry.zip(place), dice.below(6)) {
            (None, _) => {
                soon.push((key.clone(), 0, VecDeque::new()));
                plan(&soon);
                if table.add(&key).is_none() {
                    soon.pop();
                }
            }
            (Some((entry, place)), 0) => {
                soon.remove(place);
                plan(&soon);
                table.remove(entry);
            }
            (Some((entry, place)), 1) => {
                let used = soon.remove(place);
                soon.push(used);
                plan(&soon);
                table.touch(entry);
            }
            (Some((entry, place)), 2) => {
                soon[place].1 = dice.any();
                plan(&soon);
                table.set_values(entry, [soon[place].1]);
            }
            (Some((entry, place)), 3) => {
                soon[place].2.pop_front();
                plan(&soon);
                table.remove_item(entry, End::First);
            }
            (Some((entry, place)), _) => {
                let item = vec![dice.below(256) as u8; dice.below(120)];
                soon[place].2.push_back(item.clone());
                plan(&soon);
                if !table.push_item(entry, &item, End::Last) {
                    soon[place].2.pop_back();
                }
            }
        }
        let mut truth = self.truth();
        (truth.entries, truth.unfinished) = (soon, None);
        drop(truth);
        self.leave(0);
    }

    /// Compares the rows with what each living process holds, and each row's sum with its shares.
    fn check_rows(&self, rows: &Rows<'_>) {
        let mut truth = self.truth();
        let soon = truth.changes.take();
        for row in rows.all() {
            let mut sum = 0;
            for (owner, share) in rows.shares(row) {
                sum += share;
                let names = (1..=4).filter(|name| rows.is(row, *name));
                for of in names.map(|name| (owner, name)).filter(|_| self.world.lives(owner)) {
                    let held = truth.held.get(&of).copied().unwrap_or(0);
                    assert!(share == held, "{of:?} holds {held}, not {share}");
                }
            }
            assert_eq!(rows.held(row), sum, "all hold another number than each");
        }
        // Only a dead process can have left a change in progress.
        assert!(soon.is_none_or(|((owner, _), _)| !self.world.lives(owner)));
    }

    fn use_rows(&self, owner: u64, mine: &mut Vec<(u128, Row)>, first: bool, dice: &mut Dice) {
        let mut rows = Rows::new(&self.rows, VALUES, "rows");
        self.enter(1, owner);
        if first {
            rows.enter();
        }
        self.check_rows(&rows);
        let change = |name: u128, by: i64| {
            let mut truth = self.truth();
            let of = (owner, name);
            let held = truth.held.get(&of).copied().unwrap_or(0).saturating_add_signed(by);
            truth.changes = Some((of, held));
        };
        let done = || {
            let mut truth = self.truth();
            if let Some((of, held)) = truth.changes.take() {
                truth.held.insert(of, held);
            }
        };
        if !mine.is_empty() && dice.one_in(2) {
            let (name, row) = mine.swap_remove(dice.below(mine.len()));
            assert!(rows.is(row, name), "a row that is held has another name");
            change(name, -1);
            rows.release(row);
            done();
        } else {
            let name = 1 + dice.below(4) as u128;
            match rows.claim(name, dice.any()) {
                None => {}
                Some(Claimed::New(row)) => {
                    assert_eq!((rows.value(row, 0), rows.held(row)), (0, 0));
                    rows.set_value(row, 0, name as u64);
                }
                Some(Claimed::Known(row)) => {
                    let value = rows.value(row, 0);
                    assert!(value == 0 || value == name as u64, "a row has another's value");
                    change(name, 1);
                    rows.hold(row);
                    done();
                    mine.push((name, row));
                }
            }
        }
        self.leave(1);
    }

    /// Runs the life of a process.
    fn live(&self, Me { place, owner, .. }: Me, mut dice: Dice) {
        let (mut mine, mut first) = (Vec::new(), true);
        for _ in 0..OPERATIONS {
            if dice.one_in(2) {
                self.use_table(owner, &mut dice);
            } else {
                self.use_rows(owner, &mut mine, std::mem::take(&mut first), &mut dice);
            }
            if dice.one_in(4) {
                self.world.give_way(place);
            }
        }
    }

    /// Runs all processes until they have ended. A last process then finds everything consistent
    /// and nothing held.
    fn run(&self, seed: u64) -> Option<Box<dyn Any + Send>> {
        let wrong = self.world.run(seed, |me, dice| self.live(me, dice));
        wrong.or_else(|| self.world.look(|me| self.check_at_end(me.owner)))
    }

    fn check_at_end(&self, owner: u64) {
        let mut rows = Rows::new(&self.rows, VALUES, "rows");
        self.enter(1, owner);
        rows.enter();
        assert!(rows.all().all(|row| rows.held(row) == 0), "the dead hold something");
        self.check_rows(&rows);
        self.check_table(&Locked::new(&self.table, &self.shape, "table"));
    }
}

#[test]
fn processes_are_stopped_and_killed_between_any_two_steps() {
    let first = seed();
    for seed in first..first + number("WEIR_CASES").unwrap_or(20) {
        let case = ZoneCase::new(seed);
        if let Some(why) = case.run(seed) {
            println!("failed: WEIR_SEED={seed}");
            resume_unwind(why);
        }
    }
}
