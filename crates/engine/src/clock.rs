//! The loop's clock. It is read once a turn; all code of the turn uses that time.

use std::cell::Cell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::seam;

/// A deadline that never comes.
pub(crate) const NEVER: u64 = u64::MAX;

/// The time of day: seconds since 1970 (UTC) and the milliseconds within that second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wall {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub secs: i64,
    /// 0 to 999.
    pub msec: u16,
}

pub(crate) struct Clock {
    epoch: Instant,
    /// The same moment by [`nanos`].
    epoch_nanos: u64,
    now: Cell<Instant>,
    nanos: Cell<u64>,
    tick: Cell<u64>,
    /// The time of day at the last reading, in nanoseconds since 1970.
    wall: Cell<u64>,
    /// When the time of day was read, by [`nanos`].
    wall_at: Cell<u64>,
    /// nginx: `timer_resolution`, in nanoseconds; 0 if it is not set.
    resolution: u64,
}

/// How old a reading of the time of day may be, in nanoseconds. Between readings, the monotonic
/// clock is added to it.
const WALL_MAX_AGE: u64 = 10_000_000;

impl Clock {
    pub(crate) fn new(resolution: Option<Duration>) -> Self {
        let (epoch, epoch_nanos) = (read(), nanos());
        Clock {
            epoch,
            epoch_nanos,
            now: Cell::new(epoch),
            nanos: Cell::new(epoch_nanos),
            tick: Cell::new(0),
            wall: Cell::new(seam::wall_nanos()),
            wall_at: Cell::new(epoch_nanos),
            resolution: resolution.map_or(0, |r| u64::try_from(r.as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    /// Reads the monotonic clock, and the time of day if the last reading is too old.
    pub(crate) fn refresh(&self) {
        let nanos = nanos();
        self.nanos.set(nanos);
        let now = self.instant(nanos);
        self.now.set(now);
        TURN.set(Some(now));
        self.tick.set(nanos.saturating_sub(self.epoch_nanos) / 1_000_000);
        let holds = if self.resolution == 0 { WALL_MAX_AGE } else { self.resolution };
        if nanos.saturating_sub(self.wall_at.get()) >= holds {
            self.wall_at.set(nanos);
            self.wall.set(seam::wall_nanos());
        }
    }

    /// The turn's time by [`nanos`].
    #[inline]
    pub(crate) fn now_nanos(&self) -> u64 {
        self.nanos.get()
    }

    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    /// The turn's time, or the coarse clock's if that is later because the turn has lasted for
    /// long.
    pub(crate) fn moment(&self) -> Instant {
        self.now().max(self.instant(coarse_nanos()))
    }

    /// Milliseconds since the loop was made, rounded down.
    #[inline]
    pub(crate) fn tick(&self) -> u64 {
        self.tick.get()
    }

    /// The turn's time of day. With `timer_resolution`, the last reading.
    pub(crate) fn wall(&self) -> Wall {
        let since = match self.resolution {
            0 => self.nanos.get().saturating_sub(self.wall_at.get()),
            _ => 0,
        };
        let millis = (self.wall.get() + since) / 1_000_000;
        Wall { secs: (millis / 1000) as i64, msec: (millis % 1000) as u16 }
    }

    /// The first tick at which `at` has passed.
    #[inline]
    pub(crate) fn tick_of(&self, at: Instant) -> u64 {
        ceil_millis(at.saturating_duration_since(self.epoch))
    }

    /// The first tick at which `after` has passed since the turn's time. The turn's time lies
    /// within its tick, hence one more.
    #[inline]
    pub(crate) fn tick_after(&self, after: Duration) -> u64 {
        self.tick.get().saturating_add(ceil_millis(after)).saturating_add(1)
    }

    /// How long to sleep from `now`, by [`nanos`], until `tick` has come.
    pub(crate) fn until(&self, tick: u64, now: u64) -> Duration {
        let at = tick.saturating_mul(1_000_000).saturating_add(self.epoch_nanos);
        Duration::from_nanos(at.saturating_sub(now))
    }

    /// A time by [`nanos`] that is not before the loop was made.
    pub(crate) fn instant(&self, nanos: u64) -> Instant {
        self.epoch + Duration::from_nanos(nanos.saturating_sub(self.epoch_nanos))
    }
}

thread_local! {
    static TURN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The time of the turn that this thread's loop runs. It identifies the turn: facts that were found
/// in a turn hold until its end. `None` on other threads.
pub(crate) fn turn() -> Option<Instant> {
    // Thread-local values may be gone when the thread ends.
    TURN.try_with(Cell::get).unwrap_or(None)
}

/// The time at this moment, for the few callers that cannot use the turn's time.
pub(crate) fn read() -> Instant {
    seam::instant()
}

/// The time by the same clock in nanoseconds, whose differences cost less than those of two
/// `Instant`s. It overflows after 584 years.
#[inline]
pub(crate) fn nanos() -> u64 {
    seam::nanos()
}

/// The time of day, for timestamps that outlive the process.
pub fn system_time() -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(seam::wall_nanos())
}

/// The time by the kernel's coarse clock, in nanoseconds.
#[inline]
pub fn coarse_nanos() -> u64 {
    seam::coarse_nanos()
}

fn ceil_millis(d: Duration) -> u64 {
    // Durations beyond 500 million years are as good as never; saturate instead of overflowing.
    d.as_secs().saturating_mul(1000).saturating_add(u64::from(d.subsec_nanos().div_ceil(1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_never_early() {
        assert_eq!(ceil_millis(Duration::from_nanos(1)), 1);
        assert_eq!(ceil_millis(Duration::from_millis(7)), 7);
        assert_eq!(ceil_millis(Duration::from_micros(7001)), 8);
        assert_eq!(ceil_millis(Duration::MAX), u64::MAX);
    }

    #[test]
    fn the_time_stands_still_within_a_turn() {
        let clock = Clock::new(None);
        let before = clock.now();
        assert_eq!(clock.now(), before);
        clock.refresh();
        assert!(clock.now() >= before);
        assert!(clock.wall().secs > 1_500_000_000);
    }

    #[test]
    fn the_time_of_day_goes_on_between_its_readings() {
        let (clock, began) = (Clock::new(None), nanos());
        let millis = |wall: Wall| wall.secs as u64 * 1000 + u64::from(wall.msec);
        let mut seen = 0;
        // Over two readings, and what is between.
        while nanos() - began < 3 * WALL_MAX_AGE {
            let before = seam::wall_nanos() / 1_000_000;
            clock.refresh();
            let (now, after) = (millis(clock.wall()), seam::wall_nanos() / 1_000_000);
            assert!(before <= now + 1 && now <= after + 1, "{before} {now} {after}");
            assert!(seen <= now + 1, "{seen} {now}");
            seen = now;
        }
    }

    #[test]
    fn the_time_of_day_keeps_its_resolution() {
        let clock = Clock::new(Some(Duration::from_secs(3600)));
        let wall = clock.wall();
        for _ in 0..100_000 {
            clock.refresh();
        }
        assert_eq!(clock.wall(), wall);
    }
}
