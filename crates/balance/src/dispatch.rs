//! `dispatch`: an acceptor takes every connection and hands it to the least loaded loop.
//!
//! Loops do not listen themselves. The acceptor compares open connections first and requests in
//! process second. Connections that were handed over but not taken yet count as both. A loop that
//! does not acknowledge wake-ups within the table's limits gets no more connections. Those that it
//! was given wait for it.

use std::time::Instant;

use crate::{LoadTable, LoopActivity, LoopSetup, Policy, Row, Wait};

pub(crate) struct Dispatch {
    /// The loop of the acceptor.
    me: usize,
}

impl Dispatch {
    pub(crate) fn new(setup: LoopSetup) -> Dispatch {
        Dispatch { me: setup.me }
    }
}

impl Policy for Dispatch {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::DISARMED
    }

    fn place(&mut self, now: Instant, loops: &LoadTable<'_>) -> Option<usize> {
        let stamp = loops.stamp(now);
        let able = || loops.rows().filter(|(_, row)| loops.counts(*row, stamp));
        let any = || loops.rows().filter(|(_, row)| is_there(*row));
        let lightest = able().min_by_key(weight).or_else(|| any().min_by_key(weight));
        let (i, row) = lightest?;
        loops.begin_handover(self.me, i);
        if !is_there(row) {
            // The loop has retired meanwhile, and may not have seen that it was to get a
            // connection.
            loops.end_handover(i, false);
            return None;
        }
        row.wake(stamp);
        Some(i)
    }
}

/// The order of choice: the least loaded loop first. Among equals, the one that was given the
/// fewest connections so far.
fn weight((_, row): &(usize, Row<'_>)) -> (u64, u64, u64) {
    let (load, pending) = (row.load(), row.pending());
    let awake = u64::from(row.state() == LoopActivity::Awake);
    let with_pending = |n: u64| n.saturating_add(pending);
    (with_pending(load.open), with_pending(load.inflight.max(awake)), with_pending(row.accepted()))
}

fn is_there(row: Row<'_>) -> bool {
    matches!(row.state(), LoopActivity::Awake | LoopActivity::Armed | LoopActivity::Disarmed)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;
    use crate::Load;

    #[test]
    fn the_least_loaded_gets_it_and_a_silent_one_does_not() {
        let words: Vec<_> = (0..LoadTable::words(3)).map(|_| AtomicU64::new(0)).collect();
        let now = Instant::now();
        let table = LoadTable::over(&words, now);
        let mut dispatch = Dispatch { me: 0 };
        assert_eq!(dispatch.place(now, &table), None, "all rows are vacant");
        for i in 0..3 {
            table.row(i).set_state(LoopActivity::Disarmed, 1);
        }
        table.row(0).set_load(Load { inflight: 0, open: 1 });
        let placed: Vec<_> = (0..3).filter_map(|_| dispatch.place(now, &table)).collect();
        assert_eq!(placed, [1, 2, 0]);
        table.row(0).acknowledge_wake();
        let later = now + Duration::from_millis(20);
        assert_eq!(dispatch.place(later, &table), Some(0), "1 and 2 have not acknowledged");
    }
}
