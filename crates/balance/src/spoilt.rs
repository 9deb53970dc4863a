//! Arbitrary words in the load table: an attacker in a worker may write any value to any word. No
//! policy panics, wakes others endlessly, or keeps a loop from sleeping. Once the writing ends,
//! connections are accepted.
//!
//! `WEIR_SEED` replays a run, `WEIR_CASES` makes it longer.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use weir_testkit::{Dice, number, seed};

use crate::{AcceptPolicy, Load, LoadTable, LoopPolicy, LoopSetup, Stance, Wait};

const LOOPS: usize = 3;
const TURN: Duration = Duration::from_millis(1);
/// The number of turns after which each loop is back in the list.
const SOON: u32 = 2000;

struct SpoiltCase {
    words: Vec<AtomicU64>,
    base: Instant,
    now: Instant,
    policies: Vec<LoopPolicy>,
    /// The last decision of each loop.
    waits: Vec<Wait>,
    dice: Dice,
}

impl SpoiltCase {
    fn new(kind: AcceptPolicy, seed: u64) -> SpoiltCase {
        let words: Vec<_> = (0..LoadTable::words(LOOPS)).map(|_| AtomicU64::new(0)).collect();
        let base = Instant::now();
        let table = LoadTable::over(&words, base);
        let mutex_delay = Duration::from_millis(500);
        let setup = |me| LoopSetup { me, sockets: 1, connections: 9, mutex_delay };
        let policies =
            (0..LOOPS).map(|me| LoopPolicy::take(kind, setup(me), base, &table)).collect();
        let (waits, dice) = (vec![Wait::DISARMED; LOOPS], Dice::salted(seed, kind.name()));
        SpoiltCase { words, base, now: base, policies, waits, dice }
    }

    fn spoil(&mut self) {
        let value = match self.dice.below(7) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << 63,
            3 => self.dice.any(),
            4 => self.dice.below(8) as u64,
            5 => 1 << self.dice.below(64),
            _ => self.words[self.dice.below(self.words.len())].load(Relaxed),
        };
        let at = self.dice.below(self.words.len());
        self.words[at].store(value, Relaxed);
    }

    /// A turn of one loop, in which it may accept.
    fn turn(&mut self, i: usize, accepts: bool) {
        let table = LoadTable::over(&self.words, self.base);
        self.now += TURN;
        let (now, policy) = (self.now, &mut self.policies[i]);
        let load = Load { inflight: 1, open: 1 };
        let _ = policy.after_wait(now, &table);
        if accepts {
            let _ = policy.accepted(now, &table, load, 1);
            let _ = policy.policy_places(now, &table);
        }
        for next in [LoopPolicy::next_to_wake, |policy: &mut LoopPolicy, _, _: &LoadTable<'_>| {
            policy.next_to_relieve()
        }] {
            let all = std::iter::from_fn(|| next(policy, now, &table));
            assert!(all.take(99).count() < 99, "it wakes others for ever");
        }
        self.waits[i] = policy.before_wait(now, &table, load, true);
    }

    fn run(mut self, kind: AcceptPolicy) {
        for _ in 0..60 {
            self.spoil();
            let (i, accepts) = (self.dice.below(LOOPS), self.dice.one_in(2));
            self.turn(i, accepts);
        }
        let mut slept = [false; LOOPS];
        let mut armed = false;
        for n in 0..SOON {
            let i = n as usize % LOOPS;
            self.turn(i, false);
            slept[i] |= self.waits[i].at_most != Some(Duration::ZERO);
            armed |= self.waits[i].stance != Stance::Disarmed;
        }
        let table = LoadTable::over(&self.words, self.base);
        assert!(slept == [true; LOOPS], "a loop does not sleep: {slept:?}");
        let placed = self.policies[0].policy_places(self.now, &table).is_some();
        assert!(armed || placed, "no loop accepts, by {}", kind.name());
    }
}

#[test]
fn policies_bear_any_word() {
    let first = seed();
    for seed in first..first + number("WEIR_CASES").unwrap_or(30) {
        println!("WEIR_SEED={seed}");
        for name in AcceptPolicy::NAMES {
            let kind = AcceptPolicy::parse(name).expect("a known name");
            SpoiltCase::new(kind, seed).run(kind);
        }
    }
}
