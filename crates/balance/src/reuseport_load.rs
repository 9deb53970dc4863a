//! `reuseport_load`: a socket per loop, of which the kernel chooses the one whose loop carries least of a few that follow
//! the connection's hash.
//!
//! Without contention, as with `reuseport`, but even, and nobody waits for a loop that is not fit: a program of the
//! kernel reads the table's rows and counts in them what it gives (in the model it is [`choose`]). A loop that has been in
//! a turn for [`STUCK`], has no room, or does not stir when it is woken is given nothing.
//!
//! What the program cannot do, loops do for each other, as long as somebody is told of anything: one that sleeps though
//! it was given a connection some time ago is woken, and shows by stirring that it is fit; what waits for one that is
//! not is accepted by another.

use std::time::{Duration, Instant};

use crate::table::SILENT;
use crate::{After, Load, LoadTable, LoopState, Policy, Row, Wait};

/// A loop in a turn for so long is given nothing more. Shorter than elsewhere, since who is given to it waits for it.
const STUCK: Duration = Duration::from_millis(10);
/// A loop looks after the others so often, while any of them has something to accept.
const LOOK: Duration = Duration::from_millis(10);
/// So many are compared.
const COMPARED: usize = 8;

/// Who takes connections, as the kernel's program reads it in a row ([`words`](crate::words)).
pub struct Fit;

impl Fit {
    /// The state of a loop that sleeps and takes connections.
    pub const ASLEEP: u64 = LoopState::Armed as u64;
    /// The state of one that is in a turn, and the longest turn in which it takes connections.
    pub const AWAKE: (u64, Duration) = (LoopState::Awake as u64, STUCK);
    /// For so long it may not stir when it is woken.
    pub const SILENT: Duration = SILENT;
}

/// What the kernel's program does, for a connection with this hash.
pub(crate) fn choose(now: Instant, loops: &LoadTable<'_>, hash: usize) -> Option<usize> {
    let (stamp, n) = (loops.stamp(now), loops.len());
    let candidates = (0..n.min(COMPARED)).map(|further| (hash % n + further) % n);
    let fit = candidates.filter(|&i| is_fit(loops.row(i), stamp));
    let i = fit.min_by_key(|&i| {
        let Load { open, inflight } = loops.row(i).load();
        (open.saturating_add(loops.row(i).pending()), inflight, loops.row(i).handed())
    })?;
    loops.row(i).count_handed();
    Some(i)
}

/// Whether it takes connections.
fn is_fit(row: Row<'_>, stamp: u64) -> bool {
    let (state, since) = row.state_since();
    match state {
        LoopState::Awake => {
            stamp.saturating_sub(since) < STUCK.as_micros() as u64 && !row.is_silent(stamp)
        }
        LoopState::Armed => !row.is_silent(stamp),
        _ => false,
    }
}

pub(crate) struct ReuseportLoad {
    me: usize,
    /// When it looked after the others last, and what it saw of each.
    looked: Option<Instant>,
    seen: Vec<Seen>,
    /// Somebody has something to accept.
    goes_on: bool,
    /// What it had been given when the turn began.
    given: u64,
    accepted: bool,
    wakes: Vec<usize>,
    relieves: Vec<usize>,
}

/// A loop that had something to accept, and how far it had come.
type Seen = Option<((LoopState, u64), u64)>;

impl ReuseportLoad {
    pub(crate) fn new(me: usize) -> ReuseportLoad {
        ReuseportLoad {
            me,
            looked: None,
            seen: Vec::new(),
            goes_on: false,
            given: 0,
            accepted: false,
            wakes: Vec::new(),
            relieves: Vec::new(),
        }
    }

    fn look(&mut self, now: Instant, loops: &LoadTable<'_>) {
        if self.looked.is_some_and(|at| now.saturating_duration_since(at) < LOOK) {
            // What came to others since then is seen when it is time, though nothing may come here any more.
            self.goes_on = true;
            return;
        }
        self.looked = Some(now);
        self.goes_on = false;
        self.seen.resize(loops.len(), None);
        let stamp = loops.stamp(now);
        let others = loops.rows().zip(&mut self.seen).filter(|((i, _), _)| *i != self.me);
        for ((i, row), seen) in others {
            let before = seen.take();
            if row.pending() == 0 {
                continue;
            }
            self.goes_on = true;
            *seen = Some((row.state_since(), row.taken()));
            if !is_fit(row, stamp) {
                self.relieves.push(i);
            } else if row.state() == LoopState::Armed && before == *seen && row.wake(stamp) {
                self.wakes.push(i);
            }
        }
    }
}

impl Policy for ReuseportLoad {
    fn before_wait(&mut self, _now: Instant, loops: &LoadTable<'_>) -> Wait {
        if !std::mem::take(&mut self.accepted) {
            // Nobody waited when the turn began: what it was given before, and did not come to be, is no load.
            loops.row(self.me).take_all(self.given);
        }
        Wait { at_most: self.goes_on.then_some(LOOK), ..Wait::ARMED }
    }

    fn on_woken(&mut self) {
        self.looked = None;
    }

    fn after_wait(&mut self, _now: Instant, loops: &LoadTable<'_>) {
        self.given = loops.row(self.me).handed();
    }

    fn on_accepted(&mut self, _now: Instant, loops: &LoadTable<'_>, n: u32) -> After {
        self.accepted = true;
        (0..n).for_each(|_| loops.row(self.me).count_taken());
        After::Keep
    }

    fn whom_to_wake(&mut self, now: Instant, loops: &LoadTable<'_>) -> Option<usize> {
        self.look(now, loops);
        self.wakes.pop()
    }

    fn whom_to_relieve(&mut self) -> Option<usize> {
        self.relieves.pop()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// A connection that comes to a loop which has stopped, just after the others have looked, and nothing after it.
    #[test]
    fn who_looked_a_moment_ago_looks_once_more() {
        let words: Vec<_> = (0..LoadTable::words(2)).map(|_| AtomicU64::new(0)).collect();
        let now = Instant::now();
        let table = LoadTable::over(&words, now);
        let mut policy = ReuseportLoad::new(0);
        policy.whom_to_wake(now, &table);
        assert_eq!(policy.before_wait(now, &table).at_most, None, "nobody has anything");
        table.row(1).count_handed();
        policy.whom_to_wake(now + LOOK / 2, &table);
        assert_eq!(policy.before_wait(now, &table).at_most, Some(LOOK));
        policy.whom_to_wake(now + LOOK * 2, &table);
        assert_eq!(policy.before_wait(now, &table).at_most, Some(LOOK), "it waits there still");
        table.row(1).count_taken();
        policy.whom_to_wake(now + LOOK * 4, &table);
        assert_eq!(policy.before_wait(now, &table).at_most, None);
    }
}
