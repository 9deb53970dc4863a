//! Whether the first bytes of a new connection are asked for when it is accepted.
//!
//! Where connections wait in the listening socket's queue, or the network is short, their first bytes are there when
//! they are accepted: receiving at once saves registering the socket, an event, and often a whole registration of a
//! connection that is closed before anybody waits for it. Where they are not, asking costs a system call. So who was
//! right is asked again, and who was wrong asks more and more rarely.

use std::cell::Cell;

/// However often it was in vain, one in so many connections is asked.
const RAREST: u32 = 16;

/// What a loop has learnt of its clients.
#[derive(Default)]
pub struct Punctual {
    /// Connections that are not asked before the next one that is.
    left: Cell<u32>,
    /// As many were skipped before the last one that was asked in vain; 0 after a success.
    skipped: Cell<u32>,
}

impl Punctual {
    /// Whether to ask the connection that has just been accepted. Who does has to [`Punctual::learn`].
    pub fn asks(&self) -> bool {
        match self.left.get() {
            0 => true,
            left => {
                self.left.set(left - 1);
                false
            }
        }
    }

    /// Whether something was there.
    pub fn learn(&self, there: bool) {
        let skip = if there { 0 } else { (2 * self.skipped.get() + 1).min(RAREST - 1) };
        self.skipped.set(skip);
        self.left.set(skip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `n` connections are asked.
    fn asked(punctual: &Punctual, n: u32, there: bool) -> u32 {
        let ask = |_: &u32| punctual.asks().then(|| punctual.learn(there)).is_some();
        (0..n).filter(ask).count() as u32
    }

    #[test]
    fn all_are_asked_where_they_speak_at_once() {
        assert_eq!(asked(&Punctual::default(), 100, true), 100);
    }

    #[test]
    fn few_are_asked_where_they_do_not() {
        let punctual = Punctual::default();
        assert_eq!(asked(&punctual, 31, false), 5, "after 0, 1, 3, 7 and 15 others");
        assert_eq!(asked(&punctual, 10 * RAREST, false), 10);
    }

    #[test]
    fn it_learns_again() {
        let punctual = Punctual::default();
        asked(&punctual, 1000, false);
        let asked = asked(&punctual, 100, true);
        assert!(asked > 100 - RAREST, "{asked}");
    }
}
