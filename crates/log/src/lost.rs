//! Counts lines that could not be written to their file.

use std::sync::atomic::{AtomicU64, Ordering};

/// Lines of all logs of this process that were lost.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Counts these lines as lost.
pub(crate) fn count(lines: &[u8]) {
    let n = lines.iter().filter(|byte| **byte == b'\n').count();
    LOST.fetch_add(n as u64, Ordering::Relaxed);
}

/// How many lines of log files this process has lost since the last call, because they could not be written.
#[inline]
pub fn take_lost() -> u64 {
    match LOST.load(Ordering::Relaxed) {
        0 => 0,
        _ => LOST.swap(0, Ordering::Relaxed),
    }
}
