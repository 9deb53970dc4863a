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
//! *Weight*: a loop is armed unless it carries more than the mean: first of open connections, which
//! stay and bring more work; then, among those with no more than their share of them, of requests
//! in process. Compared the other way round, a loop with four idle connections would take a fifth
//! whenever another one works, and keep it for minutes. A decision is as old as the sleep: an armed
//! loop with handshakes or requests in process would stay before those who have finished theirs. So
//! whoever falls asleep armed wakes an armed one that carries more than the mean, to compare anew.
//!
//! *Liveness*. For the same reason a connection could wait while a disarmed loop sleeps. Three
//! things bound that wait:
//! - the last armed sleeper to wake up wakes a disarmed one, so that it compares anew;
//! - a disarmed loop that sees no armed sleeper waits [`PATIENCE`] for one that carries less, all its
//!   naps together, and then stands in, with a [`BREATH`] after each connection;
//! - a disarmed loop tries an accept now and then ([`PROBE_FIRST`] to [`PROBE_LAST`]). If it finds
//!   a connection, the armed sleepers in the table did not take it: it wakes one, and a loop that
//!   does not stir counts no more. So a stopped loop is forgotten, whatever its row says.

use std::time::{Duration, Instant};

use crate::{After, Arm, Load, LoadTable, Policy, Probe, Setup, State, Wait};

/// How long a disarmed loop leaves the place to loops that carry less, when all of them work. Less
/// than a slow handler takes, more than the pause between two requests of a busy connection.
const PATIENCE: Duration = Duration::from_millis(1);
/// Between two connections that a loop takes while it stands in. Those that carry less may be back
/// already and want its CPU, or be back after a handler: without it, one loop takes a whole burst.
const BREATH: Duration = Duration::from_micros(150);
/// The first try for a connection that nobody took; twice the handler's time of a sluggish server,
/// and at 100 tries a second a twentieth of a percent of a processor.
const PROBE_FIRST: Duration = Duration::from_millis(10);
/// Tries that find nothing double the pause up to this: the longest wait beside stopped loops.
const PROBE_LAST: Duration = Duration::from_millis(40);
/// An armed loop whose load has not changed compares again after this long.
const FRESH: Duration = Duration::from_millis(1);

pub(crate) struct Fair {
    me: usize,
    /// Connections above the mean that an armed loop may have before it leaves: with many sockets
    /// leaving and coming back costs many calls.
    slack: u64,
    armed: bool,
    accepted: bool,
    /// When it last compared, and its connections and requests then.
    seen: Option<(Instant, u64, u64)>,
    /// For how long this disarmed loop has slept since it last saw an armed sleeper, its own work not counted.
    idled: Duration,
    /// Since when it sleeps so.
    alone: Option<Instant>,
    /// How long it stands in before it looks again, while it does.
    stood: Duration,
    /// When it next tries an accept, and how long it waits for that.
    probe_at: Option<Instant>,
    pause: Duration,
    /// A probe found a connection beside armed sleepers.
    doubt: bool,
}

impl Fair {
    pub(crate) fn new(setup: Setup) -> Fair {
        Fair {
            me: setup.me,
            slack: setup.sockets as u64 / 16,
            armed: false,
            accepted: false,
            seen: None,
            idled: Duration::ZERO,
            alone: None,
            stood: Duration::ZERO,
            probe_at: None,
            pause: PROBE_FIRST,
            doubt: false,
        }
    }

    fn arm(&mut self) -> Wait {
        self.armed = true;
        self.stood = Duration::ZERO;
        self.probe_at = None;
        self.pause = PROBE_FIRST;
        let last = std::mem::take(&mut self.accepted);
        Wait { arm: if last { Arm::ArmedLast } else { Arm::Armed }, ..Wait::ARMED }
    }

    /// Disarmed; the mark comes before the look, so that of a loop that falls asleep disarmed and
    /// an armed one that wakes up at least one sees the other.
    fn disarm(&mut self, now: Instant, loops: &LoadTable<'_>) -> Wait {
        loops.mark_disarmed(self.me);
        if armed_sleeper(now, loops, self.me) {
            self.idled = Duration::ZERO;
        } else {
            loops.unmark_disarmed(self.me); // it knows, and needs nobody to wake it
            let left = PATIENCE.saturating_sub(self.idled);
            if left.is_zero() {
                return self.stand_in();
            }
            self.alone = Some(now);
            return self.sleep_disarmed(left);
        }
        let probe_at = *self.probe_at.get_or_insert(now + self.pause);
        self.sleep_disarmed(probe_at.saturating_duration_since(now).max(Duration::from_millis(1)))
    }

    /// Armed although it carries more: until others are back, so it looks again, soon at first.
    fn stand_in(&mut self) -> Wait {
        let pause = (self.stood * 2).clamp(PATIENCE, PROBE_FIRST);
        let wait = self.arm();
        self.stood = pause;
        Wait { at_most: Some(pause), ..wait }
    }

    fn sleep_disarmed(&mut self, at_most: Duration) -> Wait {
        self.armed = false;
        self.accepted = false;
        Wait { at_most: Some(at_most), ..Wait::DISARMED }
    }
}

impl Policy for Fair {
    fn before_wait(&mut self, now: Instant, loops: &LoadTable<'_>) -> Wait {
        if loops.len() == 1 {
            return Wait::ARMED;
        }
        let own = loops.row(self.me).load();
        let fresh =
            |(at, open, inflight)| (open, inflight) == (own.open, own.inflight) && now - at < FRESH;
        if self.armed && self.seen.is_some_and(fresh) {
            return self.arm();
        }
        let slack = if self.armed { self.slack } else { 0 };
        let Standing { above, absent, heavier } = standing(now, loops, self.me, slack);
        if above {
            self.seen = None;
            return self.disarm(now, loops);
        }
        self.seen = Some((now, own.open, own.inflight));
        self.idled = Duration::ZERO;
        let at_most = absent.then_some(PROBE_LAST);
        let wake = heavier.filter(|&i| loops.row(i).wake(loops.stamp(now)));
        Wait { at_most, wake, ..self.arm() }
    }

    fn on_woken(&mut self) {
        self.seen = None;
    }

    fn after_wait(&mut self, now: Instant, _loops: &LoadTable<'_>) -> Probe {
        if let Some(since) = self.alone.take() {
            self.idled += now.saturating_duration_since(since);
        }
        match self.probe_at {
            Some(at) if now >= at => {
                self.probe_at = None;
                self.pause = (self.pause * 2).min(PROBE_LAST);
                self.doubt = true;
                Probe::Try
            }
            _ => {
                self.doubt = false;
                Probe::No
            }
        }
    }

    fn on_accepted(&mut self, _now: Instant, _loops: &LoadTable<'_>, _n: u32) -> After {
        self.accepted = true;
        self.seen = None; // others may have compared with what it carried for a moment
        if !self.stood.is_zero() {
            self.idled = PATIENCE - BREATH;
        }
        if self.doubt {
            self.pause = PROBE_FIRST;
        }
        After::Keep
    }

    fn whom_to_wake(&mut self, now: Instant, loops: &LoadTable<'_>) -> Option<usize> {
        if loops.len() == 1 {
            return None;
        }
        let stamp = loops.stamp(now);
        if self.doubt && self.accepted {
            self.doubt = false;
            return longest_armed(now, loops, self.me).filter(|&i| loops.row(i).wake(stamp));
        }
        let me = self.me;
        let asleep = loops.disarmed().filter(|&i| i != me && loops.counts(loops.row(i), stamp));
        let lightest = asleep.min_by_key(|&i| (loops.row(i).load().open, i))?;
        let needed = !armed_sleeper(now, loops, me);
        (needed && loops.row(lightest).wake(stamp)).then_some(lightest)
    }
}

/// How a loop stands among those that count.
struct Standing {
    /// It carries more than the mean.
    above: bool,
    /// Some loop does not count now, and will when it is back.
    absent: bool,
    /// A loop that sleeps armed and carries more than the mean.
    heavier: Option<usize>,
}

/// Compares loop `me` with the mean, open connections first.
fn standing(now: Instant, loops: &LoadTable<'_>, me: usize, slack: u64) -> Standing {
    let stamp = loops.stamp(now);
    let own = loops.row(me).load();
    let others = || loops.rows().filter(|&(i, _)| i != me);
    let counting = || others().filter(|&(_, row)| loops.counts(row, stamp));
    let mut open = Mean { sum: own.open, n: 1 };
    let mut absent = false;
    for (_, row) in others() {
        if loops.counts(row, stamp) {
            open.add(row.load().open);
        } else {
            absent |= matches!(row.state(), State::Awake | State::Armed | State::Disarmed);
        }
    }
    if !open.admits(own.open, slack) {
        return Standing { above: true, absent, heavier: None };
    }
    let mut inflight = Mean { sum: own.inflight, n: 1 };
    for (_, row) in counting().filter(|(_, row)| open.admits(row.load().open, slack)) {
        let busy = u64::from(row.state() == State::Awake);
        inflight.add(row.load().inflight.max(busy));
    }
    let above =
        |load: Load| !open.admits(load.open, slack) || !inflight.admits(load.inflight, slack);
    let mut armed = counting().filter(|(_, row)| row.state() == State::Armed);
    let heavier = armed.find(|(_, row)| above(row.load())).map(|(i, _)| i);
    Standing { above: above(own), absent, heavier }
}

struct Mean {
    sum: u64,
    n: u64,
}

impl Mean {
    fn add(&mut self, value: u64) {
        self.sum += value;
        self.n += 1;
    }

    /// Not above the mean. It is taken exactly below 16, where one connection is a lot; beyond, a
    /// sixteenth more does not matter and would make loops come and go.
    fn admits(&self, value: u64, slack: u64) -> bool {
        let mean = self.sum / self.n;
        value.saturating_mul(self.n) <= self.sum || value <= mean + (mean / 16).max(slack)
    }
}

fn armed_sleeper(now: Instant, loops: &LoadTable<'_>, me: usize) -> bool {
    let stamp = loops.stamp(now);
    loops.rows().any(|(i, row)| i != me && row.state() == State::Armed && loops.counts(row, stamp))
}

/// The armed sleeper that has slept longest, and so stands first in the kernel's list.
fn longest_armed(now: Instant, loops: &LoadTable<'_>, me: usize) -> Option<usize> {
    let stamp = loops.stamp(now);
    let armed = loops
        .rows()
        .filter(|&(i, row)| i != me && row.state() == State::Armed && loops.counts(row, stamp));
    armed.min_by_key(|(_, row)| row.state_since().1).map(|(i, _)| i)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;
    use crate::Wait;

    fn setup(me: usize, sockets: usize) -> Setup {
        Setup { me, sockets, connections: 1000, mutex_delay: Duration::from_millis(500) }
    }

    fn with_loads<T>(loads: &[Load], look: impl FnOnce(Instant, &LoadTable<'_>) -> T) -> T {
        let words: Vec<_> = (0..LoadTable::words(loads.len())).map(|_| AtomicU64::new(0)).collect();
        let now = Instant::now();
        let table = LoadTable::over(&words, now);
        for (i, load) in loads.iter().enumerate() {
            table.row(i).set_state(State::Armed, 1);
            table.row(i).set_load(*load);
        }
        look(now, &table)
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
                (0..loads.len()).any(|i| !standing(now, table, i, slack).above)
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
            let above = with_loads(&loads, |now, table| standing(now, table, heaviest, 0).above);
            prop_assert!(above);
        }
    }

    /// Leaving and coming back costs a call for each socket, so a loop with many leaves later.
    #[test]
    fn with_many_sockets_a_loop_leaves_later() {
        let loads = [5, 2, 2, 2].map(|open| Load { inflight: 0, open });
        let arm = |sockets| {
            with_loads(&loads, |now, table| {
                let mut fair = Fair::new(setup(0, sockets));
                fair.armed = true;
                fair.before_wait(now, table).arm
            })
        };
        assert_eq!(arm(1), Arm::Disarmed);
        assert_eq!(arm(64), Arm::Armed);
    }

    /// Somebody compared while it had one more, and sleeps: it says so, though it has no more than before.
    #[test]
    fn who_accepted_compares_anew() {
        let loads = [(0, 1), (1, 1)].map(|(inflight, open)| Load { inflight, open });
        with_loads(&loads, |now, table| {
            let mut fair = Fair::new(setup(0, 1));
            assert_eq!(fair.before_wait(now, table).wake, Some(1));
            table.row(1).stir();
            assert_eq!(fair.before_wait(now, table).wake, None);
            let _ = fair.on_accepted(now, table, 1);
            assert_eq!(fair.before_wait(now, table).wake, Some(1));
        });
    }

    #[test]
    fn a_loop_alone_is_always_armed() {
        let heavy = [Load { inflight: 9, open: 9 }];
        let wait = with_loads(&heavy, |now, t| Fair::new(setup(0, 1)).before_wait(now, t));
        assert_eq!(wait, Wait::ARMED);
    }
}
