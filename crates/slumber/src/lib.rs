//! How a loop falls asleep without missing a wake-up: one word that the loop and its callers share.
//!
//! A loop sleeps until a caller writes to its notifier, an eventfd. The write costs a system call,
//! so a caller writes only if the loop sleeps. Three callers follow the same protocol, each with a
//! reason of its own: other threads that put something into the loop's mailbox, an accept policy,
//! and the owner of a recheck token.
//!
//! | a caller | the loop |
//! |---|---|
//! | stores its message | ignores its notifier while it is awake |
//! | notes its reason: [`call`](Slumber::call) | reads each reason and acts: [`take`](Slumber::take) |
//! | writes to the notifier if `call` says so | publishes that it sleeps and reads again, in one step: [`sleep`](Slumber::sleep) |
//! | | waits, and is awake again: [`wake`](Slumber::wake) |
//!
//! The word holds the reasons and whether the loop sleeps, and all changes of one word are ordered.
//! If a reason comes before the loop publishes that it sleeps, the loop does not sleep. If it comes
//! afterwards, its caller writes to the notifier.
//!
//! - In: reasons, as bits. Out: whether to write to the notifier, whether to sleep.
//! - Callers: `engine`, and `balance` for the words of the load table.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Set while the loop sleeps or is about to. All other bits are reasons.
const ASLEEP: u64 = 1 << 63;

/// A word that threads or processes share. It is a trait, so that models of both run the same code.
pub trait Word {
    /// The value of the word.
    fn get(&self) -> u64;
    /// Sets `bits`. Returns the previous value.
    fn raise(&self, bits: u64) -> u64;
    /// Clears `bits`. Returns the previous value.
    fn lower(&self, bits: u64) -> u64;
    /// Changes `from` to `to`. False if the word had another value.
    fn change(&self, from: u64, to: u64) -> bool;
}

/// Implements [`Word`] for a type with the operations of [`AtomicU64`].
macro_rules! word {
    ($word:ty) => {
        impl Word for $word {
            fn get(&self) -> u64 {
                self.load(SeqCst)
            }

            fn raise(&self, bits: u64) -> u64 {
                self.fetch_or(bits, SeqCst)
            }

            fn lower(&self, bits: u64) -> u64 {
                self.fetch_and(!bits, SeqCst)
            }

            fn change(&self, from: u64, to: u64) -> bool {
                self.compare_exchange(from, to, SeqCst, SeqCst).is_ok()
            }
        }
    };
}

word!(AtomicU64);

/// A loop's word. It begins as 0: the loop is awake, and there is no reason.
#[derive(Debug, Default)]
pub struct Slumber<W>(W);

impl<W: Word> Slumber<W> {
    /// Uses this word.
    pub fn over(word: W) -> Self {
        Slumber(word)
    }

    /// Notes a reason. True if the caller has to write to the notifier: the loop sleeps, and the
    /// reason is new.
    pub fn call(&self, reason: u64) -> bool {
        self.0.raise(reason) & (ASLEEP | reason) == ASLEEP
    }

    /// Whether one of these reasons is noted.
    #[inline]
    pub fn has(&self, reasons: u64) -> bool {
        self.0.get() & reasons != 0
    }

    /// Clears these reasons. False if none of them was noted. The loop must act on a reason after
    /// this call, since a caller stores its message before it notes the reason.
    pub fn take(&self, reasons: u64) -> bool {
        self.has(reasons) && self.0.lower(reasons) & reasons != 0
    }

    /// Publishes that the loop sleeps. False if it must not sleep, since a reason is noted.
    pub fn sleep(&self) -> bool {
        self.0.change(0, ASLEEP)
    }

    /// Clears all other reasons. A word in shared memory may have any value, and a reason that is
    /// never taken would keep the loop awake forever.
    pub fn keep_only(&self, reasons: u64) {
        self.take(!(reasons | ASLEEP));
    }

    /// Publishes that the loop is awake. Callers need not write to the notifier.
    pub fn wake(&self) {
        if self.has(ASLEEP) {
            self.0.lower(ASLEEP);
        }
    }
}

#[cfg(test)]
mod tests;
