//! How long events wait for their handlers, and how long the handlers take.
//!
//! While a loop runs a handler, everything else that became ready waits. A turn is a row of laps, one for each
//! handler: what came before a lap is the time for which its event was blocked. A lap costs one look at the
//! clock, at its end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::{clock, runqueue};

/// Hears how long things took; must not touch the loop.
pub trait Timekeeper {
    /// A handler has run: its event waited for `blocked` since the wait's return, and it took `took`.
    fn handled(&self, blocked: Duration, took: Duration);
    /// A wait has returned, at this time in nanoseconds by the monotonic clock; so many have passed since the last handler's
    /// end.
    fn woke(&self, at: u64, slept: u64);
    /// A turn is over: it took this long from the wait's return to its last handler's end, nothing if there was none.
    fn turned(&self, took: Duration);
}

/// The laps of a loop.
pub(crate) struct Laps {
    keeper: RefCell<Option<Rc<dyn Timekeeper>>>,
    /// By [`clock::nanos`], both.
    woke: Cell<u64>,
    last: Cell<u64>,
}

impl Laps {
    pub(crate) fn new() -> Self {
        Laps { keeper: RefCell::new(None), woke: Cell::new(0), last: Cell::new(0) }
    }

    pub(crate) fn set_keeper(&self, keeper: Option<Rc<dyn Timekeeper>>) {
        let old = self.keeper.replace(keeper);
        drop(old);
    }

    /// The wait has returned, at this time by [`clock::nanos`].
    pub(crate) fn begin(&self, woke: u64) {
        let last = self.last.replace(woke);
        self.woke.set(woke);
        if let Some(keeper) = &*self.keeper.borrow() {
            keeper.woke(woke, if last == 0 { 0 } else { woke.saturating_sub(last) });
            runqueue::look(woke);
        }
    }

    /// A handler has run.
    pub(crate) fn lap(&self) {
        let keeper = self.keeper.borrow();
        let Some(keeper) = &*keeper else { return };
        let blocked = self.blocked();
        let (start, end) = (self.last.get(), clock::nanos());
        self.last.set(end);
        keeper.handled(blocked, Duration::from_nanos(end.saturating_sub(start)));
        runqueue::look(end);
    }

    /// When the last handler ended, by [`clock::nanos`]: what comes behind it in a turn takes no time that counts.
    pub(crate) fn latest(&self) -> u64 {
        let last = self.last.get();
        // Before the first turn, and without a time keeper, it is not known.
        if last == 0 || self.keeper.borrow().is_none() { clock::nanos() } else { last }
    }

    /// The turn is over.
    pub(crate) fn end(&self) {
        let took = self.blocked();
        if let Some(keeper) = &*self.keeper.borrow() {
            keeper.turned(took);
        }
    }

    /// How long the event of the running handler waited.
    pub(crate) fn blocked(&self) -> Duration {
        Duration::from_nanos(self.last.get().saturating_sub(self.woke.get()))
    }
}
