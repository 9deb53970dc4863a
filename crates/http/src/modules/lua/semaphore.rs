//! `ngx.semaphore`: coroutines of a loop that wait for each other, whichever requests they run for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use weir_engine::{Either, Handle, either};

/// A count of resources, and the coroutines that wait for one, in their order.
#[derive(Default)]
pub struct Semaphore {
    resources: Cell<u64>,
    waiters: RefCell<VecDeque<Rc<Waiter>>>,
    /// Coroutines that have a resource and have not run since.
    granted: Cell<u64>,
}

#[derive(Default)]
struct Waiter {
    has_resource: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Semaphore {
    /// One with so many resources.
    pub fn new(resources: u64) -> Semaphore {
        Semaphore { resources: Cell::new(resources), ..Semaphore::default() }
    }

    /// The resources, or, below 0, the coroutines that wait.
    pub fn count(&self) -> i64 {
        let waiting = i64::try_from(self.waiters.borrow().len()).unwrap_or(i64::MAX);
        i64::try_from(self.resources.get()).unwrap_or(i64::MAX).saturating_sub(waiting)
    }

    /// Adds resources. Those that wait longest get theirs first.
    pub fn post(&self, many: u64) {
        for left in (1..=many).rev() {
            let Some(waiter) = self.waiters.borrow_mut().pop_front() else {
                return self.resources.set(self.resources.get().saturating_add(left));
            };
            waiter.has_resource.set(true);
            self.granted.set(self.granted.get() + 1);
            waiter.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Gives what there is to those that wait, once all that were given some have run: so they run in their order.
    fn pass_on(&self) {
        if self.granted.get() == 0 && !self.waiters.borrow().is_empty() {
            self.post(self.resources.take());
        }
    }

    /// Takes a resource, if there is one and no coroutine that waited for one has yet to run.
    pub fn try_take(&self) -> bool {
        if self.granted.get() > 0 {
            return false;
        }
        let left = self.resources.get().checked_sub(1);
        left.inspect(|left| self.resources.set(*left)).is_some()
    }

    /// Stands in line from now on, and waits until the time is over: whether it got a resource.
    pub fn take(
        self: Rc<Semaphore>,
        handle: Handle,
        limit: Duration,
    ) -> impl Future<Output = bool> {
        let waiter = Rc::new(Waiter::default());
        self.waiters.borrow_mut().push_back(waiter.clone());
        self.pass_on();
        let turn = Turn { semaphore: self, waiter };
        async move {
            let granted = std::future::poll_fn(|cx| {
                if turn.takes() {
                    turn.semaphore.pass_on();
                    return Poll::Ready(());
                }
                *turn.waiter.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            });
            matches!(either(granted, handle.sleep(limit)).await, Either::Left(()))
        }
    }
}

/// A place in line. A coroutine that ends early leaves the line, and leaves a resource that it got to the next.
struct Turn {
    semaphore: Rc<Semaphore>,
    waiter: Rc<Waiter>,
}

impl Turn {
    /// Whether it got a resource, which it has no more from now on.
    fn takes(&self) -> bool {
        let takes = self.waiter.has_resource.replace(false);
        if takes {
            self.semaphore.granted.set(self.semaphore.granted.get() - 1);
        }
        takes
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.semaphore.waiters.borrow_mut().retain(|waiter| !Rc::ptr_eq(waiter, &self.waiter));
        if self.takes() {
            self.semaphore.post(1);
        }
    }
}
