//! The mean loads that `fair` compares a loop's load with.

use std::time::Instant;

use crate::{Load, LoadTable, LoopActivity, Row};

/// The mean load of the loops that are compared, except those that cannot accept soon.
pub(super) struct Means {
    open: Mean,
    /// The mean of requests, over the loops that are not above the mean of connections. None if
    /// requests are not compared.
    inflight: Option<Mean>,
    slack: u64,
    window: usize,
}

impl Means {
    pub(super) fn of_connections(
        now: Instant,
        loops: &LoadTable<'_>,
        me: usize,
        window: usize,
        slack: u64,
    ) -> Means {
        let mut open = Mean { sum: loops.row(me).load().open, n: 1 };
        others(now, loops, me, window).for_each(|(_, row)| open.add(row.load().open));
        Means { open, inflight: None, slack, window }
    }

    pub(super) fn weigh_requests(&mut self, now: Instant, loops: &LoadTable<'_>, me: usize) {
        let mut inflight = Mean { sum: loops.row(me).load().inflight, n: 1 };
        let others = others(now, loops, me, self.window).map(|(_, row)| row);
        for row in others.filter(|row| self.open.admits(row.load().open, self.slack)) {
            let busy = u64::from(row.state() == LoopActivity::Awake);
            inflight.add(row.load().inflight.max(busy));
        }
        self.inflight = Some(inflight);
    }

    /// Compares only connections from now on.
    pub(super) fn forget_requests(&mut self) {
        self.inflight = None;
    }

    /// How far the load is above the mean: in connections, or in requests if its connections are
    /// not above the mean.
    pub(super) fn excess(&self, load: Load) -> u64 {
        match self.inflight {
            _ if !self.open.admits(load.open, self.slack) => self.open.excess(load.open),
            Some(mean) if !mean.admits(load.inflight, self.slack) => mean.excess(load.inflight),
            _ => 0,
        }
    }

    /// Whether the load is above the mean only because of its requests.
    pub(super) fn is_of_requests(&self, load: Load) -> bool {
        self.open.admits(load.open, self.slack) && self.excess(load) > 0
    }

    /// A loop above the mean that sleeps in the wait list.
    pub(super) fn armed_above_mean(
        &self,
        now: Instant,
        loops: &LoadTable<'_>,
        me: usize,
    ) -> Option<usize> {
        let mut others = others(now, loops, me, self.window);
        let is_above =
            |row: Row<'_>| row.state() == LoopActivity::Armed && self.excess(row.load()) > 0;
        others.find(|&(_, row)| is_above(row)).map(|(i, _)| i)
    }
}

#[derive(Clone, Copy)]
struct Mean {
    sum: u64,
    n: u64,
}

impl Mean {
    fn add(&mut self, value: u64) {
        // A word in shared memory may have any value.
        self.sum = self.sum.saturating_add(value);
        self.n += 1;
    }

    /// How far the value is above the mean, but at least 1.
    fn excess(&self, value: u64) -> u64 {
        value.saturating_sub(self.sum / self.n).max(1)
    }

    /// Whether the value is not above the mean. If the mean is 16 or more, a sixteenth more is
    /// still not above it. Such a small difference does not matter and would make loops leave and
    /// join the list often.
    fn admits(&self, value: u64, slack: u64) -> bool {
        let mean = self.sum / self.n;
        value.saturating_mul(self.n) <= self.sum
            || value <= mean.saturating_add((mean / 16).max(slack))
    }
}

/// The rows of the other loops that are compared, except those of loops that cannot accept soon.
fn others<'a>(
    now: Instant,
    loops: &LoadTable<'a>,
    me: usize,
    window: usize,
) -> impl Iterator<Item = (usize, Row<'a>)> + use<'a> {
    let (stamp, loops) = (loops.stamp(now), *loops);
    loops.compared(window).filter(move |&(i, row)| i != me && loops.counts(row, stamp))
}
