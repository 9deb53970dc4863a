//! A limit in bytes per second. As in nginx, each second's bytes are granted at its beginning.

use std::time::{Duration, Instant};

/// A limit, and when it began to count.
#[derive(Debug, Clone, Copy)]
pub struct Rate {
    each_second: u64,
    began: Instant,
}

impl Rate {
    /// A limit of `each_second` bytes; `None` for 0, which is no limit.
    pub fn new(each_second: u64, began: Instant) -> Option<Rate> {
        (each_second > 0).then_some(Rate { each_second, began })
    }

    /// How many bytes may have passed until now.
    pub fn granted(self, now: Instant) -> u64 {
        let seconds = now.saturating_duration_since(self.began).as_secs() + 1;
        self.each_second.saturating_mul(seconds)
    }

    /// How many more bytes may pass now. The error is the time until some may.
    pub fn left(self, now: Instant, passed: u64) -> Result<u64, Duration> {
        let granted = self.granted(now);
        if granted > passed {
            return Ok(granted - passed);
        }
        Err(self.time_of(passed - granted) + Duration::from_millis(1))
    }

    /// How long these bytes take at the limit, in whole milliseconds.
    pub fn time_of(self, bytes: u64) -> Duration {
        Duration::from_millis(bytes.saturating_mul(1000) / self.each_second)
    }
}
