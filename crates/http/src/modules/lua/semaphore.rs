//! `ngx.semaphore`: synchronizes coroutines of a loop, whichever requests they run for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use weir_engine::{Either, Handle, either};

/// A number of resources, and the queue of coroutines that wait for one.
#[derive(Default)]
pub struct Semaphore {
    resources: Cell<u64>,
    /// By their tickets: the longest-waiting one is the first.
    waiters: RefCell<BTreeMap<u64, Rc<Waiter>>>,
    /// The ticket of the next waiter.
    ticket: Cell<u64>,
    /// The number of coroutines that were given a resource and have not run since.
    granted: Cell<u64>,
}

#[derive(Default)]
struct Waiter {
    has_resource: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Semaphore {
    /// A semaphore with this many resources.
    pub fn new(resources: u64) -> Semaphore {
        Semaphore { resources: Cell::new(resources), ..Semaphore::default() }
    }

    /// The number of resources or, below 0, of waiting coroutines.
    pub fn count(&self) -> i64 {
        let waiting = i64::try_from(self.waiters.borrow().len()).unwrap_or(i64::MAX);
        i64::try_from(self.resources.get()).unwrap_or(i64::MAX).saturating_sub(waiting)
    }

    /// Adds resources. The longest-waiting coroutines get them.
    pub fn post(&self, many: u64) {
        for left in (1..=many).rev() {
            let Some((_, waiter)) = self.waiters.borrow_mut().pop_first() else {
                return self.resources.set(self.resources.get().saturating_add(left));
            };
            waiter.has_resource.set(true);
            self.granted.set(self.granted.get() + 1);
            waiter.waker.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Gives resources to waiting coroutines, once all that were given one before have run. So they
    /// run in order.
    fn grant_rest(&self) {
        if self.granted.get() == 0 && !self.waiters.borrow().is_empty() {
            self.post(self.resources.take());
        }
    }

    /// Takes a resource if there is one, unless a coroutine that was given one has yet to run.
    pub fn try_take(&self) -> bool {
        if self.granted.get() > 0 {
            return false;
        }
        let left = self.resources.get().checked_sub(1);
        left.inspect(|left| self.resources.set(*left)).is_some()
    }

    /// Queues for a resource at once, and waits for it. Returns false after `limit`.
    pub fn take(
        self: Rc<Semaphore>,
        handle: Handle,
        limit: Duration,
    ) -> impl Future<Output = bool> {
        let waiter = Rc::new(Waiter::default());
        let ticket = self.ticket.get();
        self.ticket.set(ticket + 1);
        self.waiters.borrow_mut().insert(ticket, waiter.clone());
        self.grant_rest();
        let place = QueuePlace { semaphore: self, waiter, ticket };
        async move {
            let granted = std::future::poll_fn(|cx| {
                if place.takes() {
                    place.semaphore.grant_rest();
                    return Poll::Ready(());
                }
                *place.waiter.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            });
            matches!(either(granted, handle.sleep(limit)).await, Either::Left(()))
        }
    }
}

/// A place in the queue. Dropping it leaves the queue, and passes a resource on that was given but
/// not taken.
struct QueuePlace {
    semaphore: Rc<Semaphore>,
    waiter: Rc<Waiter>,
    ticket: u64,
}

impl QueuePlace {
    /// Takes the resource that was given, if so.
    fn takes(&self) -> bool {
        let takes = self.waiter.has_resource.replace(false);
        if takes {
            self.semaphore.granted.set(self.semaphore.granted.get() - 1);
        }
        takes
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.semaphore.waiters.borrow_mut().remove(&self.ticket);
        if self.takes() {
            self.semaphore.post(1);
        }
    }
}
