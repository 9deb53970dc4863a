//! Answers that a loop is writing into their files. No client waits for that, so the loop does before it ends: else an answer
//! whose request was the last one is not stored, and leaves a part of its file behind.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weir_engine::{Rank, coarse_nanos};

use crate::event_loop::{LoopKey, LoopPart, LoopStart, LoopState};

/// A loop that ends waits no longer for a disk.
const STUCK: Duration = Duration::from_secs(5);

/// How many there are, whatever site the loop serves.
#[derive(Default)]
pub struct Stores(Rc<Cell<usize>>);

/// Those of the loop.
pub static STORES: LoopKey<Stores> = LoopKey::new(Stores::new);

impl LoopPart for Stores {
    fn is_flushed(&self, event_loop: &LoopState) -> bool {
        self.0.get() == 0 || is_stuck(event_loop)
    }
}

/// Whether a disk has not answered for so long that the answers may as well be lost.
fn is_stuck(event_loop: &LoopState) -> bool {
    let oldest = event_loop.handle.files().oldest_operation();
    oldest.is_some_and(|oldest| {
        let lasts = Duration::from_nanos(coarse_nanos().saturating_sub(oldest.since));
        oldest.rank != Rank::Read && lasts >= STUCK
    })
}

impl Stores {
    fn new(start: &LoopStart<'_>) -> Stores {
        start.before.map(|before| Stores(STORES.of(before).0.clone())).unwrap_or_default()
    }

    /// One more, until the value is dropped.
    pub fn one(&self) -> Storing {
        self.0.set(self.0.get() + 1);
        Storing(self.0.clone())
    }
}

/// An answer that is being written.
pub struct Storing(Rc<Cell<usize>>);

impl Drop for Storing {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}
