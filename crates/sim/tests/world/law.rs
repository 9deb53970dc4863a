//! What each accept policy promises, held against the server that runs in the world.

use weir_testkit::Dice;

use crate::book::Book;
use crate::door::Seen;

const MS: u64 = 1_000_000;
/// A wake-up, an accept, and what else of a turn comes before it.
const PROMPT: u64 = MS / 2;

/// What a policy promises, in nanoseconds; `None`: nothing.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    pub policy: &'static str,
    /// Six connections one after another to three idle loops.
    six: fn(&[u64]) -> bool,
    /// The longest wait of a connection beside a sleeping loop, whatever happens to other loops.
    wait: Option<u64>,
    /// The same while no loop is stopped.
    calm_wait: Option<u64>,
    /// The longest time for which no loop listens.
    unarmed: Option<u64>,
}

fn one_takes_all(spread: &[u64]) -> bool {
    *spread == [0, 0, 6]
}

fn two_each(spread: &[u64]) -> bool {
    *spread == [2, 2, 2]
}

fn whatever(spread: &[u64]) -> bool {
    spread.iter().sum::<u64>() == 6
}

const LAWS: &[Law] = &[
    // One loop does the work, however many sleep; when it is stopped, nobody does.
    Law { policy: "single", six: one_takes_all, wait: None, calm_wait: None, unarmed: None },
    Law {
        policy: "herd",
        six: whatever,
        wait: Some(PROMPT),
        calm_wait: Some(PROMPT),
        unarmed: Some(0),
    },
    Law {
        policy: "shared_epoll",
        six: whatever,
        wait: Some(PROMPT),
        calm_wait: Some(PROMPT),
        unarmed: Some(0),
    },
    // A loop that was told and is stopped before it accepts takes the wake-up with it.
    Law {
        policy: "exclusive",
        six: one_takes_all,
        wait: None,
        calm_wait: Some(PROMPT),
        unarmed: Some(0),
    },
    Law { policy: "rotate", six: whatever, wait: None, calm_wait: Some(PROMPT), unarmed: Some(0) },
    Law {
        policy: "rotate=1",
        six: two_each,
        wait: None,
        calm_wait: Some(PROMPT),
        unarmed: Some(0),
    },
    // Nobody listens while the holder works and the others wait for their delay.
    Law {
        policy: "mutex",
        six: whatever,
        wait: None,
        calm_wait: Some(501 * MS),
        unarmed: Some(501 * MS),
    },
    // A loop that is woken by something else has its thread in the list all the same, and one connection may wait for it.
    Law { policy: "blocking", six: two_each, wait: None, calm_wait: Some(PROMPT), unarmed: None },
    // The kernel knows no loads: who is stopped has a queue of its own all the same.
    Law { policy: "reuseport", six: whatever, wait: None, calm_wait: Some(PROMPT), unarmed: None },
    // One thread takes all, and waits a little where nobody is to be had.
    Law { policy: "dispatch", six: whatever, wait: None, calm_wait: Some(6 * MS), unarmed: None },
    // Who carries more leaves the place to those that work for 5 ms at most, to those that sleep for two rounds of 20.
    FAIR,
    FAIR,
    FAIR,
    FAIR,
];

const FAIR: Law = Law {
    policy: "fair",
    six: two_each,
    wait: Some(45 * MS),
    calm_wait: Some(6 * MS),
    unarmed: Some(6 * MS),
};

pub fn draw(dice: &mut Dice) -> Law {
    LAWS[dice.below(LAWS.len())]
}

impl Law {
    /// Each loop has a queue of its own.
    pub fn has_a_queue_each(policy: &str) -> bool {
        policy == "reuseport"
    }

    /// Six connections came to three idle loops, one after another.
    pub fn judge_six(&self, accepted: &[u64], book: &mut Book) {
        let mut spread = accepted.to_vec();
        spread.sort_unstable();
        if !(self.six)(&spread) {
            book.find(format!("{}: six connections went {spread:?}", self.policy));
        }
    }

    /// What was seen of the listening socket, while there was a processor for everybody.
    pub fn judge(&self, seen: Seen, stops: bool, book: &mut Book) {
        let wait = if stops { self.wait } else { self.calm_wait };
        let unarmed = if stops { None } else { self.unarmed };
        let mut within = |limit: Option<u64>, seen: u64, what: &str| {
            if limit.is_some_and(|limit| seen > limit) {
                book.find(format!("{}: {what} for {} us", self.policy, seen / 1000));
            }
        };
        within(wait, seen.beside_sleeper, "a connection waited beside a loop that slept");
        within(unarmed, seen.nobody_armed, "nobody listened");
    }
}
