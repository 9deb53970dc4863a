//! Work that takes long for a loop, such as the private key operation of a TLS handshake, one piece
//! at a time.
//!
//! Events are otherwise handled in the order in which the kernel reports them. A burst of
//! handshakes would then delay all other clients until the last handshake is done. A task that
//! awaits [`Handle::heavy`] first lets the rest of the turn run. The loop polls for new events
//! between two pieces.

mod queue;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::Handle;
use crate::inner::Inner;
pub(crate) use queue::HeavyQueue;

impl Inner {
    /// Wakes the first task that waits to do heavy work. False if there is none.
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
    /// Ready when this task may do a piece of work that takes long: after everything that is ready
    /// now. A turn runs at least one such piece if one waits, and more as long as they take less
    /// time than the rest of the turn.
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
