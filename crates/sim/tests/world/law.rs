//! Checks the promises of accept policies in the server that runs in the world.

use std::time::Duration;

use weir_balance::model::{Bound, PROMISES, Promise};
use weir_balance::{AcceptPolicy, SocketLayout};
use weir_testkit::Dice;

use crate::accept_queue::Seen;
use crate::records::Records;

/// How long a wake-up and an accept may take, including the work before the accept in a turn.
const PROMPT: Duration = Duration::from_micros(500);
/// How much more often `fair` is drawn than another policy, since it is the default.
const FAIR: usize = 4;

/// The promise of an accept policy in the world.
#[derive(Clone, Copy, Debug)]
pub struct Law(Promise);

pub fn draw(dice: &mut Dice) -> Law {
    let laws = PROMISES.iter().filter_map(|promise| promise.in_the_world());
    let laws = laws.flat_map(|promise| {
        let times = if promise.policy == AcceptPolicy::Fair { FAIR } else { 1 };
        std::iter::repeat_n(Law(promise), times)
    });
    let laws: Vec<Law> = laws.collect();
    laws[dice.below(laws.len())]
}

impl Law {
    /// The policy, as `accept_balance` names it.
    pub fn policy(&self) -> String {
        self.0.policy.to_string()
    }

    /// This policy, or `fair` if it gives each loop a queue of its own. The kernel's hash of
    /// addresses would not be repeatable.
    pub fn with_a_shared_queue(self) -> Law {
        let shared = |policy: AcceptPolicy| matches!(policy.shape(), SocketLayout::Shared { .. });
        let default = PROMISES.iter().find(|promise| promise.policy == AcceptPolicy::Fair);
        match default {
            Some(default) if !shared(self.0.policy) => Law(*default),
            _ => self,
        }
    }

    /// Whether each loop has a queue of its own.
    pub fn has_a_queue_each(policy: &str) -> bool {
        policy == AcceptPolicy::Reuseport.name()
    }

    /// Checks how six connections were spread that came one after another to three idle loops.
    pub fn judge_six(&self, accepted: &[u64], records: &mut Records) {
        let mut spread = accepted.to_vec();
        spread.sort_unstable();
        if !self.0.six.fits(&spread) {
            records.report(format!("{}: six connections went {spread:?}", self.0.policy));
        }
    }

    /// Checks the measurements of the listening sockets, while there was a processor for every
    /// loop.
    pub fn judge(&self, seen: Seen, stops: bool, records: &mut Records) {
        let wait = if stops { self.0.wait } else { self.0.calm_wait };
        let unarmed = if stops { Bound::Unbounded } else { self.0.unarmed };
        let mut within = |bound: Bound, seen: u64, what: &str| {
            let limit = bound.limit(PROMPT).map(|limit| limit.as_nanos() as u64);
            if limit.is_some_and(|limit| seen > limit) {
                records.report(format!("{}: {what} for {} us", self.0.policy, seen / 1000));
            }
        };
        within(wait, seen.beside_sleeper, "a connection waited beside a loop that slept");
        within(unarmed, seen.nobody_armed, "no loop listened");
    }
}
