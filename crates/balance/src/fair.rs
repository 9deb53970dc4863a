//! `fair`, the default: of the loops that carry no more than the others, the one that was served
//! longest ago. Even, and one queue.
//!
//! It rests on two facts of the kernel (fs/eventpoll.c): with EPOLLEXCLUSIVE a connection wakes one
//! waiter, in the order of registration, and only a loop that sleeps in epoll_wait is a waiter.
//! Busy and stopped loops are skipped for free, and when all are busy the connection waits in the
//! one queue. What is left to do is order and weight.
//!
//! *Order*: a loop that accepted goes to the end of the wait list before it sleeps again.
//!
//! *Weight*, in one rule: **a loop that carries more than the mean lets the others go first for a
//! time that grows with what it carries more, and then stands in.** What it carries is first its
//! open connections, which stay and bring more work; then, among loops with no more than their
//! share of them, its requests in process. Compared the other way round, a loop with four idle
//! connections would take a fifth whenever another one works, and keep it for minutes. From a mean of
//! 16 on, a sixteenth more is no more. Requests come and go in every turn, so they alone move no loop out of the list: a listed
//! loop compares them only after an accept, its own or that of the loop that woke it.
//!
//! - While the others work, that time is [`STEP`] for each connection more, [`LONGEST`] at most: the
//!   others have it to come back. An accept adds a connection, so who stands in leaves again for a
//!   longer time, and a burst is not one loop's.
//! - While others sleep in the list, they are told first in any case, and it looks again after
//!   [`ROUND`]. If nobody has accepted anything meanwhile it stands in, behind them, and sleeps until
//!   something happens: so nothing wakes up while nothing happens, and a stopped loop is not
//!   waited for. If they did, it leaves the place to them for another round.
//!
//! Three wake-ups keep decisions fresh, since one is as old as the sleep: the last in the list to
//! wake up wakes one that left it; whoever accepts, or falls asleep in the list, wakes one there
//! that carries more than the mean; and who stood in and was told of a connection though others
//! sleep before it in the list wakes the first of them, which counts no more if it does not stir.

use std::time::{Duration, Instant};

use crate::{After, Load, LoadTable, LoopSetup, LoopState, Policy, Row, Stance, Wait};

/// For each connection that it carries more, a loop leaves the place to those that work for so long: what an accept
/// and the first look at a request take them.
const STEP: Duration = Duration::from_micros(150);
/// And no longer than this, however many they are: a connection may wait for all of it.
const LONGEST: Duration = Duration::from_millis(5);
/// It looks after those that sleep in the list so often; beside stopped ones a connection may wait for two rounds.
const ROUND: Duration = Duration::from_millis(20);
/// A loop that carries as much as before compares again after this long, since rows are in the caches of the loops that
/// write them.
const FRESH: Duration = Duration::from_millis(1);

pub(crate) struct Fair {
    me: usize,
    /// Connections above the mean that a loop in the list may have before it leaves: with many
    /// sockets leaving and coming back costs many calls.
    slack: u64,
    place: Place,
    compared: Compared,
    /// A loop that slept in the list when this one looked last.
    sleeper: usize,
    /// It has accepted since it last decided.
    accepted: bool,
    /// Another loop asks it to compare anew.
    woken: bool,
    /// Which rows it compares with next.
    window: usize,
}

/// Where a loop stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the list.
    Listed,
    /// Out of it: those that sleep in it are told of what comes. It looks after them then; all loops together had
    /// accepted so many when it left.
    Deferring(Instant, u64),
    /// Out of it until then, though nobody sleeps in it: those that work go first.
    BackingOff(Instant),
    /// In the list though it carries more: the others had their time. All loops together had accepted so many by then.
    Standby(u64),
}

/// When a loop compared what it carries with the mean.
#[derive(Clone, Copy, Debug)]
struct Compared {
    at: Option<Instant>,
    /// What it carried then; no requests if these made no difference.
    load: Load,
}

impl Fair {
    pub(crate) fn new(setup: LoopSetup) -> Fair {
        Fair {
            me: setup.me,
            slack: setup.sockets as u64 / 16,
            place: Place::Listed,
            compared: Compared { at: None, load: Load::default() },
            sleeper: setup.me,
            accepted: false,
            woken: true,
            window: setup.me,
        }
    }

    /// Whether the last comparison still holds for a loop that has as many connections as then, and so many requests.
    fn is_fresh(&self, now: Instant, inflight: u64) -> bool {
        let Compared { at, load } = self.compared;
        let is_recent = at.is_some_and(|at| now.saturating_duration_since(at) < FRESH);
        is_recent && inflight >= load.inflight
    }

    /// Whether a loop whose comparison still holds stays where it is. It does what the place asks for before a sleep.
    fn stays(&mut self, now: Instant, loops: &LoadTable<'_>) -> bool {
        if let Place::Deferring(..) | Place::Standby(_) = self.place {
            loops.mark_above_mean(self.me);
        }
        match self.place {
            Place::Listed | Place::Standby(_) => true,
            Place::Deferring(until, _) => now < until && self.others_sleep(now, loops),
            Place::BackingOff(until) => now < until,
        }
    }

    /// Whether another loop sleeps in the list.
    fn others_sleep(&mut self, now: Instant, loops: &LoadTable<'_>) -> bool {
        if self.sleeper == self.me || !is_armed(now, loops, self.sleeper) {
            let found = armed_sleepers(now, loops, self.me).next();
            self.sleeper = found.map_or(self.me, |(i, _)| i);
        }
        self.sleeper != self.me
    }

    /// The place of a loop that carries `more` than the mean. The mark comes before the look, so that of a loop that
    /// leaves and one in the list that wakes up at least one sees the other.
    fn yield_to(&mut self, now: Instant, loops: &LoadTable<'_>, more: u64) -> Place {
        loops.mark_above_mean(self.me);
        let others_sleep = self.others_sleep(now, loops);
        match self.place {
            Place::Deferring(until, _) if others_sleep && now < until => self.place,
            // Without an accept nothing asks a loop that stands in to leave, however often it is woken.
            place if others_sleep => match (place, loops.accepts()) {
                (Place::Standby(before), accepted) if before == accepted => place,
                (Place::Deferring(_, before), accepted) if before == accepted => {
                    Place::Standby(accepted)
                }
                (_, accepted) => Place::Deferring(now + ROUND, accepted),
            },
            Place::Standby(_) if !self.accepted => self.place,
            Place::BackingOff(until) if now >= until => Place::Standby(loops.accepts()),
            place => {
                // It knows, and needs nobody to wake it.
                loops.unmark_above_mean(self.me);
                let steps = u32::try_from(more).unwrap_or(u32::MAX);
                let until = now + STEP.saturating_mul(steps).min(LONGEST);
                if let Place::BackingOff(_) = place { place } else { Place::BackingOff(until) }
            }
        }
    }

    fn wait(&mut self, now: Instant) -> Wait {
        let accepted = std::mem::take(&mut self.accepted);
        self.woken = false;
        match self.place {
            Place::Listed | Place::Standby(_) if accepted => {
                Wait { stance: Stance::ArmedLast, ..Wait::ARMED }
            }
            Place::Listed | Place::Standby(_) => Wait::ARMED,
            Place::Deferring(until, _) | Place::BackingOff(until) => {
                Wait { at_most: Some(until.saturating_duration_since(now)), ..Wait::DISARMED }
            }
        }
    }
}

impl Policy for Fair {
    fn before_wait(&mut self, now: Instant, loops: &LoadTable<'_>) -> Wait {
        if loops.len() == 1 {
            return Wait::ARMED;
        }
        let own = loops.row(self.me).load();
        let came_or_went = own.open != self.compared.load.open;
        let connections_came = self.accepted || self.woken || came_or_went;
        if !connections_came && self.is_fresh(now, own.inflight) && self.stays(now, loops) {
            return self.wait(now);
        }
        let listed = self.place == Place::Listed;
        let slack = if listed { self.slack } else { 0 };
        self.window = self.window.wrapping_add(1);
        let mut means = Means::of_connections(now, loops, self.me, self.window, slack);
        if connections_came || !listed {
            means.weigh_requests(now, loops, self.me);
        }
        let more = means.excess(own);
        let inflight = if means.is_of_requests(own) { own.inflight } else { 0 };
        self.compared = Compared { at: Some(now), load: Load { inflight, ..own } };
        if more > 0 {
            self.place = self.yield_to(now, loops, more);
            return self.wait(now);
        }
        self.place = Place::Listed;
        // The look before a sleep out of the list marked it.
        loops.unmark_above_mean(self.me);
        // A loop that merely comes back wakes none because of their requests, and one where nothing changed wakes none.
        if !connections_came {
            means.inflight = None;
        }
        let changed = connections_came || !listed;
        let heavier = changed.then(|| means.heavier(now, loops, self.me)).flatten();
        let wake = heavier.filter(|&i| loops.row(i).wake(loops.stamp(now)));
        Wait { wake, ..self.wait(now) }
    }

    fn on_woken(&mut self) {
        self.woken = true;
    }

    fn on_accepted(&mut self, _now: Instant, _loops: &LoadTable<'_>, _n: u32) -> After {
        self.accepted = true;
        After::Keep
    }

    fn whom_to_wake(&mut self, now: Instant, loops: &LoadTable<'_>) -> Option<usize> {
        if loops.len() == 1 {
            return None;
        }
        let (me, stamp) = (self.me, loops.stamp(now));
        let wake = |&i: &usize| loops.row(i).wake(stamp);
        let stood_in = self.accepted && matches!(self.place, Place::Standby(_));
        if stood_in && let Some(first) = longest_armed(now, loops, me) {
            // It was told though this one sleeps before it.
            return Some(first).filter(wake);
        }
        let counts = |&i: &usize| i != me && loops.counts(loops.row(i), stamp);
        let state = |i: usize| loops.row(i).state();
        let mut heavy = loops.above_mean().filter(counts).peekable();
        heavy.peek()?;
        let mut asleep =
            armed_sleepers(now, loops, me).map(|(i, _)| loops.is_above_mean(i)).peekable();
        if asleep.peek().is_none() {
            // A marked loop that is not armed has left the list, or is about to leave it: it is marked before it looks at the
            // list, and says that it is disarmed only afterwards.
            let out = heavy.filter(|&i| state(i) != LoopState::Armed);
            return out.min_by_key(|&i| (loops.row(i).load().open, i)).filter(wake);
        }
        // This loop goes behind one that stands in, as others did that sleep: so it leaves.
        let leaves = self.accepted && asleep.any(|heavy| !heavy);
        if leaves { heavy.find(|&i| state(i) == LoopState::Armed).filter(wake) } else { None }
    }
}

/// What loops carry on average, of those that are compared and count.
struct Means {
    open: Mean,
    /// Of those with no more than their share of connections, if requests are weighed.
    inflight: Option<Mean>,
    slack: u64,
    window: usize,
}

impl Means {
    fn of_connections(
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

    fn weigh_requests(&mut self, now: Instant, loops: &LoadTable<'_>, me: usize) {
        let mut inflight = Mean { sum: loops.row(me).load().inflight, n: 1 };
        let others = others(now, loops, me, self.window).map(|(_, row)| row);
        for row in others.filter(|row| self.open.admits(row.load().open, self.slack)) {
            let busy = u64::from(row.state() == LoopState::Awake);
            inflight.add(row.load().inflight.max(busy));
        }
        self.inflight = Some(inflight);
    }

    /// How much more that is: of connections or, if these are no more, of requests.
    fn excess(&self, load: Load) -> u64 {
        match self.inflight {
            _ if !self.open.admits(load.open, self.slack) => self.open.excess(load.open),
            Some(mean) if !mean.admits(load.inflight, self.slack) => mean.excess(load.inflight),
            _ => 0,
        }
    }

    /// Whether that is more because of its requests alone.
    fn is_of_requests(&self, load: Load) -> bool {
        self.open.admits(load.open, self.slack) && self.excess(load) > 0
    }

    /// A loop that sleeps in the list and carries more.
    fn heavier(&self, now: Instant, loops: &LoadTable<'_>, me: usize) -> Option<usize> {
        let mut others = others(now, loops, me, self.window);
        let is_heavier =
            |row: Row<'_>| row.state() == LoopState::Armed && self.excess(row.load()) > 0;
        others.find(|&(_, row)| is_heavier(row)).map(|(i, _)| i)
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

    /// How much more than the mean that is.
    fn excess(&self, value: u64) -> u64 {
        value.saturating_sub(self.sum / self.n).max(1)
    }

    /// Not above the mean. It is taken exactly below 16, where one connection is a lot; beyond, a
    /// sixteenth more does not matter and would make loops come and go.
    fn admits(&self, value: u64, slack: u64) -> bool {
        let mean = self.sum / self.n;
        value.saturating_mul(self.n) <= self.sum
            || value <= mean.saturating_add((mean / 16).max(slack))
    }
}

/// The rows of the others that are compared and count.
fn others<'a>(
    now: Instant,
    loops: &LoadTable<'a>,
    me: usize,
    window: usize,
) -> impl Iterator<Item = (usize, Row<'a>)> + use<'a> {
    let (stamp, loops) = (loops.stamp(now), *loops);
    loops.compared(window).filter(move |&(i, row)| i != me && loops.counts(row, stamp))
}

/// The others that sleep in the list, as far as one can tell.
fn armed_sleepers<'a>(
    now: Instant,
    loops: &LoadTable<'a>,
    me: usize,
) -> impl Iterator<Item = (usize, Row<'a>)> + use<'a> {
    let loops = *loops;
    loops.rows().filter(move |&(i, _)| i != me && is_armed(now, &loops, i))
}

fn is_armed(now: Instant, loops: &LoadTable<'_>, i: usize) -> bool {
    let row = loops.row(i);
    row.state() == LoopState::Armed && loops.counts(row, loops.stamp(now))
}

/// The one of them that has slept longest, and so stands first in the kernel's list.
fn longest_armed(now: Instant, loops: &LoadTable<'_>, me: usize) -> Option<usize> {
    armed_sleepers(now, loops, me).min_by_key(|(_, row)| row.state_since().1).map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;
    use crate::Wait;

    fn setup(me: usize, sockets: usize) -> LoopSetup {
        LoopSetup { me, sockets, connections: 1000, mutex_delay: Duration::from_millis(500) }
    }

    fn with_loads<T>(loads: &[Load], look: impl FnOnce(Instant, &LoadTable<'_>) -> T) -> T {
        let words: Vec<_> = (0..LoadTable::words(loads.len())).map(|_| AtomicU64::new(0)).collect();
        let now = Instant::now();
        let table = LoadTable::over(&words, now);
        for (i, load) in loads.iter().enumerate() {
            table.row(i).set_state(LoopState::Armed, 1);
            assert!(table.row(i).sleep());
            table.row(i).set_load(*load);
        }
        look(now, &table)
    }

    fn excess(now: Instant, table: &LoadTable<'_>, i: usize, slack: u64) -> u64 {
        let mut means = Means::of_connections(now, table, i, 0, slack);
        means.weigh_requests(now, table, i);
        means.excess(table.row(i).load())
    }

    fn load() -> impl Strategy<Value = Load> {
        (0..300u64, 0..300u64).prop_map(|(a, b)| Load { inflight: a.min(b), open: b })
    }

    proptest! {
        /// Whatever the loads are, somebody listens.
        #[test]
        fn not_all_are_above_the_mean(
            loads in prop::collection::vec(load(), 1..40),
            slack in 0..4u64,
        ) {
            let someone = with_loads(&loads, |now, table| {
                (0..loads.len()).any(|i| excess(now, table, i, slack) == 0)
            });
            prop_assert!(someone);
        }

        /// One that carries clearly more than any other never listens.
        #[test]
        fn the_heaviest_is_above_the_mean(
            mut loads in prop::collection::vec(load(), 1..40),
        ) {
            let most = loads.iter().map(|load| load.open).max().unwrap_or(0);
            let heaviest = loads.len();
            loads.push(Load { inflight: 0, open: most + most / 4 + 2 });
            let more = with_loads(&loads, |now, table| excess(now, table, heaviest, 0));
            prop_assert!(more > 0);
        }
    }

    /// Requests come and go in each turn, and reading all rows in each would cost more than they do.
    #[test]
    fn with_as_many_connections_the_others_are_looked_at_once_a_millisecond() {
        let loads = [Load { inflight: 1, open: 3 }; 4];
        with_loads(&loads, |now, table| {
            let mut fair = Fair::new(setup(0, 1));
            let mut stance = |after, load| {
                table.row(0).set_load(load);
                fair.before_wait(now + after, table).stance
            };
            assert_eq!(stance(Duration::ZERO, loads[0]), Stance::Armed);
            (1..4).for_each(|i| table.row(i).set_load(Load::default()));
            let idle = Load { inflight: 0, open: 3 };
            assert_eq!(stance(FRESH / 2, idle), Stance::Armed);
            assert_eq!(stance(FRESH, idle), Stance::Disarmed);
        });
    }

    /// The same for a loop out of the list, which must see in each turn that another one is in it.
    #[test]
    fn a_loop_out_of_the_list_compares_once_a_millisecond() {
        let loads = [5, 2, 2].map(|open| Load { inflight: 0, open });
        with_loads(&loads, |now, table| {
            let mut fair = Fair::new(setup(0, 1));
            let mut stance = |after| fair.before_wait(now + after, table).stance;
            assert_eq!(stance(Duration::ZERO), Stance::Disarmed);
            assert!(table.is_above_mean(0));
            (1..3).for_each(|i| table.row(i).set_load(loads[0]));
            assert_eq!(stance(FRESH / 2), Stance::Disarmed);
            table.row(1).set_state(LoopState::Awake, table.stamp(now));
            assert_eq!(stance(FRESH / 2), Stance::Disarmed, "another one is listed");
            table.row(2).set_state(LoopState::Awake, table.stamp(now));
            assert_eq!(stance(FRESH / 2), Stance::Armed, "no other one is listed");
            assert!(!table.is_above_mean(0), "it carries no more than the others");
        });
    }

    /// Leaving and coming back costs a call for each socket, so a loop with many leaves later.
    #[test]
    fn with_many_sockets_a_loop_leaves_later() {
        let loads = [5, 2, 2, 2].map(|open| Load { inflight: 0, open });
        let stance = |sockets| {
            with_loads(&loads, |now, table| {
                let mut fair = Fair::new(setup(0, sockets));
                fair.place = Place::Listed;
                fair.woken = false;
                fair.before_wait(now, table).stance
            })
        };
        assert_eq!(stance(1), Stance::Disarmed);
        assert_eq!(stance(64), Stance::Armed);
    }

    /// Beside one that works and has no connections.
    #[test]
    fn the_time_for_which_others_go_first_grows_with_what_is_carried_more() {
        let time = |own: u64| {
            let loads = [own, 0].map(|open| Load { inflight: 0, open });
            with_loads(&loads, |now, table| {
                table.row(1).set_state(LoopState::Awake, 1);
                let mut fair = Fair::new(setup(0, 1));
                let first = fair.before_wait(now, table);
                let time = first.at_most.unwrap();
                assert_eq!(first.stance, Stance::Disarmed);
                assert_eq!(fair.before_wait(now + time / 2, table).stance, Stance::Disarmed);
                // Then it stands in, and an accept sends it away anew.
                assert_eq!(fair.before_wait(now + time, table), Wait::ARMED);
                let _ = fair.on_accepted(now + time, table, 1);
                table.row(0).set_load(Load { inflight: 0, open: own + 2 });
                let again = fair.before_wait(now + time, table);
                assert_eq!(again.stance, Stance::Disarmed);
                assert!(again.at_most.unwrap() > time || time == LONGEST);
                time
            })
        };
        assert_eq!([2, 4, 20].map(time), [STEP, 2 * STEP, 10 * STEP]);
        assert_eq!([100, 10_000].map(time), [LONGEST; 2]);
    }

    /// Of the mean's own size that is: one connection is a lot beside few, and nothing beside hundreds.
    #[test]
    fn a_sixteenth_more_than_the_mean_is_no_more() {
        let is_more = |own: u64, other: u64| {
            let loads = [own, other].map(|open| Load { inflight: 0, open });
            with_loads(&loads, |now, table| excess(now, table, 0, 0) > 0)
        };
        assert!(is_more(4, 3) && is_more(15, 14) && is_more(180, 140));
        assert!(!is_more(3, 3) && !is_more(168, 160));
    }

    /// Somebody compared while it had one more, and sleeps: it says so, though it has no more than before.
    #[test]
    fn who_accepted_compares_anew() {
        let loads = [(0, 1), (1, 1)].map(|(inflight, open)| Load { inflight, open });
        with_loads(&loads, |now, table| {
            let mut fair = Fair::new(setup(0, 1));
            assert_eq!(fair.before_wait(now, table).wake, Some(1));
            table.row(1).acknowledge_wake();
            assert_eq!(fair.before_wait(now, table).wake, None);
            let _ = fair.on_accepted(now, table, 1);
            assert_eq!(fair.before_wait(now, table).wake, Some(1));
        });
    }

    /// Requests on kept connections come and go in each turn, and no connection with them.
    #[test]
    fn requests_alone_move_no_loop_out_of_the_list_and_wake_none() {
        let loads = [0, 0, 9].map(|inflight| Load { inflight, open: 9 });
        with_loads(&loads, |now, table| {
            let mut fair = Fair::new(setup(0, 1));
            assert_eq!(fair.before_wait(now, table).wake, Some(2), "it has just begun");
            table.row(2).acknowledge_wake();
            for turn in 1..100 {
                let load = Load { inflight: 9 * (turn % 2), open: 9 };
                table.row(0).set_load(load);
                let wait = fair.before_wait(now + FRESH * turn as u32, table);
                assert_eq!(wait, Wait::ARMED, "turn {turn}");
            }
            let later = now + FRESH * 100;
            let _ = fair.on_accepted(later, table, 1);
            assert_eq!(fair.before_wait(later, table).stance, Stance::Disarmed);
        });
    }

    /// Loop 0 leaves the list, and loop 1, the last one in it, wakes between the look of loop 0 and its word that it is
    /// disarmed: loop 1 calls loop 0, which would sleep for a round while no loop is listed. Loop 0 is awake, so it needs no
    /// bell, and must not sleep.
    #[test]
    fn a_loop_that_is_about_to_leave_is_woken_by_the_last_one_in_the_list() {
        let loads = [1, 0].map(|open| Load { inflight: 0, open });
        with_loads(&loads, |now, table| {
            let (mut leaves, mut last) = (Fair::new(setup(0, 1)), Fair::new(setup(1, 1)));
            table.row(0).set_state(LoopState::Awake, 1);
            table.row(0).awake();
            assert_eq!(leaves.before_wait(now, table).stance, Stance::Disarmed);
            table.row(1).set_state(LoopState::Awake, table.stamp(now));
            assert_eq!(last.whom_to_wake(now, table), None);
            assert!(!table.row(0).sleep() && table.row(0).acknowledge_wake());
        });
    }

    #[test]
    fn a_loop_alone_is_always_armed() {
        let heavy = [Load { inflight: 9, open: 9 }];
        let wait = with_loads(&heavy, |now, t| Fair::new(setup(0, 1)).before_wait(now, t));
        assert_eq!(wait, Wait::ARMED);
    }
}
