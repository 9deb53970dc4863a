//! Requests that wait until a peer is free. nginx: `queue`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

/// Requests of all loops that wait for a free peer, first come first served.
#[derive(Debug, Default)]
pub struct Queue(Mutex<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<QueuedRequest>,
    last: u64,
}

#[derive(Debug)]
struct QueuedRequest {
    ticket: u64,
    waker: Option<Waker>,
}

impl QueueState {
    /// Where a request stands. Tickets rise along the queue.
    fn position(&self, ticket: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |request| request.ticket).ok()
    }
}

impl Queue {
    /// Appends a request and returns its ticket. `None` if `most` requests wait already. The caller
    /// must [leave](Queue::leave) the queue.
    pub fn enter(&self, most: usize) -> Option<u64> {
        let mut state = self.lock();
        if state.waiting.len() >= most {
            return None;
        }
        state.last += 1;
        let ticket = state.last;
        state.waiting.push_back(QueuedRequest { ticket, waker: None });
        Some(ticket)
    }

    /// Whether this request is the first. `waker` is woken when it becomes the first or a peer may
    /// be free.
    pub fn is_first(&self, ticket: u64, waker: &Waker) -> bool {
        let mut state = self.lock();
        let first = state.waiting.front().is_none_or(|request| request.ticket == ticket);
        if let Some(at) = state.position(ticket) {
            state.waiting[at].waker = Some(waker.clone());
        }
        first
    }

    /// Removes a request and wakes the first of the rest.
    pub fn leave(&self, ticket: u64) {
        let mut state = self.lock();
        if let Some(at) = state.position(ticket) {
            state.waiting.remove(at);
        }
        drop(state);
        self.wake_first();
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// Wakes the first request, since a peer may be free.
    pub fn wake_first(&self) {
        let waker = self.lock().waiting.front_mut().and_then(|request| request.waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No change can be half done, so the state is valid after a panic.
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn first_come_first_served() {
        let queue = Queue::default();
        let (a, b) = (queue.enter(2).unwrap(), queue.enter(2).unwrap());
        assert!(queue.enter(2).is_none());
        let woken: [Arc<Count>; 2] = Default::default();
        let [first, second] = woken.clone().map(Waker::from);
        assert!(queue.is_first(a, &first) && !queue.is_first(b, &second));
        queue.wake_first();
        queue.wake_first();
        let counts = || woken.clone().map(|c| c.0.load(Ordering::Relaxed));
        assert_eq!(counts(), [1, 0]);
        queue.leave(a);
        assert_eq!(counts(), [1, 1]);
        assert!(queue.is_first(b, &second));
        queue.leave(b);
        assert!(queue.is_empty());
    }
}
