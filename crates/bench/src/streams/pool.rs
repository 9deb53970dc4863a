//! The connections that a group of streams shares: one per peer, opened when needed.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::Multiplexed;
use crate::thread_state::ThreadState;
use crate::{Closing, RequestFailure};

pub(super) struct ConnectionPool<C> {
    slots: RefCell<Vec<PoolSlot<C>>>,
    random: Cell<u64>,
    /// Number of the next connection.
    next: Cell<u64>,
}

enum PoolSlot<C> {
    Empty,
    Opening(Rc<Attempt>),
    Open(C, u64),
}

/// A connection that is being opened.
#[derive(Default)]
struct Attempt {
    /// Streams that wait for it.
    waiting: RefCell<Vec<Waker>>,
    /// Why it failed.
    failure: Cell<Option<RequestFailure>>,
}

impl<C: Multiplexed> ConnectionPool<C> {
    pub(super) fn new(peers: usize, order: u32) -> Rc<ConnectionPool<C>> {
        let slots = (0..peers).map(|_| PoolSlot::Empty).collect();
        let random = Cell::new(Closing::seed(order));
        Rc::new(ConnectionPool { slots: RefCell::new(slots), random, next: Cell::new(0) })
    }

    /// Returns a sender for the peer and the number of its connection. If opening it fails, all
    /// waiting streams fail. The plan's timeout bounds the wait.
    pub(super) async fn sender(
        &self,
        state: &Rc<ThreadState>,
        peer: usize,
    ) -> Result<(C, u64), RequestFailure> {
        let mut awaited = None;
        let found = poll_fn(|cx| self.poll_open(peer, &mut awaited, cx.waker())).await?;
        if let Some(open) = found {
            return Ok(open);
        }
        let made = C::connect(state, peer).await;
        let mut slots = self.slots.borrow_mut();
        let Some(slot) = slots.get_mut(peer) else { return Err(RequestFailure::Connect) };
        let number = self.next.replace(self.next.get() + 1);
        let new = match &made {
            Ok(sender) => PoolSlot::Open(sender.clone(), number),
            Err(_) => PoolSlot::Empty,
        };
        if let PoolSlot::Opening(attempt) = std::mem::replace(slot, new) {
            attempt.failure.set(made.as_ref().err().copied());
            attempt.waiting.take().into_iter().for_each(Waker::wake);
        }
        made.map(|sender| (sender, number))
    }

    /// Returns the open connection. `None` if the caller is to open it. `awaited` is the attempt
    /// that the caller waits for.
    fn poll_open(
        &self,
        peer: usize,
        awaited: &mut Option<Rc<Attempt>>,
        waker: &Waker,
    ) -> Poll<Result<Option<(C, u64)>, RequestFailure>> {
        if let Some(failure) = awaited.as_ref().and_then(|attempt| attempt.failure.get()) {
            return Poll::Ready(Err(failure));
        }
        match self.slots.borrow_mut().get_mut(peer) {
            Some(PoolSlot::Open(sender, number)) => {
                Poll::Ready(Ok(Some((sender.clone(), *number))))
            }
            Some(PoolSlot::Opening(attempt)) => {
                attempt.waiting.borrow_mut().push(waker.clone());
                *awaited = Some(Rc::clone(attempt));
                Poll::Pending
            }
            Some(slot @ PoolSlot::Empty) => {
                *slot = PoolSlot::Opening(Rc::default());
                Poll::Ready(Ok(None))
            }
            None => Poll::Ready(Ok(None)),
        }
    }

    /// Sends no more requests on this connection. It closes when its last request ends.
    pub(super) fn retire(&self, peer: usize, number: u64) {
        if let Some(slot) = self.slots.borrow_mut().get_mut(peer)
            && matches!(slot, PoolSlot::Open(_, open) if *open == number)
        {
            *slot = PoolSlot::Empty;
        }
    }

    /// Draws whether the connection closes after a request.
    pub(super) fn closes(&self, state: &ThreadState) -> bool {
        let mut random = self.random.get();
        let closes = state.plan.closing.draw(&mut random);
        self.random.set(random);
        closes
    }
}
