//! The tasks and foreign wakers that events wake.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

use crate::executor::Executor;
use crate::token::Token;

/// A task's number, or with the top bit a foreign waker's, or none. It takes four bytes, where a
/// `Waker` takes 16 and a reference count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiter(u32);

impl Waiter {
    pub(crate) const NONE: Waiter = Waiter(u32::MAX);
    const FOREIGN: u32 = 1 << 31;

    pub(crate) fn is_set(self) -> bool {
        self != Self::NONE
    }
}

/// What an expired timer wakes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TimerTarget {
    Source(Token),
    Waiter(Waiter),
}

/// Wakers other than the running task's own. Combinators that poll their children with their own
/// wakers get an entry for each registration.
#[derive(Default)]
struct Foreign {
    wakers: Vec<Option<Waker>>,
    free: Vec<u32>,
}

pub(crate) struct Waiters {
    foreign: RefCell<Foreign>,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Waiters { foreign: RefCell::default() }
    }

    /// Makes the event of `place` wake the task that is polled with `cx`.
    #[inline]
    pub(crate) fn register(&self, place: &Cell<Waiter>, cx: &Context<'_>, tasks: &Executor) {
        let old = place.replace(match tasks.current(cx.waker()) {
            Some(task) => Waiter(task),
            None => self.keep(cx.waker().clone()),
        });
        self.forget(old);
    }

    /// As [`Waiters::register`], for a place that is not a `Cell`.
    pub(crate) fn of(&self, cx: &Context<'_>, tasks: &Executor) -> Waiter {
        tasks.current(cx.waker()).map_or_else(|| self.keep(cx.waker().clone()), Waiter)
    }

    /// Wakes the waiter at `place` and removes it.
    #[inline]
    pub(crate) fn wake(&self, place: &Cell<Waiter>, tasks: &Executor) {
        let waiter = place.replace(Waiter::NONE);
        if waiter.is_set() {
            self.wake_one(waiter, tasks);
        }
    }

    pub(crate) fn wake_one(&self, waiter: Waiter, tasks: &Executor) {
        if waiter.0 & Waiter::FOREIGN == 0 {
            tasks.wake(waiter.0);
        } else if let Some(waker) = self.take(waiter) {
            waker.wake();
        }
    }

    /// Drops a registration without waking it.
    #[inline]
    pub(crate) fn forget(&self, waiter: Waiter) {
        if waiter.is_set() && waiter.0 & Waiter::FOREIGN != 0 {
            drop(self.take(waiter));
        }
    }

    fn keep(&self, waker: Waker) -> Waiter {
        let mut foreign = self.foreign.borrow_mut();
        let index = foreign.free.pop().unwrap_or_else(|| {
            foreign.wakers.push(None);
            foreign.wakers.len() as u32 - 1
        });
        if let Some(slot) = foreign.wakers.get_mut(index as usize) {
            *slot = Some(waker);
        }
        Waiter(index | Waiter::FOREIGN)
    }

    fn take(&self, waiter: Waiter) -> Option<Waker> {
        if !waiter.is_set() {
            return None;
        }
        let mut foreign = self.foreign.borrow_mut();
        let index = waiter.0 & !Waiter::FOREIGN;
        let waker = foreign.wakers.get_mut(index as usize)?.take()?;
        foreign.free.push(index);
        Some(waker)
    }
}
