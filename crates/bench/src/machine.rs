//! CPU use of the client. A client that lacks CPU time must report it.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// CPU use of a thread over an interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuUse {
    /// Time on a CPU.
    pub busy: Duration,
    /// Time on the run queue: ready to run, but no CPU was free.
    pub waited: Duration,
    /// Elapsed time.
    pub wall: Duration,
}

impl CpuUse {
    /// The share of the interval that the thread was running or ready to run, 0 to 1.
    pub fn pressure(&self) -> f64 {
        let wall = self.wall.as_secs_f64();
        if wall > 0.0 { (self.busy + self.waited).as_secs_f64() / wall } else { 0.0 }
    }
}

/// Measures the CPU use of the calling thread.
#[derive(Clone, Copy)]
pub(crate) struct Meter {
    began: Instant,
    busy: Duration,
    waited: Duration,
}

impl Meter {
    pub(crate) fn start() -> Meter {
        Meter { began: Instant::now(), busy: read(ClockId::ThreadCPUTime), waited: waited() }
    }

    pub(crate) fn stop(&self) -> CpuUse {
        CpuUse {
            busy: read(ClockId::ThreadCPUTime).saturating_sub(self.busy),
            waited: waited().saturating_sub(self.waited),
            wall: self.began.elapsed(),
        }
    }
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Time on the run queue: the second number of /proc/thread-self/schedstat. Zero if the kernel has
/// no scheduler statistics.
fn waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}
