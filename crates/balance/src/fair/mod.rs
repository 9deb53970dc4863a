//! `fair`, the default: of the loops that are not above the mean load, the one that was served longest ago accepts.
//!
//! It rests on two facts of the kernel (fs/eventpoll.c). With EPOLLEXCLUSIVE a connection wakes one waiter, in the order
//! of registration. Only a loop that sleeps in epoll_wait is a waiter, so busy and stopped loops are passed over for
//! free. When all loops are busy, the connection waits in the one queue. `fair` adds order and weight.
//!
//! *Order*: a loop that accepted goes to the end of the wait list before it sleeps again.
//!
//! *Weight*, in one rule: **a loop above the mean leaves the list for a while, so that the others accept first, and then
//! comes back on standby.** Load is open connections first, since they stay and bring more work. Among loops that are
//! not above the mean of connections, requests decide. The other way round, a loop with four idle connections would
//! take a fifth whenever another loop works, and keep it for minutes. From a mean of 16 on, a sixteenth more is not above
//! it. Requests come and go in every turn, so requests alone move no loop out of the list: a listed loop compares them
//! only after an accept, its own or that of the loop that woke it.
//!
//! [`LoopPlace::next`] is the table of moves:
//!
//! - While the others work, the loop backs off for [`STEP`] per connection above the mean, [`LONGEST`] at most. The
//!   others come back meanwhile. Each accept on standby makes the next time longer, so one loop does not take a burst.
//! - While others sleep in the list, the kernel wakes them first. The loop defers to them and decides anew after
//!   [`ROUND`]. If no loop has accepted by then, it goes on standby behind them and sleeps. So an idle server wakes no
//!   loop, and a stopped loop delays nothing for longer than a round.
//!
//! A decision is as old as the sleep, so three wake-ups keep decisions fresh. The last listed loop that wakes up wakes
//! a loop that has left. A loop that accepts, or falls asleep in the list, wakes a listed loop above the mean. A loop on
//! standby that is woken for a connection although others sleep before it wakes the first of them. That loop counts no
//! more if it does not acknowledge.

mod means;
mod place;

use std::time::{Duration, Instant};

use self::means::Means;
use self::place::{Facts, LoopPlace, Move};
use crate::{AfterAccept, Load, LoadTable, LoopActivity, LoopSetup, Policy, Row, Stance, Wait};

/// How long a loop backs off for each connection above the mean. In this time another loop can
/// accept a connection and have a first look at its request.
const STEP: Duration = Duration::from_micros(150);
/// The longest time that a loop backs off, since a connection may wait for all of it.
const LONGEST: Duration = Duration::from_millis(5);
/// How long a loop defers to sleepers. Beside stopped loops a connection may wait for two such
/// rounds.
const ROUND: Duration = Duration::from_millis(20);
/// How long a comparison holds for a loop with as many connections as before. Rows are in the
/// caches of the loops that write them, so each comparison costs cache misses.
const FRESH: Duration = Duration::from_millis(1);

pub(crate) struct Fair {
    me: usize,
    /// How far above the mean a listed loop may be. Leaving and joining the list costs a system
    /// call for each socket, so loops with many sockets leave later.
    slack: u64,
    place: LoopPlace,
    compared: Compared,
    /// A loop that slept in the list at this loop's last look. This loop's own number if there was
    /// none.
    sleeper: usize,
    /// This loop has accepted since it last decided.
    accepted: bool,
    /// Another loop has asked this one to compare again.
    woken: bool,
    /// Selects the rows of the next comparison.
    window: usize,
}

/// The last comparison with the mean.
#[derive(Clone, Copy, Debug)]
struct Compared {
    at: Option<Instant>,
    /// The loop's load at that time, without requests if they made no difference.
    load: Load,
}

impl Fair {
    pub(crate) fn new(setup: LoopSetup) -> Fair {
        Fair {
            me: setup.me,
            slack: setup.sockets as u64 / 16,
            place: LoopPlace::Listed,
            compared: Compared { at: None, load: Load::default() },
            sleeper: setup.me,
            accepted: false,
            woken: true,
            window: setup.me,
        }
    }

    /// Whether the last comparison still holds for a loop with the same connections and `inflight`
    /// requests.
    fn is_fresh(&self, now: Instant, inflight: u64) -> bool {
        let Compared { at, load } = self.compared;
        let is_recent = at.is_some_and(|at| now.saturating_duration_since(at) < FRESH);
        is_recent && inflight >= load.inflight
    }

    /// Whether the loop keeps its place because its comparison still holds. Sets the mark that the
    /// place needs before a sleep.
    fn stays(&mut self, now: Instant, loops: &LoadTable<'_>) -> bool {
        if let LoopPlace::Deferring(..) | LoopPlace::Standby(_) = self.place {
            loops.mark_above_mean(self.me);
        }
        match self.place {
            LoopPlace::Listed | LoopPlace::Standby(_) => true,
            LoopPlace::Deferring(until, _) => now < until && self.others_sleep(now, loops),
            LoopPlace::BackingOff(until) => now < until,
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

    /// Moves the loop, whose load is `excess` above the mean, by the table of moves.
    ///
    /// The loop sets its mark before it looks for sleepers. So if one loop leaves the list while
    /// the last listed loop wakes up, at least one of them sees the other.
    fn decide(&mut self, now: Instant, loops: &LoadTable<'_>, excess: u64) {
        let above = excess > 0;
        let (mut asleep, mut accepts) = (false, 0);
        if above {
            loops.mark_above_mean(self.me);
            asleep = self.others_sleep(now, loops);
            accepts = loops.accepts();
        }
        let (over, any) = (self.place.is_over(now), self.place.saw_accepts(accepts));
        let facts = Facts { above, asleep, over, any, own: self.accepted };
        self.place = match self.place.next(facts) {
            Move::Stay => self.place,
            Move::List => LoopPlace::Listed,
            Move::Defer => LoopPlace::Deferring(now + ROUND, accepts),
            Move::BackOff => {
                let steps = u32::try_from(excess).unwrap_or(u32::MAX);
                LoopPlace::BackingOff(now + STEP.saturating_mul(steps).min(LONGEST))
            }
            Move::StandBy => LoopPlace::Standby(accepts),
        };
        // A listed loop needs no wake-up by the mark. A loop that backs off comes back by itself.
        if let LoopPlace::Listed | LoopPlace::BackingOff(_) = self.place {
            loops.unmark_above_mean(self.me);
        }
    }

    fn wait(&mut self, now: Instant) -> Wait {
        let accepted = std::mem::take(&mut self.accepted);
        self.woken = false;
        match self.place {
            LoopPlace::Listed | LoopPlace::Standby(_) if accepted => {
                Wait { stance: Stance::ArmedLast, ..Wait::ARMED }
            }
            LoopPlace::Listed | LoopPlace::Standby(_) => Wait::ARMED,
            LoopPlace::Deferring(until, _) | LoopPlace::BackingOff(until) => {
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
        let was_listed = self.place == LoopPlace::Listed;
        let slack = if was_listed { self.slack } else { 0 };
        self.window = self.window.wrapping_add(1);
        let mut means = Means::of_connections(now, loops, self.me, self.window, slack);
        if connections_came || !was_listed {
            means.weigh_requests(now, loops, self.me);
        }
        let excess = means.excess(own);
        let inflight = if means.is_of_requests(own) { own.inflight } else { 0 };
        self.compared = Compared { at: Some(now), load: Load { inflight, ..own } };
        self.decide(now, loops, excess);
        if excess > 0 || was_listed && !connections_came {
            // The other loops need not compare again.
            return self.wait(now);
        }
        if !connections_came {
            // A loop that only comes back to the list wakes no loop because of requests.
            means.forget_requests();
        }
        let above = means.armed_above_mean(now, loops, self.me);
        let wake = above.filter(|&i| loops.row(i).wake(loops.stamp(now)));
        Wait { wake, ..self.wait(now) }
    }

    fn on_woken(&mut self) {
        self.woken = true;
    }

    fn on_accepted(&mut self, _now: Instant, _loops: &LoadTable<'_>, _n: u32) -> AfterAccept {
        self.accepted = true;
        AfterAccept::Keep
    }

    fn loop_to_wake(&mut self, now: Instant, loops: &LoadTable<'_>) -> Option<usize> {
        if loops.len() == 1 {
            return None;
        }
        let (me, stamp) = (self.me, loops.stamp(now));
        let wake = |&i: &usize| loops.row(i).wake(stamp);
        let stood_by = self.accepted && matches!(self.place, LoopPlace::Standby(_));
        if stood_by && let Some(first) = longest_armed(now, loops, me) {
            // The kernel woke this loop although the other one sleeps before it in the list.
            return Some(first).filter(wake);
        }
        let counts = |&i: &usize| i != me && loops.counts(loops.row(i), stamp);
        let state = |i: usize| loops.row(i).state();
        let mut marked = loops.above_mean().filter(counts).peekable();
        marked.peek()?;
        let mut asleep =
            armed_sleepers(now, loops, me).map(|(i, _)| loops.is_above_mean(i)).peekable();
        if asleep.peek().is_none() {
            // A marked loop that is not armed has left the list or is about to. It sets its mark
            // before it looks at the list, and publishes that it is disarmed only afterwards.
            let out = marked.filter(|&i| state(i) != LoopActivity::Armed);
            return out.min_by_key(|&i| (loops.row(i).load().open, i)).filter(wake);
        }
        // Loops that have just accepted, such as this one, go behind a marked loop in the list. So
        // the marked loop has to leave the list.
        let leaves = self.accepted && asleep.any(|above| !above);
        if leaves { marked.find(|&i| state(i) == LoopActivity::Armed).filter(wake) } else { None }
    }
}

/// The other loops that sleep in the list, by the state in their rows.
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
    row.state() == LoopActivity::Armed && loops.counts(row, loops.stamp(now))
}

/// The listed loop that has slept longest, which is the first in the kernel's wait list.
fn longest_armed(now: Instant, loops: &LoadTable<'_>, me: usize) -> Option<usize> {
    armed_sleepers(now, loops, me).min_by_key(|(_, row)| row.state_since().1).map(|(i, _)| i)
}

#[cfg(test)]
mod tests;
