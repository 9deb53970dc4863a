//! Limits a message that an event loop could repeat at each event.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// The least time between two messages.
const APART: Duration = Duration::from_secs(1);

/// Lets one message through in a second.
#[derive(Debug, Default)]
pub struct OncePerSecond(Cell<Option<Instant>>);

impl OncePerSecond {
    /// Whether the message may be written at this time. If so, the next second begins.
    pub fn lets_through(&self, now: Instant) -> bool {
        let is_due = self.0.get().is_none_or(|last| now >= last + APART);
        if is_due {
            self.0.set(Some(now));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_passes_between_two_messages() {
        let (gate, start) = (OncePerSecond::default(), Instant::now());
        let after = |millis| gate.lets_through(start + Duration::from_millis(millis));
        assert_eq!([0, 999, 1000, 1999, 2000].map(after), [true, false, true, false, true]);
    }
}
