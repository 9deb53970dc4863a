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

/// How late a timer may fire for the next pause to make up for it.
const LATE: Duration = Duration::from_millis(20);

/// The pauses between reads at a limit. Each read takes its time, as in nginx. Timers fire up to
/// some milliseconds late, which would slow small reads down, so later pauses make up for that.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    rate: Rate,
    /// No read before this time.
    next: Instant,
}

impl Pace {
    /// The pauses of a limit of `each_second` bytes; `None` for 0, which is no limit.
    pub fn new(each_second: u64, began: Instant) -> Option<Pace> {
        Rate::new(each_second, began).map(|rate| Pace { rate, next: began })
    }

    /// Notes that a read took `bytes`.
    pub fn read(&mut self, bytes: u64, now: Instant) {
        let due = now.checked_sub(LATE).map_or(self.next, |late| late.max(self.next));
        self.next = due.checked_add(self.rate.time_of(bytes)).unwrap_or(self.next);
    }

    /// How many bytes may be read now, if `passed` were before. The error is the time until some
    /// may.
    pub fn left(self, now: Instant, passed: u64) -> Result<u64, Duration> {
        match self.next.checked_duration_since(now) {
            Some(pause) if !pause.is_zero() => Err(pause),
            _ => self.rate.left(now, passed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds until 1,000,000 bytes have passed, in reads of 4,000 with timers that fire
    /// `late` milliseconds late.
    fn time_of_a_million(each_second: u64, late: u64) -> u128 {
        let began = Instant::now();
        let (mut now, mut passed) = (began, 0);
        let mut pace = Pace::new(each_second, began).unwrap();
        while passed < 1_000_000 {
            match pace.left(now, passed) {
                Ok(left) => {
                    let bytes = left.min(4_000);
                    pace.read(bytes, now);
                    passed += bytes;
                }
                Err(pause) => now += pause + Duration::from_millis(late),
            }
        }
        (now - began).as_millis()
    }

    #[test]
    fn late_timers_do_not_lower_the_rate() {
        assert_eq!(time_of_a_million(1_000_000, 0), 996);
        for late in 1..=15 {
            let took = time_of_a_million(1_000_000, late);
            assert!((990..=1_020).contains(&took), "{took} ms with timers {late} ms late");
        }
    }

    #[test]
    fn a_source_that_was_silent_may_not_make_up_for_it() {
        let began = Instant::now();
        let mut pace = Pace::new(1_000, began).unwrap();
        let later = began + Duration::from_secs(60);
        pace.read(100, later);
        assert_eq!(pace.left(later, 100), Err(Duration::from_millis(80)));
    }
}
