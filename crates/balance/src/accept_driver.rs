//! Carries out what a policy answers, turn by turn.
//!
//! The server and the model run the same [`AcceptDriver`]. Each brings its own [`ListenerSet`]: the server's makes system
//! calls, the model's changes a model of the kernel.

use std::time::{Duration, Instant};

use crate::{AfterAccept, Load, LoadTable, LoopPolicy, Probe, Stance};

/// A loop accepts nothing for this long after descriptors, memory or places in its backend ran out.
/// nginx: accept_mutex_delay.
const SHORTAGE: Duration = Duration::from_millis(500);

/// A loop's listening sockets and connections, as its [`AcceptDriver`] uses them.
pub trait ListenerSet {
    /// A listening socket.
    type Listener: Copy;

    /// The time at which the turn began.
    fn now(&self) -> Instant;
    /// The time at this moment.
    fn this_moment(&self) -> Instant {
        self.now()
    }
    /// The loop's requests and connections.
    fn load(&self) -> Load;
    /// Whether the loop may have one more connection.
    fn has_room(&self) -> bool;
    /// Whether the loop has no free slot for a connection and no idle connection that it could
    /// close for one.
    fn is_full(&mut self) -> bool {
        !self.has_room()
    }
    /// Closes idle connections to free slots.
    fn make_room(&mut self) {}
    /// The sockets that other loops accept from as well.
    fn shared(&self) -> Vec<Self::Listener>;
    /// Whether other loops accept from this socket as well.
    fn is_shared(&self, listener: Self::Listener) -> bool;
    /// Accepts the connection that has waited longest.
    fn accept(&mut self, listener: Self::Listener) -> AcceptOutcome;
    /// The backend reported a socket, but its queue was empty at accept.
    fn found_empty(&mut self) {}
    /// Takes the next connection that an acceptor handed over.
    fn take_handed(&mut self) -> AcceptOutcome;
    /// Registers the shared sockets as the policy says. Registers the loop's own sockets if it is `able` to accept.
    /// False if the kernel refused some registration.
    fn arm(&mut self, stance: Stance, able: bool) -> bool;
    /// Moves the loop to the end of the socket's wait list.
    fn readd(&mut self, listener: Self::Listener);
    /// Wakes loop `i` through its notifier.
    fn notify(&mut self, i: usize);
    /// The sockets that belong to loop `i` alone, if this loop has them open.
    fn of(&self, _i: usize) -> Vec<Self::Listener> {
        Vec::new()
    }
}

/// The result of an accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptOutcome {
    /// A connection was accepted, and its handling has begun.
    Accepted,
    /// No connection waits.
    Empty,
    /// Descriptors or memory have run out. The connection stays in the queue.
    Shortage,
}

/// Asks a loop's policy in each turn and does what it answers.
///
/// The order of a turn is [`before_wait`](AcceptDriver::before_wait), the wait,
/// [`after_wait`](AcceptDriver::after_wait), [`accept`](AcceptDriver::accept) for each socket that was reported, and
/// [`after_accepts`](AcceptDriver::after_accepts).
pub struct AcceptDriver {
    policy: LoopPolicy,
    multi_accept: bool,
    /// The loop accepts nothing before this time, because something ran out.
    paused: Option<Instant>,
    /// The loop holds a recheck token: it tries every shared socket in each turn until all queues are empty.
    holds_recheck: bool,
    /// The recheck has already tried every shared socket in this turn.
    has_rechecked: bool,
}

impl AcceptDriver {
    /// A driver for a loop with this policy. With `multi_accept` the loop accepts all waiting
    /// connections at once.
    #[must_use]
    pub fn new(policy: LoopPolicy, multi_accept: bool) -> AcceptDriver {
        AcceptDriver {
            policy,
            multi_accept,
            paused: None,
            holds_recheck: false,
            has_rechecked: false,
        }
    }

    /// The loop's row.
    #[must_use]
    pub fn me(&self) -> usize {
        self.policy.me()
    }

    /// The loop is about to sleep. Registers its sockets as the policy says; returns the stance and the longest sleep.
    pub fn before_wait(
        &mut self,
        set: &mut impl ListenerSet,
        loops: &LoadTable<'_>,
    ) -> (Stance, Option<Duration>) {
        // A policy compares how long loops have slept, so the time at which the turn began is too old.
        let now = set.this_moment();
        self.paused = self.paused.filter(|until| now < *until);
        let able = !set.is_full() && self.paused.is_none();
        let wait = self.policy.before_wait(now, loops, set.load(), able);
        let mut at_most = wait.at_most;
        if !set.arm(wait.stance, able) {
            self.policy.arm_failed(now, loops);
            self.pass_recheck(set, loops, now);
            at_most = Some(at_most.map_or(SHORTAGE, |time| time.min(SHORTAGE)));
        } else if self.holds_recheck && able {
            at_most = Some(Duration::ZERO);
        } else if self.holds_recheck {
            self.pass_recheck(set, loops, now);
        }
        if let Some(i) = wait.wake {
            set.notify(i);
        }
        let resumes = self.paused.map(|until| until.saturating_duration_since(now));
        (wait.stance, at_most.into_iter().chain(resumes).min())
    }

    /// The wait has ended.
    pub fn after_wait(&mut self, set: &mut impl ListenerSet, loops: &LoadTable<'_>) {
        self.has_rechecked = false;
        self.holds_recheck |= self.policy.after_wait(set.now(), loops) == Probe::Try;
        if self.holds_recheck && self.policy.is_retired() {
            self.pass_recheck(set, loops, set.now());
        } else if self.holds_recheck {
            self.recheck(set, loops);
        }
    }

    /// Tries every shared socket. The loop keeps its token while it finds connections, since another may wait behind
    /// them. Passing the token on instead would never end under overload. A loop that cannot accept passes it on.
    fn recheck(&mut self, set: &mut impl ListenerSet, loops: &LoadTable<'_>) {
        let mut found = false;
        for listener in set.shared() {
            found |= self.accept_from(set, loops, listener) > 0;
        }
        self.holds_recheck &= found;
        self.has_rechecked = true;
    }

    /// Accepts from a socket that was reported: one connection, or all that wait if `multi_accept` is on.
    pub fn accept<S: ListenerSet>(
        &mut self,
        set: &mut S,
        loops: &LoadTable<'_>,
        listener: S::Listener,
    ) {
        // The recheck has already tried this socket. The kernel reports it again while a connection waits.
        if self.has_rechecked && set.is_shared(listener) {
            return;
        }
        if self.accept_from(set, loops, listener) == 0 {
            set.found_empty();
        }
    }

    /// Accepts from one socket. Returns how many connections were accepted.
    fn accept_from<S: ListenerSet>(
        &mut self,
        set: &mut S,
        loops: &LoadTable<'_>,
        listener: S::Listener,
    ) -> u32 {
        let mut accepted = 0;
        if !set.has_room() {
            set.make_room();
        }
        while self.is_able(set) && self.take_from(set, listener) == AcceptOutcome::Accepted {
            accepted += 1;
            if !self.multi_accept {
                break;
            }
        }
        // The kernel woke only this loop for a connection that may still wait. The recheck token
        // makes another loop look for it.
        if set.is_shared(listener) && !self.is_able(set) {
            self.pass_recheck(set, loops, set.now());
        }
        if accepted > 0
            && self.policy.accepted(set.now(), loops, set.load(), accepted) == AfterAccept::Readd
        {
            set.readd(listener);
        }
        accepted
    }

    /// Accepts all connections that wait at a socket that no other loop will accept from. False if
    /// descriptors or memory ran out.
    pub fn drain<S: ListenerSet>(&mut self, set: &mut S, listener: S::Listener) -> bool {
        loop {
            match self.take_from(set, listener) {
                AcceptOutcome::Accepted => {}
                ended => return ended == AcceptOutcome::Empty,
            }
        }
    }

    /// When to try again: only this loop may have been woken for a connection that it could not accept.
    pub fn recheck_at(&self, set: &impl ListenerSet) -> Option<Instant> {
        let full = (!set.has_room()).then(|| set.now() + SHORTAGE);
        self.paused.or(full)
    }

    /// Takes connections that an acceptor handed over to this loop.
    pub fn take_handed(&mut self, set: &mut impl ListenerSet, loops: &LoadTable<'_>) {
        if !set.has_room() {
            set.make_room();
        }
        while self.is_able(set) {
            let counted = self.policy.handover_counts(loops);
            match set.take_handed() {
                AcceptOutcome::Accepted => self.policy.taken(loops, set.load()),
                AcceptOutcome::Empty => return self.policy.settle_handover(loops, counted),
                AcceptOutcome::Shortage => self.pause(set),
            }
        }
    }

    /// The loop's acceptor thread has accepted a connection for it. The thread has its own place in
    /// the wait list and leaves it by itself, so no socket is added again.
    pub fn acceptor_accepted(&mut self, set: &mut impl ListenerSet, loops: &LoadTable<'_>) {
        let _ = self.policy.accepted(set.now(), loops, set.load(), 1);
    }

    /// The turn's accepts are done and its other work follows. Wakes the loops that must compare
    /// again.
    pub fn after_accepts(&mut self, set: &mut impl ListenerSet, loops: &LoadTable<'_>) {
        while let Some(i) = self.policy.next_to_wake(set.now(), loops) {
            set.notify(i);
        }
        while let Some(i) = self.policy.next_to_relieve() {
            self.relieve(set, loops, i);
        }
    }

    /// Accepts connections from the queue of loop `i`, which is stalled.
    fn relieve<S: ListenerSet>(&mut self, set: &mut S, loops: &LoadTable<'_>, i: usize) {
        let given = loops.row(i).handed();
        for listener in set.of(i) {
            let mut accepted = 0;
            while self.is_able(set) && self.take_from(set, listener) == AcceptOutcome::Accepted {
                accepted += 1;
            }
            self.policy.relieved(loops, set.load(), accepted);
        }
        if self.is_able(set) {
            loops.row(i).take_all(given);
        }
    }

    /// The loop accepts no new connections from now on. Wakes the loops that relied on it.
    pub fn retire(&mut self, set: &mut impl ListenerSet, loops: &LoadTable<'_>) {
        self.policy.retire(set.now(), loops).into_iter().for_each(|i| set.notify(i));
        if self.holds_recheck {
            self.pass_recheck(set, loops, set.now());
        }
    }

    /// Whether the loop can take one more connection now.
    fn is_able(&self, set: &impl ListenerSet) -> bool {
        set.has_room() && self.paused.is_none()
    }

    fn take_from<S: ListenerSet>(&mut self, set: &mut S, listener: S::Listener) -> AcceptOutcome {
        let outcome = set.accept(listener);
        if outcome == AcceptOutcome::Shortage {
            self.pause(set);
        }
        outcome
    }

    fn pause(&mut self, set: &impl ListenerSet) {
        self.paused = Some(set.now() + SHORTAGE);
    }

    /// Gives the recheck token to another loop.
    fn pass_recheck(&mut self, set: &mut impl ListenerSet, loops: &LoadTable<'_>, now: Instant) {
        self.holds_recheck = false;
        self.policy.pass_recheck(now, loops).for_each(|i| set.notify(i));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::{AcceptPolicy, LoopSetup};

    /// A shared socket with a queue of connections, for one loop or several. Accepting may fail for
    /// lack of descriptors.
    struct Rush {
        now: Instant,
        queue: usize,
        has_room: bool,
        short: bool,
        notified: Vec<usize>,
    }

    impl ListenerSet for Rush {
        type Listener = ();

        fn now(&self) -> Instant {
            self.now
        }

        fn load(&self) -> Load {
            Load { inflight: 1, open: 1 }
        }

        fn has_room(&self) -> bool {
            self.has_room
        }

        fn shared(&self) -> Vec<()> {
            vec![()]
        }

        fn is_shared(&self, (): ()) -> bool {
            true
        }

        fn accept(&mut self, (): ()) -> AcceptOutcome {
            match (self.short, self.queue) {
                (true, _) => AcceptOutcome::Shortage,
                (_, 0) => AcceptOutcome::Empty,
                _ => {
                    self.queue -= 1;
                    AcceptOutcome::Accepted
                }
            }
        }

        fn take_handed(&mut self) -> AcceptOutcome {
            AcceptOutcome::Empty
        }

        fn arm(&mut self, _: Stance, _: bool) -> bool {
            true
        }

        fn readd(&mut self, (): ()) {}

        fn notify(&mut self, i: usize) {
            self.notified.push(i);
        }
    }

    impl Rush {
        fn new(now: Instant, queue: usize) -> Rush {
            Rush { now, queue, has_room: true, short: false, notified: Vec::new() }
        }
    }

    #[test]
    fn a_loop_that_could_not_accept_knows_when_it_can_again() {
        let (words, now) = (words(1), Instant::now());
        let table = LoadTable::over(&words, now);
        let mutex_delay = SHORTAGE;
        let setup = LoopSetup { me: 0, sockets: 1, connections: 9, mutex_delay };
        let policy = LoopPolicy::take(AcceptPolicy::Fair, setup, now, &table);
        let mut driver = AcceptDriver::new(policy, false);
        let mut rush = Rush::new(now, 1);
        assert_eq!(driver.recheck_at(&rush), None);
        rush.has_room = false;
        assert_eq!(driver.recheck_at(&rush), Some(now + SHORTAGE));
        (rush.has_room, rush.short) = (true, true);
        driver.accept(&mut rush, &table, ());
        assert_eq!(driver.recheck_at(&rush), Some(now + SHORTAGE));
        rush.now += SHORTAGE;
        assert!(!driver.drain(&mut rush, ()));
        assert_eq!(driver.recheck_at(&rush), Some(now + SHORTAGE + SHORTAGE));
        rush.short = false;
        assert!(driver.drain(&mut rush, ()) && rush.queue == 0);
    }

    /// Loops with one load table and one queue.
    struct Loops<'a> {
        table: LoadTable<'a>,
        drivers: Vec<AcceptDriver>,
        rush: Rush,
    }

    impl Loops<'_> {
        fn over(words: &[AtomicU64], loops: usize, queue: usize) -> Loops<'_> {
            let base = Instant::now();
            let (table, now) = (LoadTable::over(words, base), base + Duration::from_secs(1));
            let setup = |me| LoopSetup { me, sockets: 1, connections: 9, mutex_delay: SHORTAGE };
            let policy = |me| LoopPolicy::take(AcceptPolicy::Fair, setup(me), now, &table);
            let drivers = (0..loops).map(|me| AcceptDriver::new(policy(me), false)).collect();
            Loops { table, drivers, rush: Rush::new(now, queue) }
        }

        /// Runs a turn of loop `i`, in which the kernel reports the socket. Returns the longest
        /// sleep that the turn allowed.
        fn turn(&mut self, i: usize) -> Option<Duration> {
            let (driver, rush, table) = (&mut self.drivers[i], &mut self.rush, &self.table);
            rush.now += Duration::from_micros(5);
            let (_, at_most) = driver.before_wait(rush, table);
            driver.after_wait(rush, table);
            driver.accept(rush, table, ());
            driver.after_accepts(rush, table);
            at_most
        }

        fn give_rechecks(&self) {
            assert_eq!(
                self.table.pass_recheck_to_all(self.rush.now, 0..0).count(),
                self.table.len()
            );
        }
    }

    fn words(loops: usize) -> Vec<AtomicU64> {
        (0..LoadTable::words(loops)).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn recheck_tokens_cost_nothing_under_overload_and_end_with_the_queue() {
        const TURNS: usize = 5;
        for n in [1, 4, 64] {
            let words = words(n);
            let mut loops = Loops::over(&words, n, TURNS * n + 1);
            loops.give_rechecks();
            for turn in 1..=TURNS {
                (0..n).for_each(|i| _ = loops.turn(i));
                assert_eq!(loops.rush.queue, (TURNS - turn) * n + 1, "one accept a turn");
            }
            assert_eq!(loops.rush.notified, [], "{n} loops");
            // In the first round one loop accepts the last connection. In the second round none
            // finds any.
            (0..n).chain(0..n).for_each(|i| _ = loops.turn(i));
            assert!((0..n).all(|i| loops.turn(i) != Some(Duration::ZERO)), "{n} loops");
            assert_eq!(loops.rush.notified, []);
        }
    }

    #[test]
    fn a_loop_that_cannot_accept_any_more_passes_the_recheck_token_on() {
        for retires in [false, true] {
            let words = words(2);
            let mut loops = Loops::over(&words, 2, 9);
            let table = loops.table;
            assert_eq!(table.pass_recheck_to_all(loops.rush.now, 1..2).collect::<Vec<_>>(), [0]);
            loops.turn(0);
            assert_eq!(
                (loops.rush.queue, loops.rush.notified.len()),
                (8, 0),
                "it keeps the recheck token"
            );
            let (driver, rush) = (&mut loops.drivers[0], &mut loops.rush);
            if retires {
                driver.retire(rush, &table);
            } else {
                rush.has_room = false;
                let _ = driver.before_wait(rush, &table);
            }
            assert_eq!(rush.notified, [1], "retires: {retires}");
            assert!(!table.row(0).has_recheck() && table.row(1).has_recheck());
        }
    }

    #[test]
    fn a_retired_loop_passes_on_a_recheck_token_that_came_late() {
        let words = words(2);
        let mut loops = Loops::over(&words, 2, 9);
        let (table, rush) = (loops.table, &mut loops.rush);
        table.pass_recheck_to_all(rush.now, 1..2).for_each(drop);
        loops.drivers[0].retire(rush, &table);
        assert_eq!(loops.drivers[0].before_wait(rush, &table).1, Some(Duration::ZERO));
        loops.drivers[0].after_wait(rush, &table);
        assert_eq!((rush.queue, &rush.notified[..]), (9, &[1][..]));
    }

    #[test]
    fn a_recheck_token_that_comes_within_a_turn_ends_the_sleep_before_it_begins() {
        let words = words(2);
        let mut loops = Loops::over(&words, 2, 0);
        let _ = loops.turn(0);
        loops.give_rechecks();
        assert_eq!(loops.turn(0), Some(Duration::ZERO));
        assert_ne!(loops.turn(0), Some(Duration::ZERO));
    }
}
