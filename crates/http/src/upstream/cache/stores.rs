//! Answers that a loop is writing into their files. No client waits for them, so the loop does
//! before it ends. Otherwise an answer to the last request would not be stored, and a part of its
//! file would remain.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use weir_engine::{Rank, coarse_nanos};

use crate::event_loop::{LoopKey, LoopPart, LoopStart, LoopState};

/// How long a loop that ends waits for a disk operation.
const STUCK: Duration = Duration::from_secs(5);

/// The number of such answers, shared by all sites of the loop.
#[derive(Default)]
pub struct Stores(Rc<Cell<usize>>);

/// Those of the loop.
pub static STORES: LoopKey<Stores> = LoopKey::new(Stores::new);

impl LoopPart for Stores {
    fn is_flushed(&self, event_loop: &LoopState) -> bool {
        self.0.get() == 0 || is_stuck(event_loop)
    }
}

/// Whether the disk has hung for so long that the loop does not wait for the answers.
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

    /// Counts one more, until the value is dropped.
    pub fn add(&self) -> Storing {
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
