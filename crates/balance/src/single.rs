//! `single`: the first living loop accepts all connections.
//!
//! The other loops do only work that they get by other ways. If the worker of the first loop dies,
//! the next loop takes over within [`LOOK`].

use std::time::{Duration, Instant};

use crate::{LoadTable, LoopActivity, LoopSetup, Policy, Stance, Wait};

/// How often the other loops check whether the first one is alive.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) struct Single {
    me: usize,
}

impl Single {
    pub(crate) fn new(setup: LoopSetup) -> Single {
        Single { me: setup.me }
    }
}

impl Policy for Single {
    fn before_wait(&mut self, _now: Instant, loops: &LoadTable<'_>) -> Wait {
        let there = |state| !matches!(state, LoopActivity::Vacant | LoopActivity::Retired);
        let first = !loops.rows().take(self.me).any(|(_, row)| there(row.state()));
        let stance = if first { Stance::Armed } else { Stance::Disarmed };
        Wait { stance, at_most: (self.me > 0).then_some(LOOK), ..Wait::ARMED }
    }
}
