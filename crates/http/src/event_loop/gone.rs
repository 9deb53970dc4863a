//! Connections that have moved to other loops.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use weir_values::log::Writers;

/// The connections that a loop has opened and that other loops have taken over. Other loops count
/// them here, since only the loop itself changes its own counts.
#[derive(Default)]
pub struct Gone {
    open: AtomicUsize,
    /// The number of them that were processing a request.
    busy: AtomicUsize,
    /// The queue of the loop's access logs.
    lines: Mutex<Writers>,
}

impl Gone {
    /// Counts a connection that another loop has taken over. `busy`: it was processing a request.
    pub fn add(&self, busy: bool) {
        self.open.fetch_add(1, Relaxed);
        self.busy.fetch_add(usize::from(busy), Relaxed);
    }

    /// Sets the queue for the access logs of connections that move from now on, so that their lines
    /// stay in order.
    pub fn set_lines(&self, lines: Writers) {
        *self.lines.lock().unwrap_or_else(PoisonError::into_inner) = lines;
    }

    /// The queue for the access logs of a connection that has moved.
    pub fn lines(&self) -> Writers {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of connections that other loops have taken over.
    pub fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// The number of them that were processing a request.
    pub fn busy(&self) -> usize {
        self.busy.load(Relaxed)
    }
}
