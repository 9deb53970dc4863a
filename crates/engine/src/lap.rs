//! How long events wait for their handlers, and how long the handlers take.
//!
//! While a loop runs a handler, everything else that became ready waits. A turn is a row of laps, one for each
//! handler: what came before a lap is the time for which its event was blocked. A lap costs one look at the
//! clock, at its end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Hears how long things took; must not touch the loop.
pub trait Timekeeper {
    /// A handler has run: its event waited for `blocked` since the wait's return, and it took `took`.
    fn handled(&self, blocked: Duration, took: Duration);
    /// A turn is over: it took this long from the wait's return to its last handler's end.
    fn turned(&self, took: Duration);
}

/// The laps of a loop.
pub(crate) struct Laps {
    keeper: RefCell<Option<Rc<dyn Timekeeper>>>,
    woke: Cell<Instant>,
    last: Cell<Instant>,
}

impl Laps {
    pub(crate) fn new(now: Instant) -> Self {
        Laps { keeper: RefCell::new(None), woke: Cell::new(now), last: Cell::new(now) }
    }

    pub(crate) fn set_keeper(&self, keeper: Option<Rc<dyn Timekeeper>>) {
        let old = self.keeper.replace(keeper);
        drop(old);
    }

    /// The wait has returned.
    pub(crate) fn begin(&self, woke: Instant) {
        self.woke.set(woke);
        self.last.set(woke);
    }

    /// A handler has run.
    pub(crate) fn lap(&self) {
        let keeper = self.keeper.borrow();
        let Some(keeper) = &*keeper else { return };
        let (start, end) = (self.last.get(), crate::clock::read());
        self.last.set(end);
        let blocked = start.saturating_duration_since(self.woke.get());
        keeper.handled(blocked, end.saturating_duration_since(start));
    }

    /// The turn is over.
    pub(crate) fn end(&self) {
        let took = self.last.get().saturating_duration_since(self.woke.get());
        if let Some(keeper) = &*self.keeper.borrow()
            && !took.is_zero()
        {
            keeper.turned(took);
        }
    }

    /// How long the event of the running handler waited.
    pub(crate) fn blocked(&self) -> Duration {
        self.last.get().saturating_duration_since(self.woke.get())
    }
}
