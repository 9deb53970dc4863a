//! The way to what a module keeps in each loop.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{AnyLoopKey, LoopPart, LoopStart, LoopState};

/// The key of what a module keeps in each loop: declared once by the module, as a static.
pub struct LoopKey<T> {
    /// The slot's number, which the list of modules gives; the same in each loop.
    at: AtomicUsize,
    /// Makes it before the loop serves.
    make: fn(&LoopStart<'_>) -> T,
}

impl<T: LoopPart> LoopKey<T> {
    /// A key without a number yet.
    pub const fn new(make: fn(&LoopStart<'_>) -> T) -> LoopKey<T> {
        LoopKey { at: AtomicUsize::new(usize::MAX), make }
    }

    /// What the module keeps in this loop.
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

/// A key is used without standing in the list of modules.
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
