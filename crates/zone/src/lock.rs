//! A lock in shared memory that outlives its holders.
//!
//! Critical sections are a few dozen memory accesses, so a waiter spins, then lets others run. One that
//! waits long looks whether the holder still lives, and takes the lock from one that does not.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::owner;

/// Looks at the word before the processor is given to others.
const SPINS: u32 = 128;
/// Times that the processor is given away before the holder's life is asked for.
const YIELDS: u32 = 64;

/// How the lock was come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was free.
    Free,
    /// From a holder that ended without giving it back: what it was at is half done.
    FromDead,
}

/// Takes the lock for this thread.
pub fn acquire(word: &AtomicU64) -> Taken {
    let me = owner::this();
    loop {
        for _ in 0..YIELDS {
            for _ in 0..SPINS {
                if take(word, 0, me) {
                    return Taken::Free;
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
        let holder = word.load(Ordering::Relaxed);
        if holder != 0 && !owner::is_alive(holder) && take(word, holder, me) {
            return Taken::FromDead;
        }
    }
}

/// Gives the lock back.
pub fn release(word: &AtomicU64) {
    word.store(0, Ordering::Release);
}

fn take(word: &AtomicU64, from: u64, me: u64) -> bool {
    word.load(Ordering::Relaxed) == from
        && word.compare_exchange(from, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let (lock, inside, total) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..2000 {
                        assert_eq!(acquire(&lock), Taken::Free);
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        // Not atomic on purpose: only the lock keeps the sum right.
                        total.store(total.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        release(&lock);
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 8000);
    }

    #[test]
    fn a_dead_holder_leaves_it_to_one_heir() {
        // A pid above the kernel's limit cannot live.
        let lock = AtomicU64::new(u64::from(u32::MAX >> 1) << 32 | 7);
        let heirs = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    if acquire(&lock) == Taken::FromDead {
                        heirs.fetch_add(1, Ordering::Relaxed);
                    }
                    release(&lock);
                });
            }
        });
        assert_eq!(heirs.load(Ordering::Relaxed), 1);
    }
}
