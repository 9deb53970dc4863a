//! How long this thread was runnable and waited for a processor. Messages about stalled loops need
//! it, to tell a handler that was preempted from one that took long.
//!
//! The kernel counts this time for each thread (proc(5), `schedstat`). It is read every few
//! milliseconds at most, at the end of a handler or a wait, to be compared with after a handler
//! that took long.

use std::cell::{Cell, OnceCell};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};

use crate::seam;

/// How old the reading to compare with may be, in nanoseconds. The time of a handler may be wrong
/// by that much.
const MAX_AGE: u64 = 5_000_000;

thread_local! {
    static FILE: OnceCell<Option<OwnedFd>> = const { OnceCell::new() };
    /// When the count was read last, by [`crate::clock::nanos`], and its value in nanoseconds.
    static SEEN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Reads the count if the last reading is too old. `now` is by [`crate::clock::nanos`].
#[inline]
pub(crate) fn look(now: u64) {
    if now.saturating_sub(SEEN.get().0) >= MAX_AGE {
        SEEN.set((now, read().unwrap_or(0)));
    }
}

/// How long this thread has waited for a processor since the last reading, which is a few
/// milliseconds older than the running handler at most. None if the kernel does not tell.
pub fn waited_for_processor() -> Option<Duration> {
    let waited = read()?.saturating_sub(SEEN.get().1);
    Some(Duration::from_nanos(waited))
}

fn read() -> Option<u64> {
    seam::thread_count(read_schedstat)
}

fn read_schedstat() -> Option<u64> {
    let path = "/proc/thread-self/schedstat";
    let opened = || open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
    // Thread-local values may be gone when the thread ends.
    let read = FILE.try_with(|file| {
        let mut buf = [0; 64];
        let len = rustix::io::pread(file.get_or_init(opened).as_ref()?, &mut buf, 0).ok()?;
        std::str::from_utf8(buf.get(..len)?).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
    });
    read.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_thread_does_not_wait_for_a_processor() {
        look(u64::MAX);
        let Some(before) = waited_for_processor() else {
            eprintln!("skipped: the kernel does not tell");
            return;
        };
        #[allow(clippy::disallowed_methods, reason = "to sleep is what is tested")]
        std::thread::sleep(Duration::from_millis(300));
        let waited = waited_for_processor().unwrap();
        assert!(waited >= before, "it only grows");
        assert!(waited < Duration::from_millis(300), "{waited:?}");
    }
}
