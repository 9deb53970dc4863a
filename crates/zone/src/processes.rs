//! Several processes on one table and on the same rows: any of them may be stopped or killed before any step of shared
//! memory, and others go on there. What the next one finds is whole: of the change that was under way all or nothing,
//! each living process's holdings, nobody else inside.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use weir_testkit::{Dice, number, seed};

use crate::rows::{Claimed, Row, Rows};
use crate::table::{Locked, Shape};
use seam::{ME, Me};

/// Processes at a time.
const PLACES: usize = 4;
/// What one does in its life, and how many come after one another.
const DEEDS: usize = 30;
const LIVES: usize = 4;
/// No case takes so many steps.
const MOST: u64 = 2_000_000;
/// So long is the sleep of one that waits, in steps.
const NAP: u64 = 200;
/// So long a process is stopped at most, in steps of others.
const STOP: usize = 3_000;

pub mod seam {
    use std::cell::RefCell;
    use std::sync::Arc;

    use super::World;

    /// What this thread is in a model: its place there, and its process.
    #[derive(Clone)]
    pub struct Me {
        pub world: Arc<World>,
        pub place: usize,
        pub owner: u64,
    }

    thread_local! {
        pub static ME: RefCell<Option<Me>> = const { RefCell::new(None) };
    }

    fn me() -> Option<Me> {
        ME.with_borrow(Clone::clone)
    }

    pub fn step() -> bool {
        me().is_none_or(|me| me.world.step(&me))
    }

    pub fn this() -> Option<u64> {
        me().map(|me| me.owner)
    }

    pub fn is_alive(owner: u64) -> Option<bool> {
        me().map(|me| me.world.lives(owner))
    }

    pub fn rest() -> bool {
        me().is_some_and(|me| {
            me.world.rest(me.place);
            true
        })
    }
}

/// How a killed process's thread ends.
struct Killed;

#[derive(Clone, Copy)]
struct Process {
    owner: u64,
    lives: bool,
    stopped: u64,
    /// How many have been in its place.
    lived: usize,
}

/// Whose turn it is, and who lives.
pub struct World {
    core: Mutex<Core>,
    turns: Condvar,
}

struct Core {
    dice: Dice,
    list: Vec<Process>,
    running: usize,
    steps: u64,
    born: u64,
    /// Once in so many steps.
    kills: usize,
    stops: usize,
    others: usize,
    /// What a process has found wrong: all end.
    wrong: bool,
}

impl World {
    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lives(&self, owner: u64) -> bool {
        self.core().list.iter().any(|p| p.owner == owner && p.lives)
    }

    fn step(&self, me: &Me) -> bool {
        let mut core = self.core();
        // The dead write nothing, though their threads put things back on their way.
        if std::thread::panicking() || core.list[me.place].owner != me.owner {
            return false;
        }
        let Core { dice, kills, stops, others, .. } = &mut *core;
        if dice.one_in(*kills) {
            core.bury(me.place);
            core.pass();
            drop(core);
            self.turns.notify_all();
            resume_unwind(Box::new(Killed));
        }
        let stops = dice.one_in(*stops).then(|| 1 + dice.below(STOP) as u64);
        let switches = dice.one_in(*others);
        core.steps += 1;
        if let Some(time) = stops {
            core.list[me.place].stopped = core.steps + time;
        }
        if switches || stops.is_some() {
            self.switch(core, me.place);
        }
        true
    }

    /// One that waits for a lock sleeps for a while.
    fn rest(&self, me: usize) {
        let mut core = self.core();
        core.steps += NAP;
        self.switch(core, me);
    }

    fn give_way(&self, me: usize) {
        self.switch(self.core(), me);
    }

    /// Another one goes on, and this one later.
    fn switch(&self, mut core: MutexGuard<'_, Core>, me: usize) {
        core.pass();
        self.turns.notify_all();
        while core.running != me && !core.wrong {
            core = self.turns.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
        let wrong = core.wrong;
        drop(core);
        if wrong && !std::thread::panicking() {
            resume_unwind(Box::new(Killed));
        }
    }

    /// A process has done all it had to do.
    fn end(&self, place: usize) {
        let mut core = self.core();
        core.bury(place);
        core.pass();
        drop(core);
        self.turns.notify_all();
    }

    /// Waits for the turn of whoever is in a place now; none when nobody comes there any more.
    fn wait_for_turn(&self, place: usize) -> Option<u64> {
        let mut core = self.core();
        while core.running != place && !core.wrong && core.list[place].lives {
            core = self.turns.wait(core).unwrap_or_else(PoisonError::into_inner);
        }
        Some(core.list[place]).filter(|p| p.lives && !core.wrong).map(|p| p.owner)
    }
}

impl Core {
    /// A process is no more, and another one comes in its place, if that was not the last. Now and then it has the id of
    /// the one before.
    fn bury(&mut self, place: usize) {
        let lived = self.list[place].lived + 1;
        self.list[place] = match lived <= LIVES {
            true => self.born(place, lived),
            false => Process { owner: 0, lives: false, stopped: 0, lived },
        };
    }

    fn born(&mut self, place: usize, lived: usize) -> Process {
        self.born += 1;
        let pid = if self.dice.one_in(2) { place as u64 + 1 } else { 100 + self.born };
        Process { owner: pid << 32 | self.born, lives: true, stopped: 0, lived }
    }

    /// The turn goes to one that lives and is not stopped; where all are, the first who goes on.
    fn pass(&mut self) {
        self.steps += 1;
        assert!(self.steps < MOST, "somebody waits for ever");
        let living: Vec<usize> = (0..self.list.len()).filter(|i| self.list[*i].lives).collect();
        let awake = |i: &usize| self.list[*i].stopped <= self.steps;
        let ready: Vec<usize> = living.iter().copied().filter(awake).collect();
        if !ready.is_empty() {
            self.running = ready[self.dice.below(ready.len())];
        } else if let Some(first) = living.into_iter().min_by_key(|i| self.list[*i].stopped) {
            self.running = first;
            self.steps = self.list[first].stopped;
        }
    }
}

type Entries = Vec<(Vec<u8>, [u64; 2])>;

/// What all processes have done, by those who did it.
#[derive(Default)]
struct Truth {
    entries: Entries,
    /// What they are once a change that is under way is made.
    soon: Option<Entries>,
    /// Who is in the table, and at the rows.
    inside: [Option<u64>; 2],
    /// How often each process holds each name.
    held: BTreeMap<(u64, u128), u64>,
    /// A change of that which is under way.
    changes: Option<((u64, u128), u64)>,
}

struct Case {
    world: Arc<World>,
    table: Vec<AtomicU64>,
    shape: Shape,
    rows: Vec<AtomicU64>,
    truth: Mutex<Truth>,
}

const VALUES: usize = 2;

fn words(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut dice = Dice::new(seed);
        let kills = dice.pick(&[60, 300, 2_000]);
        let (stops, others) = (dice.pick(&[200, 2_000]), dice.pick(&[50, 500]));
        let nobody = Process { owner: 0, lives: false, stopped: 0, lived: LIVES };
        let list = vec![nobody; PLACES + 1];
        let (running, steps, born, wrong) = (0, 0, 0, false);
        let core = Core { dice, list, running, steps, born, kills, stops, others, wrong };
        let table = words(300);
        let rows = words(crate::rows::words_for(3, VALUES));
        Case {
            world: Arc::new(World { core: Mutex::new(core), turns: Condvar::new() }),
            shape: Shape::new(table.len(), VALUES).expect("room for some"),
            table,
            rows,
            truth: Mutex::default(),
        }
    }

    fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This one is inside now, and nobody else who lives.
    fn enter(&self, which: usize, owner: u64) {
        let before = self.truth().inside[which].replace(owner);
        assert!(before.is_none_or(|other| !self.world.lives(other)), "two are inside");
    }

    fn leave(&self, which: usize) {
        self.truth().inside[which] = None;
    }

    /// What the table says is what was done, with or without what a dead one was about to do.
    fn look_at_table(&self, table: &Locked<'_>) -> Entries {
        let mut seen = Entries::new();
        let mut at = table.oldest();
        while let Some(entry) = at {
            let mut key = Vec::new();
            table.key(entry, &mut key);
            assert_eq!(table.find(&key), Some(entry), "an entry that is not found");
            seen.push((key, [table.value(entry, 0), table.value(entry, 1)]));
            assert!(seen.len() <= 100, "entries in a ring");
            at = table.newer(entry);
        }
        assert_eq!(table.len(), seen.len() as u64);
        let taken = seen.iter().map(|(key, _)| table.cells_of(key.len())).sum::<usize>() as u64;
        assert_eq!(table.free() / 64 + taken, table.cells(), "cells are lost");
        let mut truth = self.truth();
        let soon = truth.soon.take();
        assert!(seen == truth.entries || soon.is_some_and(|soon| soon == seen), "half a change");
        truth.entries = seen.clone();
        seen
    }

    fn use_table(&self, owner: u64, dice: &mut Dice) {
        let mut table = Locked::new(&self.table, &self.shape);
        self.enter(0, owner);
        let mut soon = self.look_at_table(&table);
        let name = dice.below(6);
        let key = [b'a' + name as u8].repeat(if name.is_multiple_of(2) { 3 } else { 90 });
        let place = soon.iter().position(|(other, _)| *other == key);
        let entry = table.find(&key);
        assert_eq!(place.is_some(), entry.is_some());
        let plan = |soon: &Entries| self.truth().soon = Some(soon.clone());
        match (entry.zip(place), dice.below(3)) {
            (None, _) => {
                soon.push((key.clone(), [0; 2]));
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
            (Some((entry, place)), _) => {
                let value = dice.any();
                soon[place].1 = [value, !value];
                plan(&soon);
                table.set_values(entry, [value, !value]);
            }
        }
        let mut truth = self.truth();
        (truth.entries, truth.soon) = (soon, None);
        drop(truth);
        self.leave(0);
    }

    /// What the rows say each living process holds is what it holds, and all together hold the sum.
    fn look_at_rows(&self, rows: &Rows<'_>) {
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
        // Whoever was about to change something else of its own is dead.
        assert!(soon.is_none_or(|((owner, _), _)| !self.world.lives(owner)));
    }

    fn use_rows(&self, owner: u64, mine: &mut Vec<(u128, Row)>, first: bool, dice: &mut Dice) {
        let mut rows = Rows::new(&self.rows, VALUES);
        self.enter(1, owner);
        if first {
            rows.enter();
        }
        self.look_at_rows(&rows);
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

    /// What a process does, from its beginning to its end.
    fn live(&self, Me { place, owner, .. }: Me, mut dice: Dice) {
        let (mut mine, mut first) = (Vec::new(), true);
        for _ in 0..DEEDS {
            if dice.one_in(2) {
                self.use_table(owner, &mut dice);
            } else {
                self.use_rows(owner, &mut mine, std::mem::take(&mut first), &mut dice);
            }
            if dice.one_in(4) {
                self.world.give_way(place);
            }
        }
        self.world.end(place);
    }

    /// The processes that follow each other in a place; what one of them has found wrong.
    fn fill_place(&self, place: usize, mut dice: Dice) -> Option<Box<dyn Any + Send>> {
        while let Some(owner) = self.world.wait_for_turn(place) {
            let me = Me { world: self.world.clone(), place, owner };
            ME.set(Some(me.clone()));
            let life = Dice::new(dice.any());
            let ended = catch_unwind(AssertUnwindSafe(|| self.live(me, life)));
            ME.set(None);
            if let Err(why) = ended
                && !why.is::<Killed>()
            {
                self.world.core().wrong = true;
                self.world.turns.notify_all();
                return Some(why);
            }
        }
        None
    }

    /// All live and die; then one comes that finds everything whole, and nothing held.
    fn run(&self, seed: u64) -> Option<Box<dyn Any + Send>> {
        for place in 0..PLACES {
            let mut core = self.world.core();
            core.list[place] = core.born(place, 1);
        }
        let wrong = std::thread::scope(|scope| {
            let fill = |place: usize| {
                let dice = Dice::salted(seed, ["a", "b", "c", "d"][place]);
                scope.spawn(move || self.fill_place(place, dice))
            };
            let places: Vec<_> = (0..PLACES).map(fill).collect();
            places.into_iter().filter_map(|place| place.join().unwrap_or(None)).next()
        });
        wrong.or_else(|| catch_unwind(AssertUnwindSafe(|| self.look_at_the_end())).err())
    }

    fn look_at_the_end(&self) {
        let mut core = self.world.core();
        (core.kills, core.stops, core.others) = (usize::MAX, usize::MAX, usize::MAX);
        core.list[PLACES] = core.born(PLACES, 1);
        core.running = PLACES;
        let owner = core.list[PLACES].owner;
        drop(core);
        ME.set(Some(Me { world: self.world.clone(), place: PLACES, owner }));
        let mut rows = Rows::new(&self.rows, VALUES);
        self.enter(1, owner);
        rows.enter();
        assert!(rows.all().all(|row| rows.held(row) == 0), "the dead hold something");
        self.look_at_rows(&rows);
        self.look_at_table(&Locked::new(&self.table, &self.shape));
        drop(rows);
        ME.set(None);
    }
}

#[test]
fn processes_are_stopped_and_killed_between_any_two_steps() {
    let first = seed();
    for seed in first..first + number("WEIR_CASES").unwrap_or(20) {
        let case = Case::new(seed);
        if let Some(why) = case.run(seed) {
            println!("failed: WEIR_SEED={seed}");
            resume_unwind(why);
        }
    }
}
