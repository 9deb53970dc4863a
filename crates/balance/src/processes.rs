//! Loops of several processes at one table: any of them may be stopped or killed before any change of a word, and whoever
//! comes in its place takes the row over. Of `mutex` one listens at a time; and once everybody lives who is to live,
//! somebody listens whenever all sleep.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_testkit::processes::{Me, PLACES, World};
use weir_testkit::{Dice, number, seed};

use crate::{Arm, Kind, Load, LoadTable, Seat, Setup};

/// Turns of a loop's life.
const TURNS: usize = 30;
/// What a step takes.
const STEP: Duration = Duration::from_micros(100);
/// Turns of all loops at the end, and how many of them it may take until somebody listens.
const ROUNDS: u32 = 60;
const FIRST: u32 = 20;

const KINDS: &[Kind] = &[
    Kind::Mutex,
    Kind::Mutex,
    Kind::Fair,
    Kind::Fair,
    Kind::Exclusive,
    Kind::Rotate(1),
    Kind::Herd,
];

struct Case {
    world: Arc<World>,
    words: Vec<AtomicU64>,
    base: Instant,
    kind: Kind,
    /// Who listens, of those who are to be alone there.
    listening: Mutex<BTreeSet<u64>>,
}

impl Case {
    fn new(seed: u64) -> Case {
        Case {
            world: World::new(seed),
            words: (0..LoadTable::words(PLACES)).map(|_| AtomicU64::new(0)).collect(),
            base: Instant::now(),
            kind: Dice::salted(seed, "kind").pick(KINDS),
            listening: Mutex::default(),
        }
    }

    fn table(&self) -> LoadTable<'_> {
        LoadTable::over(&self.words, self.base)
    }

    fn now(&self) -> Instant {
        self.base + STEP * self.world.steps() as u32
    }

    fn listening(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.listening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sit(&self, place: usize) -> Seat {
        let mutex_delay = Duration::from_millis(500);
        let setup = Setup { me: place, sockets: 1, connections: 80, mutex_delay };
        Seat::take(self.kind, setup, self.now(), &self.table())
    }

    fn live(&self, Me { place, owner, .. }: Me, mut dice: Dice) {
        let (mut seat, table) = (self.sit(place), self.table());
        for _ in 0..TURNS {
            let load = Load { inflight: dice.below(3) as u64, open: dice.below(20) as u64 };
            let wait = seat.before_wait(self.now(), &table, load, !dice.one_in(8));
            if wait.arm != Arm::Disarmed && matches!(self.kind, Kind::Mutex) {
                let mut listening = self.listening();
                let other = listening.iter().find(|other| self.world.lives(**other));
                assert!(other.is_none(), "two listen");
                listening.insert(owner);
            }
            self.world.give_way(place);
            self.listening().remove(&owner);
            let _ = seat.after_wait(self.now(), &table);
            if dice.one_in(2) {
                let _ = seat.accepted(self.now(), &table, load, 1);
            }
            for n in 0.. {
                let Some(woken) = seat.next_to_wake(self.now(), &table) else { break };
                assert!(woken < PLACES && n < PLACES * 2, "woken again and again");
            }
            if dice.one_in(8) {
                let _ = seat.pass_baton(self.now(), &table);
            }
        }
        if dice.one_in(2) {
            let _ = seat.retire(self.now(), &table);
        }
    }

    /// Some are at their places anew, and the rows of the others are empty, as when a master has seen them die.
    fn look_at_the_end(&self, mut dice: Dice) {
        let table = self.table();
        let living = 1 + dice.below(PLACES);
        (living..PLACES).for_each(|i| table.clear(i));
        let mut seats: Vec<Seat> = (0..living).map(|i| self.sit(i)).collect();
        let mut now = self.now();
        for round in 0..ROUNDS {
            let turn = |seat: &mut Seat| seat.before_wait(now, &table, Load::default(), true).arm;
            let listens = seats.iter_mut().map(turn).filter(|arm| *arm != Arm::Disarmed).count();
            assert!(round < FIRST || listens > 0, "nobody listens, {:?}", self.kind);
            now += Duration::from_millis(50);
            for seat in &mut seats {
                let _ = seat.after_wait(now, &table);
            }
        }
        (0..living).for_each(|i| table.clear(i));
        let left = self.words.iter().filter(|word| word.load(SeqCst) != 0).count();
        assert_eq!(left, 0, "words that the dead have left");
    }

    fn run(&self, seed: u64) -> Option<Box<dyn Any + Send>> {
        let wrong = self.world.run(seed, |me, dice| self.live(me, dice));
        wrong.or_else(|| self.world.look(|_| self.look_at_the_end(Dice::salted(seed, "end"))))
    }
}

#[test]
fn loops_are_stopped_and_killed_between_any_two_words() {
    let first = seed();
    for seed in first..first + number("WEIR_CASES").unwrap_or(200) {
        let case = Case::new(seed);
        if let Some(why) = case.run(seed) {
            println!("failed: WEIR_SEED={seed}, {:?}", case.kind);
            resume_unwind(why);
        }
    }
}
