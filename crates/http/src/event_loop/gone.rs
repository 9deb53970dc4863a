//! Connections that have moved to other loops.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use weir_values::log::Writers;

/// Of the connections that a loop has counted, those that other loops count now: they say so here, and only the loop
/// itself changes its own counts.
#[derive(Default)]
pub struct Gone {
    open: AtomicUsize,
    /// Of these, so many were in process.
    busy: AtomicUsize,
    /// Where the loop's lines of access logs go.
    lines: Mutex<Writers>,
}

impl Gone {
    /// One more is another loop's; it was in process or not.
    pub fn add(&self, busy: bool) {
        self.open.fetch_add(1, Relaxed);
        self.busy.fetch_add(usize::from(busy), Relaxed);
    }

    /// Where the lines of those that leave from now on go: their order stays.
    pub fn set_lines(&self, lines: Writers) {
        *self.lines.lock().unwrap_or_else(PoisonError::into_inner) = lines;
    }

    /// Where the lines of one that has left go.
    pub fn lines(&self) -> Writers {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many are open connections of others.
    pub fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// How many are in process elsewhere.
    pub fn busy(&self) -> usize {
        self.busy.load(Relaxed)
    }
}
