//! Predicts whether a new connection has received its first bytes when it is accepted.
//!
//! If connections wait in the accept queue, or the network is fast, the first bytes have arrived.
//! Receiving them at once then saves the registration of the socket and an event. If they have not
//! arrived, the attempt costs a system call. So a loop tries again after a success, and ever more
//! rarely after failures.

use std::cell::Cell;

/// At least one of this many connections is tried, however often it failed.
const RAREST: u32 = 16;

/// The results of previous attempts.
#[derive(Default)]
pub struct FirstBytesGuess {
    /// The number of connections to skip before the next attempt.
    left: Cell<u32>,
    /// The number of connections skipped before the last attempt, if it failed. 0 after a success.
    skipped: Cell<u32>,
}

impl FirstBytesGuess {
    /// Whether to try the connection that has just been accepted. The caller reports the result with
    /// [`FirstBytesGuess::learn`].
    pub fn tries(&self) -> bool {
        match self.left.get() {
            0 => true,
            left => {
                self.left.set(left - 1);
                false
            }
        }
    }

    /// Notes whether bytes had arrived.
    pub fn learn(&self, there: bool) {
        let skip = if there { 0 } else { (2 * self.skipped.get() + 1).min(RAREST - 1) };
        self.skipped.set(skip);
        self.left.set(skip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of attempts for `n` connections.
    fn tried(first_bytes: &FirstBytesGuess, n: u32, there: bool) -> u32 {
        let attempt = |_: &u32| first_bytes.tries().then(|| first_bytes.learn(there)).is_some();
        (0..n).filter(attempt).count() as u32
    }

    #[test]
    fn all_are_tried_where_bytes_are_there() {
        assert_eq!(tried(&FirstBytesGuess::default(), 100, true), 100);
    }

    #[test]
    fn few_are_tried_where_bytes_come_later() {
        let first_bytes = FirstBytesGuess::default();
        assert_eq!(tried(&first_bytes, 31, false), 5, "after 0, 1, 3, 7 and 15 others");
        assert_eq!(tried(&first_bytes, 10 * RAREST, false), 10);
    }

    #[test]
    fn it_learns_again() {
        let first_bytes = FirstBytesGuess::default();
        tried(&first_bytes, 1000, false);
        let tried = tried(&first_bytes, 100, true);
        assert!(tried > 100 - RAREST, "{tried}");
    }
}
