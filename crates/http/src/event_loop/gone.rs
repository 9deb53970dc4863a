//! Connections that have moved to other loops.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Of the connections that a loop has counted, those that other loops count now: they say so here, and only the loop
/// itself changes its own counts.
#[derive(Debug, Default)]
pub struct Gone {
    open: AtomicUsize,
    /// Of these, so many were in process.
    busy: AtomicUsize,
}

impl Gone {
    /// One more is another loop's; it was in process or not.
    pub fn add(&self, busy: bool) {
        self.open.fetch_add(1, Relaxed);
        self.busy.fetch_add(usize::from(busy), Relaxed);
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
