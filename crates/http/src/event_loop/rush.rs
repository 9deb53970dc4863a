//! Returns unused memory to the system after a rush of clients.
//!
//! The allocator returns memory while it allocates. After a rush, the loop allocates little.

use std::cell::Cell;
use std::time::Duration;

/// The number of connections, or of pausing tasks, that is a rush.
const RUSH: usize = 256;
/// The rush is over when at most the maximum divided by this is left,
const PART: usize = 4;
/// for this long.
pub const CALM: Duration = Duration::from_secs(2);

/// The state of a rush.
#[derive(Default)]
pub struct Rush {
    /// The maximum since memory was last returned.
    most: Cell<usize>,
    /// Whether a task waits for [`CALM`].
    awaited: Cell<bool>,
}

impl Rush {
    /// Notes that the number has grown to `open`.
    pub fn grew(&self, open: usize) {
        self.most.set(self.most.get().max(open));
    }

    /// Notes that the number has shrunk to `open`. If true, the caller starts a task that calls
    /// [`Rush::is_calm`] after [`CALM`].
    pub fn shrank(&self, open: usize) -> bool {
        self.is_over(open) && !self.awaited.replace(true)
    }

    fn is_over(&self, open: usize) -> bool {
        self.most.get() >= RUSH && open <= self.most.get() / PART
    }

    /// Whether memory is returned now, after the wait, with `open` left.
    pub fn is_calm(&self, open: usize) -> bool {
        self.awaited.set(false);
        let over = self.is_over(open);
        if over {
            self.most.set(open);
        }
        over
    }
}
