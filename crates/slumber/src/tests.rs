//! The protocol in all orders that two callers and a loop can have, and that each of its steps is needed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64 as ModelWord, AtomicUsize};
use loom::thread;

use super::*;

word!(ModelWord);

/// What the loop does in a turn, before it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnStep {
    Silence,
    Read,
    PublishAndReadAgain,
    /// The two of them apart, for mistakes.
    Publish,
    ReadAgain,
}
use TurnStep::*;

const PROTOCOL: &[TurnStep] = &[Silence, Read, PublishAndReadAgain];

#[derive(Default)]
struct Model {
    slumber: Slumber<ModelWord>,
    /// The callers that have left a message, and how often the notifier was written since it was cleared.
    said: [AtomicUsize; CALLERS],
    bell: AtomicUsize,
}

const CALLERS: usize = 2;
const ALL: u64 = (1 << CALLERS) - 1;

impl Model {
    fn caller(&self, i: usize) {
        self.said[i].store(1, Relaxed);
        if self.slumber.call(1 << i) {
            self.bell.fetch_add(1, Relaxed);
        }
    }

    /// A turn, and whether it ends with a sleep. `heard` counts what the loop has read of each caller.
    fn turn(&self, steps: &[TurnStep], heard: &mut [usize; CALLERS]) -> bool {
        self.slumber.wake();
        let mut sleeps = true;
        for step in steps {
            match step {
                Silence => self.bell.store(0, Relaxed),
                Read => (0..CALLERS).filter(|i| self.slumber.take(1 << i)).for_each(|i| {
                    heard[i] += self.said[i].load(Relaxed);
                }),
                PublishAndReadAgain => sleeps = self.slumber.sleep(),
                Publish => _ = self.slumber.0.raise(ASLEEP),
                ReadAgain => sleeps = !self.slumber.has(ALL),
            }
        }
        sleeps
    }
}

/// Two callers, and a loop that has two turns, since something else may wake it. Then it must be awake, or rung, or
/// must have heard both. Once all is said, it hears of all and sleeps with a silent bell.
fn check(steps: &'static [TurnStep]) {
    let mut checker = loom::model::Builder::new();
    checker.preemption_bound = Some(3);
    checker.check(move || {
        let model = Arc::new(Model::default());
        let call = |i| {
            let model = Arc::clone(&model);
            thread::spawn(move || model.caller(i))
        };
        let callers = [0, 1].map(call);
        let mut heard = [0; CALLERS];
        model.turn(steps, &mut heard);
        let sleeps = model.turn(steps, &mut heard);
        for caller in callers {
            caller.join().unwrap();
        }
        let rings = model.bell.load(Relaxed) > 0;
        assert!(!sleeps || rings || heard == [1; CALLERS], "it sleeps, and a call is lost");
        model.turn(steps, &mut heard);
        assert!(model.turn(steps, &mut heard), "it does not sleep though nothing is to be done");
        assert_eq!((heard, model.bell.load(Relaxed)), ([1; CALLERS], 0), "heard, rings");
    });
}

#[test]
fn no_call_is_lost_and_the_loop_sleeps_when_nothing_is_to_be_done() {
    check(PROTOCOL);
}

/// Each mistake is found, or the model would not look closely enough.
#[test]
fn each_step_is_needed_where_it_is() {
    let mistakes: &[&[TurnStep]] = &[
        &[Read, PublishAndReadAgain],
        &[Silence, PublishAndReadAgain],
        &[Silence, Read],
        &[Read, PublishAndReadAgain, Silence],
        &[Silence, Read, Publish],
        &[Silence, Read, ReadAgain, Publish],
        &[PublishAndReadAgain, Silence, Read],
    ];
    for steps in mistakes {
        let found = catch_unwind(AssertUnwindSafe(|| check(steps))).is_err();
        assert!(found, "{steps:?} does no harm");
    }
    // Apart from each other, the last two steps do no harm in their order.
    check(&[Silence, Read, Publish, ReadAgain]);
}
