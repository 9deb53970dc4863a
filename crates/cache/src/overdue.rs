//! Reads of cache files that take too long. While there is one, no other request waits for an
//! overdue read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of overdue reads.
#[derive(Debug, Default)]
pub struct OverdueReads(Arc<AtomicUsize>);

/// An overdue read. Dropped when the disk has answered.
#[derive(Debug)]
pub struct OverdueRead(Arc<AtomicUsize>);

impl OverdueReads {
    /// Adds one.
    pub fn add(&self) -> OverdueRead {
        self.0.fetch_add(1, Ordering::Relaxed);
        OverdueRead(self.0.clone())
    }

    /// Whether there is one.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for OverdueRead {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
