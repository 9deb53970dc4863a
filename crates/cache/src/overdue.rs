//! Files that a disk has not delivered in time. No other request waits for them meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many there are.
#[derive(Debug, Default)]
pub struct Overdue(Arc<AtomicUsize>);

/// One of them; dropped when the disk has answered.
#[derive(Debug)]
pub struct Late(Arc<AtomicUsize>);

impl Overdue {
    /// One more.
    pub fn one(&self) -> Late {
        self.0.fetch_add(1, Ordering::Relaxed);
        Late(self.0.clone())
    }

    /// Whether there is one.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
