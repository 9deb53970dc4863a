//! `reuseport_load`: a socket for each loop. The kernel starts at the loop that the connection's
//! hash gives, and chooses the least loaded of the next few.
//!
//! Loops do not contend for a queue, as with `reuseport`, but connections spread evenly and none
//! waits for a stalled loop. An eBPF program reads the rows of the table and counts the connections
//! that it assigns (in the model, [`choose`]). It assigns none to a loop that has been in a turn
//! for [`STUCK`], has no free slot, or does not acknowledge a wake-up.
//!
//! The program cannot wake loops, so awake loops look after the others. They wake a sleeping loop
//! that was assigned a connection. They accept from the queue of a loop that cannot.

use std::time::{Duration, Instant};

use crate::table::SILENT;
use crate::{AfterAccept, Load, LoadTable, LoopActivity, Policy, Row, Wait};

/// A loop that has been in a turn for this long is assigned nothing. The limit is shorter than
/// elsewhere, since a connection in its queue waits for this loop alone.
const STUCK: Duration = Duration::from_millis(10);
/// The interval at which a loop looks after the others while any of them has a connection to accept.
const LOOK: Duration = Duration::from_millis(10);
/// How many loops the program compares.
const COMPARED: usize = 8;

/// The conditions under which a loop takes connections, for the eBPF program that reads rows
/// ([`words`](crate::words)).
pub struct Fit;

impl Fit {
    /// The state of a sleeping loop that takes connections.
    pub const ASLEEP: u64 = LoopActivity::Armed as u64;
    /// The state of a loop in a turn, and the longest turn in which it takes connections.
    pub const AWAKE: (u64, Duration) = (LoopActivity::Awake as u64, STUCK);
    /// How long a loop may take to acknowledge a wake-up.
    pub const SILENT: Duration = SILENT;
}

/// The choice of the eBPF program for a connection with this hash.
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

/// Whether the loop takes connections.
fn is_fit(row: Row<'_>, stamp: u64) -> bool {
    let (state, since) = row.state_since();
    match state {
        LoopActivity::Awake => {
            stamp.saturating_sub(since) < STUCK.as_micros() as u64 && !row.is_silent(stamp)
        }
        LoopActivity::Armed => !row.is_silent(stamp),
        _ => false,
    }
}

pub(crate) struct ReuseportLoad {
    me: usize,
    /// When this loop last looked after the others, and what it saw.
    looked: Option<Instant>,
    seen: Vec<Seen>,
    /// Some loop has a connection to accept, so this loop has to look again.
    goes_on: bool,
    /// How many connections this loop had been assigned when the turn began.
    given: u64,
    accepted: bool,
    wakes: Vec<usize>,
    relieves: Vec<usize>,
}

/// The state and the accepts of a loop with a connection to accept.
type Seen = Option<((LoopActivity, u64), u64)>;

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
            // Another look is due later, even if this loop gets no connection until then.
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
            } else if row.state() == LoopActivity::Armed && before == *seen && row.wake(stamp) {
                self.wakes.push(i);
            }
        }
    }
}

impl Policy for ReuseportLoad {
    fn before_wait(&mut self, _now: Instant, loops: &LoadTable<'_>) -> Wait {
        if !std::mem::take(&mut self.accepted) {
            // The queue was empty when the turn began. Connections that were assigned before and
            // never arrived are no load.
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

    fn on_accepted(&mut self, _now: Instant, loops: &LoadTable<'_>, n: u32) -> AfterAccept {
        self.accepted = true;
        (0..n).for_each(|_| loops.row(self.me).count_taken());
        AfterAccept::Keep
    }

    fn loop_to_wake(&mut self, now: Instant, loops: &LoadTable<'_>) -> Option<usize> {
        self.look(now, loops);
        self.wakes.pop()
    }

    fn loop_to_relieve(&mut self) -> Option<usize> {
        self.relieves.pop()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// A connection goes to a stopped loop just after the others have looked, and no other
    /// connection follows.
    #[test]
    fn a_loop_that_looked_a_moment_ago_looks_once_more() {
        let words: Vec<_> = (0..LoadTable::words(2)).map(|_| AtomicU64::new(0)).collect();
        let now = Instant::now();
        let table = LoadTable::over(&words, now);
        let mut policy = ReuseportLoad::new(0);
        policy.loop_to_wake(now, &table);
        assert_eq!(policy.before_wait(now, &table).at_most, None, "all queues are empty");
        table.row(1).count_handed();
        policy.loop_to_wake(now + LOOK / 2, &table);
        assert_eq!(policy.before_wait(now, &table).at_most, Some(LOOK));
        policy.loop_to_wake(now + LOOK * 2, &table);
        assert_eq!(policy.before_wait(now, &table).at_most, Some(LOOK), "it waits there still");
        table.row(1).count_taken();
        policy.loop_to_wake(now + LOOK * 4, &table);
        assert_eq!(policy.before_wait(now, &table).at_most, None);
    }
}
