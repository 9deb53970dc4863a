//! Requests that wait until a peer is free. nginx: `queue`.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

/// Requests that wait for a free server, in the order in which they came, of all loops.
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

impl Queue {
    /// Takes a place at the end; `None` if `most` wait already. It must be [left](Queue::leave).
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

    /// This request is the first that waits. If not, `waker` is woken when its turn has come.
    pub fn is_first(&self, ticket: u64, waker: &Waker) -> bool {
        let mut state = self.lock();
        let first = state.waiting.front().is_none_or(|place| place.ticket == ticket);
        if let Some(place) = state.waiting.iter_mut().find(|place| place.ticket == ticket) {
            place.waker = Some(waker.clone());
        }
        first
    }

    /// Gives the place back; the next one looks.
    pub fn leave(&self, ticket: u64) {
        self.lock().waiting.retain(|place| place.ticket != ticket);
        self.call();
    }

    /// No request waits.
    pub fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }

    /// A peer may be free: the first one looks.
    pub fn call(&self) {
        let waker = self.lock().waiting.front_mut().and_then(|place| place.waker.take());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Each change is one step: what a panic leaves behind is whole.
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
        queue.call();
        queue.call();
        let counts = || woken.clone().map(|c| c.0.load(Ordering::Relaxed));
        assert_eq!(counts(), [1, 0]);
        queue.leave(a);
        assert_eq!(counts(), [1, 1]);
        assert!(queue.is_first(b, &second));
        queue.leave(b);
        assert!(queue.is_empty());
    }
}
