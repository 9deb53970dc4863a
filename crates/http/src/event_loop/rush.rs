//! After a rush of clients, unused memory goes back to the system.
//!
//! The allocator gives memory back in passing, while the loop allocates. When a rush is over, the loop allocates little.

use std::cell::Cell;
use std::time::Duration;

/// So many connections of a loop are a rush; so are as many whose tasks pause.
const RUSH: usize = 256;
/// It is over when no more than this part of them is left,
const PART: usize = 4;
/// for so long.
pub const CALM: Duration = Duration::from_secs(2);

/// What a loop remembers of it.
#[derive(Default)]
pub struct Rush {
    /// The most since memory was given back.
    most: Cell<usize>,
    /// A task waits for the calm.
    awaited: Cell<bool>,
}

impl Rush {
    /// There are so many, one more than before.
    pub fn grew(&self, open: usize) {
        self.most.set(self.most.get().max(open));
    }

    /// So many are left. When true, the caller starts a task that calls [`Rush::is_calm`] after [`CALM`].
    pub fn shrank(&self, open: usize) -> bool {
        self.is_over(open) && !self.awaited.replace(true)
    }

    fn is_over(&self, open: usize) -> bool {
        self.most.get() >= RUSH && open <= self.most.get() / PART
    }

    /// The wait is over, and there are so many: whether memory is given back now.
    pub fn is_calm(&self, open: usize) -> bool {
        self.awaited.set(false);
        let over = self.is_over(open);
        if over {
            self.most.set(open);
        }
        over
    }
}
