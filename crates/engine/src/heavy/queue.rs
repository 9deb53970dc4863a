//! The queue of tasks that wait to do heavy work.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use crate::waiter::Waiter;

/// Tasks get numbers in the order in which they arrive.
#[derive(Default)]
pub(crate) struct HeavyQueue {
    waiting: RefCell<VecDeque<(u64, Waiter)>>,
    /// The number of the next task.
    next: Cell<u64>,
    /// Tasks with numbers below this have had their turn.
    called: Cell<u64>,
}

impl HeavyQueue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Adds a task and returns its number.
    pub(super) fn enter(&self) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        self.waiting.borrow_mut().push_back((number, Waiter::NONE));
        number
    }

    /// Removes the first task, which has its turn, and returns its waiter.
    pub(super) fn call_first(&self) -> Option<Waiter> {
        let (number, waiter) = self.waiting.borrow_mut().pop_front()?;
        self.called.set(number + 1);
        Some(waiter)
    }

    /// Whether this task has had its turn.
    pub(super) fn was_called(&self, number: u64) -> bool {
        number < self.called.get()
    }

    /// Replaces the waiter of a task. Returns the previous one.
    pub(super) fn set_waiter(&self, number: u64, waiter: Waiter) -> Waiter {
        let mut waiting = self.waiting.borrow_mut();
        match waiting.iter_mut().rev().find(|(n, _)| *n == number) {
            Some((_, place)) => std::mem::replace(place, waiter),
            None => waiter,
        }
    }

    /// Removes a task that no longer waits. Returns its waiter.
    pub(super) fn leave(&self, number: u64) -> Option<Waiter> {
        if self.was_called(number) {
            return None;
        }
        let mut waiting = self.waiting.borrow_mut();
        let at = waiting.iter().position(|(n, _)| *n == number)?;
        waiting.remove(at).map(|(_, waiter)| waiter)
    }
}
