//! How evenly the loops work is looked at now and then, and told in the error log when it changes.

use std::time::{Duration, Instant};

use weir_log::{Log, log};
use weir_metrics::{Owner, Registry, WINDOW};

use crate::status::Work;

/// How often: as far as a look sees back.
const PERIOD: Duration = Duration::from_secs(WINDOW);

/// Looks at the loops.
#[derive(Debug)]
pub struct Watch {
    next: Instant,
    uneven: bool,
}

impl Watch {
    /// One that begins now.
    pub fn new(now: Instant) -> Watch {
        Watch { next: now + PERIOD, uneven: false }
    }

    /// When it is to look again.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Looks, if it is time.
    pub fn look(&mut self, registry: Registry, log: &Log, now: Instant) {
        if now < self.next {
            return;
        }
        self.next = now + PERIOD;
        let work = Work::of(&registry.loops());
        let before = std::mem::replace(&mut self.uneven, work.is_uneven());
        if self.uneven == before {
            return;
        }
        if !self.uneven {
            log!(log, Notice, None, "the loops work evenly again");
            return;
        }
        let Work { loops, busiest: Owner { worker, index, .. }, .. } = work;
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
}
