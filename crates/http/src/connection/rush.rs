//! After a rush of clients: memory that nobody needs any more goes back to the system.
//!
//! The allocator gives memory back in passing, while others allocate. When a rush is over nobody does.

use std::cell::Cell;
use std::time::Duration;

use weir_engine::operation;

use crate::event_loop::LoopState;

/// So many connections of a loop are a rush.
const RUSH: usize = 256;
/// It is over when no more than this part of them is left,
const PART: usize = 4;
/// for so long.
const CALM: Duration = Duration::from_secs(2);

/// What a loop remembers of it.
#[derive(Default)]
pub struct Rush {
    /// The most connections since memory was given back.
    most: Cell<usize>,
    /// Somebody waits for the calm.
    awaited: Cell<bool>,
}

impl Rush {
    /// So many connections are open, one more than before.
    pub fn grew(&self, open: usize) {
        self.most.set(self.most.get().max(open));
    }

    /// So many are left; true for who has to see to the rest with [`calm_down`].
    pub fn shrank(&self, open: usize) -> bool {
        self.is_over(open) && !self.awaited.replace(true)
    }

    fn is_over(&self, open: usize) -> bool {
        self.most.get() >= RUSH && open <= self.most.get() / PART
    }
}

/// Gives memory back, unless the next rush is there by then.
pub async fn calm_down() {
    let Some(event_loop) = LoopState::current() else { return };
    event_loop.handle.sleep(CALM).await;
    // The pages of a hundred megabytes take milliseconds: whoever is ready goes first.
    event_loop.handle.heavy().await;
    let (rush, open) = (&event_loop.rush, event_loop.connections());
    rush.awaited.set(false);
    if rush.is_over(open) {
        rush.most.set(open);
        operation("giving memory back", weir_sys::allocator::give_back);
    }
}
