//! Checks the protocol in all possible orders of two callers and a loop, and that each of its steps
//! is needed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64 as ModelWord, AtomicUsize};
use loom::thread;

use super::*;

word!(ModelWord);

/// The steps of the loop in a turn, before it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnStep {
    Silence,
    Read,
    PublishAndReadAgain,
    /// Both steps separately, for the wrong protocols.
    Publish,
    ReadAgain,
}
use TurnStep::*;

const PROTOCOL: &[TurnStep] = &[Silence, Read, PublishAndReadAgain];

#[derive(Default)]
struct Model {
    slumber: Slumber<ModelWord>,
    /// The callers that have left a message, and how often the notifier was written since it was
    /// cleared.
    messages: [AtomicUsize; CALLERS],
    notified: AtomicUsize,
}

const CALLERS: usize = 2;
const ALL: u64 = (1 << CALLERS) - 1;

impl Model {
    fn caller(&self, i: usize) {
        self.messages[i].store(1, Relaxed);
        if self.slumber.call(1 << i) {
            self.notified.fetch_add(1, Relaxed);
        }
    }

    /// Runs a turn. Returns whether it ends with a sleep. `received` counts the messages that the loop
    /// has read of each caller.
    fn turn(&self, steps: &[TurnStep], received: &mut [usize; CALLERS]) -> bool {
        self.slumber.wake();
        let mut sleeps = true;
        for step in steps {
            match step {
                Silence => self.notified.store(0, Relaxed),
                Read => (0..CALLERS).filter(|i| self.slumber.take(1 << i)).for_each(|i| {
                    received[i] += self.messages[i].load(Relaxed);
                }),
                PublishAndReadAgain => sleeps = self.slumber.sleep(),
                Publish => _ = self.slumber.0.raise(ASLEEP),
                ReadAgain => sleeps = !self.slumber.has(ALL),
            }
        }
        sleeps
    }
}

/// Two callers, and a loop with two turns, since something else may wake it. Afterwards the loop
/// must be awake, or its notifier written, or it must have read both messages. After all messages
/// it has read all of them, and sleeps with a clear notifier.
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
        let mut received = [0; CALLERS];
        model.turn(steps, &mut received);
        let sleeps = model.turn(steps, &mut received);
        for caller in callers {
            caller.join().unwrap();
        }
        let rings = model.notified.load(Relaxed) > 0;
        assert!(!sleeps || rings || received == [1; CALLERS], "it sleeps, and a call is lost");
        model.turn(steps, &mut received);
        assert!(model.turn(steps, &mut received), "it does not sleep though nothing is to be done");
        assert_eq!((received, model.notified.load(Relaxed)), ([1; CALLERS], 0), "received, rings");
    });
}

#[test]
fn no_call_is_lost_and_the_loop_sleeps_when_nothing_is_to_be_done() {
    check(PROTOCOL);
}

/// Each wrong protocol must fail, or the model would not be precise enough.
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
    // Separately, the last two steps do no harm in this order.
    check(&[Silence, Read, Publish, ReadAgain]);
}
