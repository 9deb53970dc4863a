//! A loop's policy, with the loop's row of the load table.

use std::time::{Duration, Instant};

use crate::{
    AcceptPolicy, AfterAccept, Load, LoadTable, LoopActivity, Policy, Probe, Stance, Wait,
};

/// The facts about its loop that a policy gets at the start.
#[derive(Clone, Copy, Debug)]
pub struct LoopSetup {
    /// The loop's row.
    pub me: usize,
    /// The number of listening sockets. Arming and disarming costs a system call for each.
    pub sockets: usize,
    /// The most connections of the loop; nginx: `worker_connections`.
    pub connections: u64,
    /// How long a loop that did not get the accept lock waits; nginx: `accept_mutex_delay`.
    pub mutex_delay: Duration,
}

/// Keeps a loop's row and asks its policy. The [`AcceptDriver`](crate::AcceptDriver) calls it in the order of a turn:
/// [`before_wait`], the wait, [`after_wait`], [`accepted`] for each accept, then [`next_to_wake`] until it is `None`.
///
/// [`before_wait`]: LoopPolicy::before_wait
/// [`after_wait`]: LoopPolicy::after_wait
/// [`accepted`]: LoopPolicy::accepted
/// [`next_to_wake`]: LoopPolicy::next_to_wake
pub struct LoopPolicy {
    setup: LoopSetup,
    policy: Box<dyn Policy>,
    retired: bool,
}

impl LoopPolicy {
    /// Clears the row and takes it over for this loop.
    #[must_use]
    pub fn take(
        kind: AcceptPolicy,
        setup: LoopSetup,
        now: Instant,
        loops: &LoadTable<'_>,
    ) -> LoopPolicy {
        loops.clear(setup.me);
        loops.row(setup.me).set_state(LoopActivity::Awake, loops.stamp(now));
        LoopPolicy { setup, policy: kind.policy(setup), retired: false }
    }

    /// The number of the loop's row.
    #[must_use]
    pub fn me(&self) -> usize {
        self.setup.me
    }

    /// The loop is about to sleep with this load. A loop that is not `able` to accept, for lack of
    /// slots or descriptors, is disarmed whatever its policy says.
    pub fn before_wait(
        &mut self,
        now: Instant,
        loops: &LoadTable<'_>,
        load: Load,
        able: bool,
    ) -> Wait {
        let row = loops.row(self.setup.me);
        row.set_load(load);
        if row.acknowledge_wake() {
            self.policy.on_woken();
        }
        let wait = self.fall_asleep(now, loops, able);
        if row.sleep() { wait } else { Wait { at_most: Some(Duration::ZERO), ..wait } }
    }

    fn fall_asleep(&mut self, now: Instant, loops: &LoadTable<'_>, able: bool) -> Wait {
        let (row, stamp) = (loops.row(self.setup.me), loops.stamp(now));
        if self.retired {
            return Wait::DISARMED;
        }
        if !able {
            row.set_state(LoopActivity::Full, stamp);
            return Wait::DISARMED;
        }
        let wait = self.policy.before_wait(now, loops);
        let asleep = if wait.stance == Stance::Disarmed {
            LoopActivity::Disarmed
        } else {
            LoopActivity::Armed
        };
        row.set_state(asleep, stamp);
        wait
    }

    /// The wait has returned.
    pub fn after_wait(&mut self, now: Instant, loops: &LoadTable<'_>) -> Probe {
        let row = loops.row(self.setup.me);
        row.awake();
        if row.acknowledge_wake() {
            self.policy.on_woken();
        }
        let probe = if row.take_recheck() { Probe::Try } else { Probe::No };
        if self.retired {
            return probe;
        }
        row.set_state(LoopActivity::Awake, loops.stamp(now));
        loops.unmark_above_mean(self.setup.me);
        self.policy.after_wait(now, loops);
        probe
    }

    /// The loop has accepted `n` connections in a row from one socket; `load` includes them.
    pub fn accepted(
        &mut self,
        now: Instant,
        loops: &LoadTable<'_>,
        load: Load,
        n: u32,
    ) -> AfterAccept {
        let row = loops.row(self.setup.me);
        row.set_load(load);
        loops.count_accepted(self.setup.me, n);
        self.policy.on_accepted(now, loops, n)
    }

    /// The loop has taken a connection that an acceptor handed over; `load` includes it.
    pub fn taken(&mut self, loops: &LoadTable<'_>, load: Load) {
        let row = loops.row(self.setup.me);
        row.set_load(load);
        loops.count_accepted(self.setup.me, 1);
        row.count_taken();
    }

    /// How many connections were handed to this loop, and how many it has taken. None while an
    /// acceptor is handing one over. Called before the loop looks for such connections.
    pub(crate) fn handover_counts(&self, loops: &LoadTable<'_>) -> Option<(u64, u64)> {
        let counts = loops.row(self.setup.me).counts();
        (!loops.hands_to(self.setup.me)).then_some(counts)
    }

    /// No connection was there. Corrects the count of connections that never arrive because their
    /// acceptor has died.
    pub(crate) fn settle_handover(&self, loops: &LoadTable<'_>, counted: Option<(u64, u64)>) {
        if let Some(counts) = counted {
            loops.row(self.setup.me).settle(counts);
        }
    }

    /// The loop could not be armed. The other loops must not rely on it.
    pub fn arm_failed(&mut self, now: Instant, loops: &LoadTable<'_>) {
        if !self.retired {
            loops.row(self.setup.me).set_state(LoopActivity::Full, loops.stamp(now));
        }
    }

    /// A connection may wait that this loop cannot accept, and only this loop was woken for it.
    /// Returns the loops to wake, which look for it.
    pub fn pass_recheck<'a>(
        &self,
        now: Instant,
        loops: &LoadTable<'a>,
    ) -> impl Iterator<Item = usize> + use<'a> {
        loops.pass_recheck(now, self.setup.me..self.setup.me + 1)
    }

    /// A sleeping loop to wake now, which must decide again.
    pub fn next_to_wake(&mut self, now: Instant, loops: &LoadTable<'_>) -> Option<usize> {
        if self.retired { None } else { self.policy.loop_to_wake(now, loops) }
    }

    /// A loop whose queue this loop empties.
    pub fn next_to_relieve(&mut self) -> Option<usize> {
        if self.retired { None } else { self.policy.loop_to_relieve() }
    }

    /// The loop has accepted `n` connections from another loop's queue; `load` includes them.
    pub fn relieved(&mut self, loops: &LoadTable<'_>, load: Load, n: u32) {
        let row = loops.row(self.setup.me);
        row.set_load(load);
        loops.count_accepted(self.setup.me, n);
    }

    /// Whether the loop accepts no new connections any more.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.retired
    }

    /// The loop to which its policy would hand a connection.
    #[cfg(test)]
    pub(crate) fn policy_places(&mut self, now: Instant, loops: &LoadTable<'_>) -> Option<usize> {
        self.policy.place(now, loops)
    }

    /// The loop accepts no new connections from now on. Called while it is awake. Returns the loops
    /// to wake, since one of them may have relied on this one.
    pub fn retire(&mut self, now: Instant, loops: &LoadTable<'_>) -> Vec<usize> {
        self.retired = true;
        loops.unlock(self.setup.me);
        loops.row(self.setup.me).set_state(LoopActivity::Retired, loops.stamp(now));
        loops.above_mean().filter(|&i| i != self.setup.me).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn setup(me: usize) -> LoopSetup {
        LoopSetup { me, sockets: 1, connections: 2, mutex_delay: Duration::from_millis(500) }
    }

    #[test]
    fn a_loop_that_is_not_able_is_disarmed_whatever_its_policy_says() {
        let words: Vec<_> = (0..LoadTable::words(2)).map(|_| AtomicU64::new(0)).collect();
        let now = Instant::now();
        let table = LoadTable::over(&words, now);
        for name in AcceptPolicy::NAMES {
            let mut policy =
                LoopPolicy::take(AcceptPolicy::parse(name).unwrap(), setup(0), now, &table);
            let full = Load { inflight: 0, open: 2 };
            assert_eq!(policy.before_wait(now, &table, full, false), Wait::DISARMED, "{name}");
            assert_eq!(table.row(0).state(), LoopActivity::Full);
            assert_eq!(policy.after_wait(now, &table), Probe::No);
        }
    }

    #[test]
    fn a_loop_that_is_woken_in_its_turn_has_acknowledged_before_it_sleeps() {
        let words: Vec<_> = (0..LoadTable::words(2)).map(|_| AtomicU64::new(0)).collect();
        let now = Instant::now();
        let table = LoadTable::over(&words, now);
        let mut policy = LoopPolicy::take(AcceptPolicy::Fair, setup(0), now, &table);
        assert!(!table.row(0).wake(table.stamp(now)), "it is awake and needs no notifier");
        let _ = policy.before_wait(now, &table, Load::default(), true);
        let later = now + Duration::from_secs(1);
        assert!(table.counts(table.row(0), table.stamp(later)));
    }

    #[test]
    fn a_retired_loop_takes_nothing_and_counts_no_more() {
        let words: Vec<_> = (0..LoadTable::words(2)).map(|_| AtomicU64::new(0)).collect();
        let now = Instant::now();
        let table = LoadTable::over(&words, now);
        let mut policy = LoopPolicy::take(AcceptPolicy::Fair, setup(1), now, &table);
        table.mark_above_mean(0);
        assert_eq!(policy.retire(now, &table), [0]);
        assert_eq!(policy.before_wait(now, &table, Load::default(), true), Wait::DISARMED);
        let _ = policy.after_wait(now, &table);
        assert_eq!(table.row(1).state(), LoopActivity::Retired);
    }
}
