//! Work that takes long for a loop, such as the private key's part of a handshake, one piece at a time.
//!
//! What became ready is otherwise served in the order in which the kernel reported it. A rush of
//! clients with keys to agree on would then make all others wait until the last of them is served.
//! A task that awaits [`Handle::heavy`] first lets the rest of the turn go ahead, and between two
//! such pieces the loop looks for what has become ready meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::Handle;
use crate::inner::Inner;
use crate::waiter::Waiter;

/// The waiting tasks, in their order.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: RefCell<VecDeque<(u64, Waiter)>>,
    /// The number of the next task that comes.
    next: Cell<u64>,
    /// Numbers below this have had their turn.
    called: Cell<u64>,
}

impl Queue {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }
}

impl Inner {
    /// Wakes the first task that waits for heavy work. False if none does.
    pub(crate) fn call_heavy(&self) -> bool {
        let first = self.heavy.waiting.borrow_mut().pop_front();
        let Some((number, waiter)) = first else { return false };
        self.heavy.called.set(number + 1);
        self.waiters.wake_one(waiter, &self.tasks);
        true
    }
}

/// See [`Handle::heavy`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Heavy {
    h: Handle,
    number: Option<u64>,
}

impl Handle {
    /// Ready when it is this task's turn to do something that takes long: after all else that is
    /// ready now. A turn of the loop has at least one such piece of work, and more only while they
    /// take less time than the rest of the turn.
    pub fn heavy(&self) -> Heavy {
        Heavy { h: self.clone(), number: None }
    }
}

impl Future for Heavy {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let inner = &this.h.0;
        let queue = &inner.heavy;
        let number = *this.number.get_or_insert_with(|| {
            let number = queue.next.get();
            queue.next.set(number + 1);
            queue.waiting.borrow_mut().push_back((number, Waiter::NOBODY));
            number
        });
        if number < queue.called.get() {
            return Poll::Ready(());
        }
        let mut waiting = queue.waiting.borrow_mut();
        if let Some((_, place)) = waiting.iter_mut().rev().find(|(n, _)| *n == number) {
            let waiter = inner.waiters.of(cx, &inner.tasks);
            inner.waiters.forget(std::mem::replace(place, waiter));
        }
        Poll::Pending
    }
}

impl Drop for Heavy {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let inner = &self.h.0;
        if number < inner.heavy.called.get() {
            return;
        }
        let mut waiting = inner.heavy.waiting.borrow_mut();
        if let Some(at) = waiting.iter().position(|(n, _)| *n == number)
            && let Some((_, waiter)) = waiting.remove(at)
        {
            inner.waiters.forget(waiter);
        }
    }
}
