//! A lock in shared memory that outlives its holders.
//!
//! Critical sections are a few dozen memory accesses, so a waiter first spins, then yields the
//! processor. After a while it checks whether the holder is alive, and takes the lock from a dead
//! one. If a living holder makes no progress (a stopped process), the waiter sleeps and reports it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::nanosleep;
use rustix::time::Timespec;

use crate::{owner, seam};

/// Reads of the word before the waiter yields the processor.
const SPINS: u32 = 128;
/// Yields before the waiter checks whether the holder is alive.
const YIELDS: u32 = 64;
/// The first pause of a waiter while the holder lives. It doubles each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// Pauses before the wait is reported, once for each wait: about a second.
const REPORT_AFTER: u32 = 200;
/// Pauses after which the lock is taken even from a running process: about ten seconds. A process
/// that stood still for that long without a stop signal (its memory was swapped out) loses the
/// lock. Its unfinished change is undone, and it does not release the next holder's lock. If it
/// writes late and the words then contradict each other, the zone is emptied.
const FORCE_AFTER: u32 = if cfg!(test) { 3 * REPORT_AFTER } else { 10 * REPORT_AFTER };

/// Called with the process id of a lock holder that makes no progress.
type StallListener = Box<dyn Fn(u32) + Send + Sync>;

static LISTENER: OnceLock<StallListener> = OnceLock::new();

/// Registers the callback for a process that holds a zone for long; it gets the process id. Only
/// the first call has an effect.
pub fn on_stall(listener: impl Fn(u32) + Send + Sync + 'static) {
    // The first listener stays.
    let _ = LISTENER.set(Box::new(listener));
}

/// The state of the lock before it was acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquired {
    /// It was free.
    Free,
    /// The holder died, or was no process at all. Its change may be half done.
    FromDead,
}

/// Acquires the lock for this thread.
pub fn acquire(word: &AtomicU64) -> Acquired {
    let me = owner::this();
    let (mut pauses, mut pause, mut held_by) = (0u32, FIRST_PAUSE, 0);
    // Simulated processes take turns.
    let yields = if seam::this().is_some() { 1 } else { YIELDS };
    loop {
        for _ in 0..yields {
            for _ in 0..SPINS {
                if take(word, 0, me) {
                    return Acquired::Free;
                }
                std::hint::spin_loop();
            }
            std::thread::yield_now();
        }
        let holder = word.load(Ordering::Relaxed);
        (pauses, held_by) = if holder == held_by { (pauses, holder) } else { (0, holder) };
        let is_over =
            || !owner::is_alive(holder) || pauses >= FORCE_AFTER && !owner::is_stopped(holder);
        if holder != 0 && is_over() && take(word, holder, me) {
            return Acquired::FromDead;
        }
        sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
        pauses = pauses.saturating_add(1);
        if pauses == REPORT_AFTER
            && let Some(listener) = LISTENER.get()
        {
            listener(owner::pid(holder));
        }
    }
}

fn sleep(pause: Duration) {
    if seam::rest() {
        return;
    }
    let time = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
    // A signal may shorten the pause.
    let _ = nanosleep(&time);
}

/// Releases the lock, unless another process has taken it meanwhile.
pub fn release(word: &AtomicU64) {
    if word.load(Ordering::Relaxed) == owner::this() && seam::step() {
        word.store(0, Ordering::Release);
    }
}

fn take(word: &AtomicU64, from: u64, me: u64) -> bool {
    word.load(Ordering::Relaxed) == from
        && seam::step()
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
                        assert_eq!(acquire(&lock), Acquired::Free);
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        // Not atomic on purpose. The sum is right only if the lock works.
                        total.store(total.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::Relaxed);
                        release(&lock);
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 8000);
    }

    /// A waiter sleeps while the holder is stopped.
    #[test]
    fn a_process_that_waits_for_a_stopped_holder_sleeps_and_logs_it() {
        static REPORTED: AtomicU64 = AtomicU64::new(0);
        // Simulated processes of other tests may be reported meanwhile.
        on_stall(|pid| {
            if pid == std::process::id() {
                REPORTED.store(u64::from(pid), Ordering::SeqCst);
            }
        });
        let lock = AtomicU64::new(owner::this());
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                let began = std::time::Instant::now();
                let computed = weir_testkit::spent(|| assert_eq!(acquire(&lock), Acquired::Free));
                (computed, began.elapsed())
            });
            // Bounded, so that a missing report fails the test.
            for _ in 0..200 * REPORT_AFTER {
                if REPORTED.load(Ordering::SeqCst) != 0 {
                    break;
                }
                sleep(LONGEST_PAUSE);
            }
            release(&lock);
            let (computed, waited) = waiter.join().unwrap();
            assert!(computed * 2 < waited, "{computed:?} of {waited:?}");
        });
        assert_eq!(REPORTED.load(Ordering::SeqCst), u64::from(std::process::id()));
    }

    #[test]
    fn a_holder_that_lost_the_lock_does_not_release_the_next_ones() {
        let lock = AtomicU64::new(0);
        assert_eq!(acquire(&lock), Acquired::Free);
        lock.store(7, Ordering::Relaxed);
        release(&lock);
        assert_eq!(lock.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_dead_holder_leaves_it_to_one_heir() {
        // A pid above the kernel's limit cannot live.
        let lock = AtomicU64::new(u64::from(u32::MAX >> 1) << 32 | 7);
        let heirs = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    if acquire(&lock) == Acquired::FromDead {
                        heirs.fetch_add(1, Ordering::Relaxed);
                    }
                    release(&lock);
                });
            }
        });
        assert_eq!(heirs.load(Ordering::Relaxed), 1);
    }
}
