//! Measures regularly how evenly the loops work, and logs changes.
//!
//! The loops do this themselves at the end of a turn, so no loop wakes up for it: while no loop
//! works, nothing changes. Only after uneven work, the loops that measured it wake up until they
//! have logged its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::coarse_nanos;
use weir_log::{Log, log};
use weir_metrics::{Registry, TallyOwner, WINDOW};

use crate::status::WorkSpread;

/// The interval at which a loop asks whether a measurement is due.
const ASKS: Duration = Duration::from_secs(1);
/// The interval of measurements of all loops together, in nanoseconds. It equals the period that a
/// measurement covers.
const PERIOD: u64 = WINDOW * 1_000_000_000;

/// A loop's part in the measurements.
#[derive(Debug)]
pub struct Evenness {
    registry: Registry,
    log: Arc<Log>,
    next: Instant,
    uneven: bool,
}

impl Evenness {
    /// For a loop that starts now.
    pub fn new(registry: Registry, log: Arc<Log>, now: Instant) -> Evenness {
        Evenness { registry, log, next: now + ASKS, uneven: false }
    }

    /// Measures, if a measurement is due and no other loop has made it.
    #[inline]
    pub fn look(&mut self, now: Instant) {
        if now >= self.next {
            self.next = now + ASKS;
            self.ask();
        }
    }

    /// The longest sleep that the loop may take. None: no limit.
    #[inline]
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        self.uneven.then(|| self.next.saturating_duration_since(now))
    }

    fn ask(&mut self) {
        let mut seen = None;
        let uneven = || seen.insert(WorkSpread::of(&self.registry.loops())).is_uneven();
        let changed = self.registry.judge(coarse_nanos() / PERIOD, uneven);
        match (changed, seen) {
            (Some(true), Some(work)) => log_spread(&self.log, &work),
            (Some(false), _) => log!(self.log, Notice, None, "the loops work evenly again"),
            _ => {}
        }
        self.uneven = self.registry.judged();
    }
}

fn log_spread(log: &Log, work: &WorkSpread) {
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
