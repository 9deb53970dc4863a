//! Answers that a loop is writing into their files. No client waits for that, so the loop does before it ends: else an answer
//! whose request was the last one is not stored, and leaves a part of its file behind.

use std::cell::Cell;
use std::rc::Rc;

use crate::event_loop::{LoopKey, LoopPart, LoopStart, LoopState};

/// How many there are, whatever site the loop serves.
#[derive(Default)]
pub struct Stores(Rc<Cell<usize>>);

/// Those of the loop.
pub static STORES: LoopKey<Stores> = LoopKey::new(Stores::new);

impl LoopPart for Stores {
    fn is_flushed(&self, _: &LoopState) -> bool {
        self.0.get() == 0
    }
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
