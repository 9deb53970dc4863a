//! How a loop falls asleep without missing a wake-up: one word between a loop and its callers.
//!
//! A loop sleeps until its notifier, an eventfd, is written to. That costs a system call, so a caller writes only if the loop
//! sleeps. Three callers follow the same protocol, each with a reason of its own: other threads that put something into the
//! loop's mailbox, an accept policy, and the owner of a recheck token.
//!
//! | a caller | the loop |
//! |---|---|
//! | stores its message | ignores its notifier while it is awake |
//! | notes its reason: [`call`](Slumber::call) | reads each reason and acts: [`take`](Slumber::take) |
//! | writes to the notifier if `call` says so | publishes that it sleeps and reads again, in one step: [`sleep`](Slumber::sleep) |
//! | | waits, and is awake again: [`wake`](Slumber::wake) |
//!
//! The word holds the reasons and whether the loop sleeps, and one word has one order of changes. So a reason comes either
//! before the loop publishes, and then the loop does not sleep, or after it, and then its caller writes to the notifier.
//!
//! - In: reasons, as bits. Out: whether to write to the notifier, whether to sleep.
//! - Callers: `engine`, and `balance` for the words of the load table.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The loop sleeps, or is about to. All other bits are reasons.
const ASLEEP: u64 = 1 << 63;

/// A word that threads or processes share. A trait, so that models of both run the same code.
pub trait Word {
    /// What stands there.
    fn get(&self) -> u64;
    /// Sets `bits`; what stood there before.
    fn raise(&self, bits: u64) -> u64;
    /// Clears `bits`; what stood there before.
    fn lower(&self, bits: u64) -> u64;
    /// From `from` to `to`; false if something else stood there.
    fn change(&self, from: u64, to: u64) -> bool;
}

/// The operations of [`Word`] on a type that has those of [`AtomicU64`].
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

/// A loop's word. It begins as 0: awake, and without a reason.
#[derive(Debug, Default)]
pub struct Slumber<W>(W);

impl<W: Word> Slumber<W> {
    /// Over this word.
    pub fn over(word: W) -> Self {
        Slumber(word)
    }

    /// Notes a reason. True if the caller has to write to the notifier: the loop sleeps, and this reason is new.
    pub fn call(&self, reason: u64) -> bool {
        self.0.raise(reason) & (ASLEEP | reason) == ASLEEP
    }

    /// Whether one of these reasons is noted.
    #[inline]
    pub fn has(&self, reasons: u64) -> bool {
        self.0.get() & reasons != 0
    }

    /// Takes these reasons; false if none of them was noted. The loop acts on them afterwards, since a caller puts down
    /// what it has to say before it calls.
    pub fn take(&self, reasons: u64) -> bool {
        self.has(reasons) && self.0.lower(reasons) & reasons != 0
    }

    /// The loop is about to sleep; false if it must not, since it was called.
    pub fn sleep(&self) -> bool {
        self.0.change(0, ASLEEP)
    }

    /// Clears reasons that are none of these: a word in shared memory may have any value, and a
    /// reason that is never taken would keep the loop awake for ever.
    pub fn keep_only(&self, reasons: u64) {
        self.take(!(reasons | ASLEEP));
    }

    /// The loop is awake: its callers need not write to the notifier.
    pub fn wake(&self) {
        if self.has(ASLEEP) {
            self.0.lower(ASLEEP);
        }
    }
}

#[cfg(test)]
mod tests;
