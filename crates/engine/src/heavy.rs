//! Work that takes long for a loop, such as the private key's part of a handshake, one piece at a time.
//!
//! What became ready is otherwise served in the order in which the kernel reported it. A rush of
//! clients with keys to agree on would then make all others wait until the last of them is served.
//! A task that awaits [`Handle::heavy`] first lets the rest of the turn go ahead, and between two
//! such pieces the loop looks for what has become ready meanwhile.

mod queue;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::Handle;
use crate::inner::Inner;
pub(crate) use queue::HeavyQueue;

impl Inner {
    /// Wakes the first task that waits for heavy work. False if none does.
    pub(crate) fn call_heavy(&self) -> bool {
        let Some(waiter) = self.heavy.call_first() else { return false };
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
        let number = *this.number.get_or_insert_with(|| queue.enter());
        if queue.was_called(number) {
            return Poll::Ready(());
        }
        let waiter = inner.waiters.of(cx, &inner.tasks);
        inner.waiters.forget(queue.set_waiter(number, waiter));
        Poll::Pending
    }
}

impl Drop for Heavy {
    fn drop(&mut self) {
        let inner = &self.h.0;
        let waiter = self.number.and_then(|number| inner.heavy.leave(number));
        if let Some(waiter) = waiter {
            inner.waiters.forget(waiter);
        }
    }
}
