//! Two loops, on threads of their own, share a table. One loop leaves the list while the last
//! listed loop wakes up.
//!
//! `WEIR_CASES` sets the number of decisions.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use weir_testkit::{Dice, number};

use crate::{AcceptPolicy, Load, LoadTable, LoopActivity, LoopPolicy, LoopSetup, Stance};

/// How often the loop with a connection falls asleep.
const DECISIONS: u64 = 100_000;
/// A loop that backs off sleeps for less than this, a loop that defers for more.
const RELIES: Duration = Duration::from_millis(6);
/// The duration of a handler.
const HANDLER: Duration = Duration::from_micros(5);

struct Two<'a> {
    table: LoadTable<'a>,
    /// The loop without a connection has decided which loop to wake, and is in a handler.
    handles: AtomicBool,
    over: AtomicBool,
}

impl<'a> Two<'a> {
    /// Two loops in a table of several, all others of which are in long turns.
    fn among(words: &'a [AtomicU64]) -> Two<'a> {
        let table = LoadTable::over(words, Instant::now() - Duration::from_secs(1));
        let later = table.stamp(Instant::now() + Duration::from_secs(100));
        (2..table.len()).for_each(|i| table.row(i).set_state(LoopActivity::Awake, later));
        Two { table, handles: AtomicBool::new(false), over: AtomicBool::new(false) }
    }

    fn new_policy(&self, me: usize) -> LoopPolicy {
        let mutex_delay = Duration::from_millis(500);
        let setup = LoopSetup { me, sockets: 1, connections: 9, mutex_delay };
        LoopPolicy::take(AcceptPolicy::Fair, setup, Instant::now(), &self.table)
    }

    /// A loop that sleeps in the list for random times, accepts, and runs handlers.
    fn accept(&self, mut dice: Dice) {
        let (mut policy, table) = (self.new_policy(0), &self.table);
        while !self.over.load(SeqCst) {
            let _ = policy.before_wait(Instant::now(), table, Load::default(), true);
            (0..dice.below(256)).for_each(|_| std::hint::spin_loop());
            let woke = Instant::now();
            let _ = policy.after_wait(woke, table);
            let _ = policy.accepted(woke, table, Load::default(), 1);
            while policy.next_to_wake(woke, table).is_some() {}
            self.handles.store(true, SeqCst);
            while woke.elapsed() < HANDLER {
                std::hint::spin_loop();
            }
            self.handles.store(false, SeqCst);
        }
    }

    /// A loop with a connection, which leaves the list to the other loop. Returns how often it
    /// relied on that loop. Also returns how often nothing would have woken it while the other loop
    /// was in a handler.
    fn leave(&self, decisions: u64) -> (u64, u64) {
        let (mut policy, table) = (self.new_policy(1), &self.table);
        let (mut relied, mut lost) = (0, 0);
        for _ in 0..decisions {
            let load = Load { inflight: 0, open: 1 };
            let wait = policy.before_wait(Instant::now(), table, load, true);
            let relies = wait.at_most.is_some_and(|time| time > RELIES);
            if relies && wait.stance == Stance::Disarmed {
                relied += 1;
                lost += u64::from(self.handles.load(SeqCst) && !table.row(1).is_called());
            }
            let _ = policy.after_wait(Instant::now(), table);
        }
        self.over.store(true, SeqCst);
        (relied, lost)
    }
}

#[test]
fn no_loop_leaves_the_list_unseen_by_the_last_one_in_it() {
    for loops in [2, 64] {
        let words: Vec<_> = (0..LoadTable::words(loops)).map(|_| AtomicU64::new(0)).collect();
        let two = Two::among(&words);
        let decisions = number("WEIR_CASES").unwrap_or(DECISIONS);
        let (relied, lost) = std::thread::scope(|scope| {
            scope.spawn(|| two.accept(Dice::new(1)));
            two.leave(decisions)
        });
        println!("{loops} loops: {decisions} decisions, {relied} relied on the other loop");
        assert_eq!(lost, 0, "of {relied}");
        assert!(relied > 0);
    }
}
