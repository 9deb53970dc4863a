//! Loops of several processes share one table. The test may stop or kill a process before any
//! change of a word; a successor takes over the row. The laws: with `mutex` one loop listens at a
//! time. Once all successors have started and all loops sleep, at least one loop listens.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::panic::resume_unwind;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_testkit::processes::{Me, PLACES, ProcessWorld};
use weir_testkit::{Dice, number, seed};

use crate::{
    AcceptDriver, AcceptOutcome, AcceptPolicy, ListenerSet, Load, LoadTable, LoopPolicy, LoopSetup,
    Stance,
};

/// The turns in a loop's life.
const TURNS: usize = 30;
/// The duration of a step.
const STEP: Duration = Duration::from_micros(100);
/// Turns of all loops at the end of a run, and after how many of them a loop must listen.
const ROUNDS: u32 = 60;
const FIRST: u32 = 20;

const KINDS: &[AcceptPolicy] = &[
    AcceptPolicy::Mutex,
    AcceptPolicy::Mutex,
    AcceptPolicy::Fair,
    AcceptPolicy::Fair,
    AcceptPolicy::Exclusive,
    AcceptPolicy::Rotate(1),
    AcceptPolicy::Herd,
];

struct BalanceCase {
    world: Arc<ProcessWorld>,
    words: Vec<AtomicU64>,
    base: Instant,
    kind: AcceptPolicy,
    /// The loops that listen, for policies in which one loop listens at a time.
    listening: Mutex<BTreeSet<u64>>,
}

fn setup(me: usize) -> LoopSetup {
    LoopSetup { me, sockets: 1, connections: 80, mutex_delay: Duration::from_millis(500) }
}

impl BalanceCase {
    fn new(seed: u64) -> BalanceCase {
        BalanceCase {
            world: ProcessWorld::new(seed),
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

    fn new_policy(&self, place: usize) -> LoopPolicy {
        LoopPolicy::take(self.kind, setup(place), self.now(), &self.table())
    }

    fn live(&self, Me { place, owner, .. }: Me, mut dice: Dice) {
        let (mut policy, table) = (self.new_policy(place), self.table());
        for _ in 0..TURNS {
            let load = Load { inflight: dice.below(3) as u64, open: dice.below(20) as u64 };
            let wait = policy.before_wait(self.now(), &table, load, !dice.one_in(8));
            if wait.stance != Stance::Disarmed && matches!(self.kind, AcceptPolicy::Mutex) {
                let mut listening = self.listening();
                let other = listening.iter().find(|other| self.world.lives(**other));
                assert!(other.is_none(), "two listen");
                listening.insert(owner);
            }
            self.world.give_way(place);
            self.listening().remove(&owner);
            let _ = policy.after_wait(self.now(), &table);
            if dice.one_in(2) {
                let _ = policy.accepted(self.now(), &table, load, 1);
            }
            for n in 0.. {
                let Some(woken) = policy.next_to_wake(self.now(), &table) else { break };
                assert!(woken < PLACES && n < PLACES * 2, "woken again and again");
            }
            if dice.one_in(8) {
                policy.pass_recheck(self.now(), &table).for_each(drop);
            }
        }
        if dice.one_in(2) {
            let _ = policy.retire(self.now(), &table);
        }
    }

    /// Starts some loops again. The rows of the others are cleared, as a master does for dead
    /// workers.
    fn look_at_the_end(&self, mut dice: Dice) {
        let table = self.table();
        let living = 1 + dice.below(PLACES);
        (living..PLACES).for_each(|i| table.clear(i));
        let mut policies: Vec<LoopPolicy> = (0..living).map(|i| self.new_policy(i)).collect();
        let mut now = self.now();
        for round in 0..ROUNDS {
            let turn = |policy: &mut LoopPolicy| {
                policy.before_wait(now, &table, Load::default(), true).stance
            };
            let listens =
                policies.iter_mut().map(turn).filter(|stance| *stance != Stance::Disarmed).count();
            assert!(round < FIRST || listens > 0, "no loop listens, {:?}", self.kind);
            now += Duration::from_millis(50);
            for policy in &mut policies {
                let _ = policy.after_wait(now, &table);
            }
        }
        (0..living).for_each(|i| table.clear(i));
        let left = self.words.iter().filter(|word| word.load(SeqCst) != 0).count();
        let counts = usize::from(table.accepts() != 0);
        assert_eq!(left, counts, "words that the dead have left, beside the count of accepts");
    }

    fn run(&self, seed: u64) -> Option<Box<dyn Any + Send>> {
        let wrong = self.world.run(seed, |me, dice| self.live(me, dice));
        wrong.or_else(|| self.world.look(|_| self.look_at_the_end(Dice::salted(seed, "end"))))
    }
}

/// `dispatch`: the first place is an acceptor. The others are loops, whose handover sockets outlive
/// them.
struct Dispatched {
    case: BalanceCase,
    lines: [Mutex<VecDeque<u64>>; PLACES],
    /// Loops that have ended by themselves. A connection that was handed to them would be lost.
    ended: Mutex<BTreeSet<usize>>,
    acceptor: AtomicU64,
}

/// The most connections that wait in a handover socket.
const ROOM: usize = 3;

impl Dispatched {
    fn new(seed: u64) -> Dispatched {
        let case = BalanceCase { kind: AcceptPolicy::Dispatch, ..BalanceCase::new(seed) };
        Dispatched {
            case,
            lines: Default::default(),
            ended: Mutex::default(),
            acceptor: AtomicU64::default(),
        }
    }

    fn line(&self, i: usize) -> MutexGuard<'_, VecDeque<u64>> {
        self.lines[i].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ended(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self, me: Me, dice: Dice) {
        // A successor of a dead loop finds its row cleared.
        self.case.table().clear(me.place);
        if me.place == 0 { self.accept(me) } else { self.serve(me, dice) }
    }

    fn accept(&self, me: Me) {
        self.acceptor.store(me.owner, SeqCst);
        let (case, table) = (&self.case, self.case.table());
        let mut policy = case.kind.policy(setup(me.place));
        for number in 0..TURNS * PLACES {
            if let Some(i) = policy.place(case.now(), &table) {
                let handed = self.line(i).len() < ROOM;
                if handed {
                    assert!(!self.ended().contains(&i), "handed to a loop that has ended");
                    self.line(i).push_back(number as u64);
                }
                table.end_handover(i, handed);
            }
            case.world.give_way(me.place);
        }
    }

    fn serve(&self, Me { place, .. }: Me, mut dice: Dice) {
        self.ended().remove(&place);
        let (case, table) = (&self.case, self.case.table());
        let mut driver = AcceptDriver::new(case.new_policy(place), false);
        let mut listeners = Taker { of: self, place };
        for _ in 0..TURNS {
            let _ = driver.before_wait(&mut listeners, &table);
            case.world.give_way(place);
            driver.after_wait(&mut listeners, &table);
            // While no acceptor hands over, the counts are right. If an acceptor dies at this very
            // moment, the next look corrects them.
            let is_right = (0..2 * PLACES).any(|_| {
                driver.take_handed(&mut listeners, &table);
                let there = self.line(place).len() as u64;
                table.hands_to(place) || table.row(place).pending() <= there
            });
            assert!(is_right, "{:?} are counted as handed and taken", table.row(place).counts());
        }
        if dice.one_in(2) {
            driver.retire(&mut listeners, &table);
            while table.hands_to(place) || !self.line(place).is_empty() {
                if !case.world.lives(self.acceptor.load(SeqCst)) {
                    return; // this model has no master that would see it
                }
                case.world.give_way(place);
                driver.take_handed(&mut listeners, &table);
            }
            self.ended().insert(place);
        }
    }
}

/// The receiving end of a loop's handover socket.
struct Taker<'a> {
    of: &'a Dispatched,
    place: usize,
}

impl ListenerSet for Taker<'_> {
    type Listener = ();

    fn now(&self) -> Instant {
        self.of.case.now()
    }

    fn load(&self) -> Load {
        Load::default()
    }

    fn has_room(&self) -> bool {
        true
    }

    fn shared(&self) -> Vec<()> {
        Vec::new()
    }

    fn is_shared(&self, (): ()) -> bool {
        false
    }

    fn accept(&mut self, (): ()) -> AcceptOutcome {
        AcceptOutcome::Empty
    }

    fn take_handed(&mut self) -> AcceptOutcome {
        self.of
            .line(self.place)
            .pop_front()
            .map_or(AcceptOutcome::Empty, |_| AcceptOutcome::Accepted)
    }

    fn arm(&mut self, _: Stance, _: bool) -> bool {
        true
    }

    fn readd(&mut self, (): ()) {}

    fn notify(&mut self, _: usize) {}
}

#[test]
fn an_acceptor_that_dies_leaves_no_count_of_what_never_comes() {
    let first = seed();
    for seed in first..first + number("WEIR_CASES").unwrap_or(100) {
        let case = Dispatched::new(seed);
        if let Some(why) = case.case.world.run(seed, |me, dice| case.live(me, dice)) {
            println!("failed: WEIR_SEED={seed}");
            resume_unwind(why);
        }
    }
}

#[test]
fn loops_are_stopped_and_killed_between_any_two_words() {
    let first = seed();
    for seed in first..first + number("WEIR_CASES").unwrap_or(200) {
        let case = BalanceCase::new(seed);
        if let Some(why) = case.run(seed) {
            println!("failed: WEIR_SEED={seed}, {:?}", case.kind);
            resume_unwind(why);
        }
    }
}
