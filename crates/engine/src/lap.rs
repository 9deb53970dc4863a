//! Measures how long events wait for their handlers, and how long handlers take.
//!
//! While a loop runs one handler, all other events of the turn wait. Each handler of a turn is a
//! lap, which begins at the end of the one before. An event was blocked from the wait's return
//! until its lap begins. A lap costs one clock read, at its end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::{clock, runqueue};

/// Receives the times that a loop measures. Must not use the loop.
pub trait Timekeeper {
    /// A handler has run. Its event waited for `blocked` after the wait returned; the handler
    /// itself took `took`.
    fn handled(&self, blocked: Duration, took: Duration);
    /// A wait has returned. `at` is the time by the monotonic clock, `slept` the time since the
    /// last handler ended; both in nanoseconds.
    fn woke(&self, at: u64, slept: u64);
    /// A turn has ended. `took` is the time from the wait's return to the end of the last handler;
    /// 0 if there was none.
    fn turned(&self, took: Duration);
}

/// The laps of a loop's turns.
pub(crate) struct Laps {
    keeper: RefCell<Option<Rc<dyn Timekeeper>>>,
    /// When the wait returned and when the last lap ended, both by [`clock::nanos`].
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

    /// The wait has returned at `woke`, by [`clock::nanos`].
    pub(crate) fn begin(&self, woke: u64) {
        let last = self.last.replace(woke);
        self.woke.set(woke);
        if let Some(keeper) = &*self.keeper.borrow() {
            keeper.woke(woke, if last == 0 { 0 } else { woke.saturating_sub(last) });
            runqueue::look(woke);
        }
    }

    /// A handler has ended.
    pub(crate) fn lap(&self) {
        let keeper = self.keeper.borrow();
        let Some(keeper) = &*keeper else { return };
        let blocked = self.blocked();
        let (start, end) = (self.last.get(), clock::nanos());
        self.last.set(end);
        keeper.handled(blocked, Duration::from_nanos(end.saturating_sub(start)));
        runqueue::look(end);
    }

    /// When the last handler ended, by [`clock::nanos`]. Work of the turn after that takes no time
    /// that matters.
    pub(crate) fn latest(&self) -> u64 {
        let last = self.last.get();
        // Unknown before the first turn and without a time keeper.
        if last == 0 || self.keeper.borrow().is_none() { clock::nanos() } else { last }
    }

    /// The turn has ended.
    pub(crate) fn end(&self) {
        let took = self.blocked();
        if let Some(keeper) = &*self.keeper.borrow() {
            keeper.turned(took);
        }
    }

    /// How long the event of the running handler waited after the wait returned.
    pub(crate) fn blocked(&self) -> Duration {
        Duration::from_nanos(self.last.get().saturating_sub(self.woke.get()))
    }
}
