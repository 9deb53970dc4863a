//! Measures regularly how evenly the loops work, and logs a change.
//!
//! The loops do so themselves at the end of a turn, so none wakes up for it: while no loop works
//! there is nothing to see. Only after uneven work, the loops that saw it wake up until its end is
//! logged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::coarse_nanos;
use weir_log::{Log, log};
use weir_metrics::{Registry, TallyOwner, WINDOW};

use crate::status::WorkSpread;

/// A loop asks no more often than this whether a look is due.
const ASKS: Duration = Duration::from_secs(1);
/// How often all of them together look, in nanoseconds: as far as a look sees back.
const PERIOD: u64 = WINDOW * 1_000_000_000;

/// A loop's part in it.
#[derive(Debug)]
pub struct Evenness {
    registry: Registry,
    log: Arc<Log>,
    next: Instant,
    uneven: bool,
}

impl Evenness {
    /// Of one that begins now.
    pub fn new(registry: Registry, log: Arc<Log>, now: Instant) -> Evenness {
        Evenness { registry, log, next: now + ASKS, uneven: false }
    }

    /// Looks, if it is time and no other loop did.
    #[inline]
    pub fn look(&mut self, now: Instant) {
        if now >= self.next {
            self.next = now + ASKS;
            self.ask();
        }
    }

    /// How long the loop may sleep.
    #[inline]
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        self.uneven.then(|| self.next.saturating_duration_since(now))
    }

    fn ask(&mut self) {
        let mut seen = None;
        let uneven = || seen.insert(WorkSpread::of(&self.registry.loops())).is_uneven();
        let changed = self.registry.judge(coarse_nanos() / PERIOD, uneven);
        match (changed, seen) {
            (Some(true), Some(work)) => tell(&self.log, &work),
            (Some(false), _) => log!(self.log, Notice, None, "the loops work evenly again"),
            _ => {}
        }
        self.uneven = self.registry.judged();
    }
}

fn tell(log: &Log, work: &WorkSpread) {
    let WorkSpread { loops, busiest: TallyOwner { worker, index, .. }, .. } = *work;
    let percent = |share: f64| (share * 100.0).round();
    let (most, mean) = (percent(work.most), percent(work.mean));
    log!(
        log,
        Warn,
        None,
        "the loops work unevenly: loop {index} of worker {worker} was busy for {most} % of the last {WINDOW} seconds, \
         the mean of {loops} is {mean} %"
    );
}
