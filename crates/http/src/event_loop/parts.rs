//! The key to a module's state in each loop.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{AnyLoopKey, LoopPart, LoopStart, LoopState};

/// The key to a module's state in each loop. The module declares it as a static.
pub struct LoopKey<T> {
    /// The slot's index, which follows from the list of modules. It is the same in each loop.
    at: AtomicUsize,
    /// Makes the state before the loop serves.
    make: fn(&LoopStart<'_>) -> T,
}

impl<T: LoopPart> LoopKey<T> {
    /// A key without an index.
    pub const fn new(make: fn(&LoopStart<'_>) -> T) -> LoopKey<T> {
        LoopKey { at: AtomicUsize::new(usize::MAX), make }
    }

    /// The module's state in this loop.
    #[inline]
    pub fn of<'a>(&self, event_loop: &'a LoopState) -> &'a T {
        let slot = event_loop.parts.get(self.at.load(Ordering::Relaxed));
        let part = slot.and_then(|slot| {
            let part: &dyn Any = &**slot;
            part.downcast_ref()
        });
        match part {
            Some(part) => part,
            None => undeclared(),
        }
    }
}

/// The list of modules lacks a key that is used.
#[cold]
fn undeclared() -> ! {
    unreachable!("the list of modules lacks a key")
}

impl<T: LoopPart> AnyLoopKey for LoopKey<T> {
    fn settle(&self, at: usize) {
        self.at.store(at, Ordering::Relaxed);
    }

    fn make(&self, start: &LoopStart<'_>) -> Box<dyn LoopPart> {
        Box::new((self.make)(start))
    }
}
