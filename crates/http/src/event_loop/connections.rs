//! The connections of a loop: how many there are, their scratch buffers, and the memory that the
//! loop returns after a rush of them.

use std::cell::Cell;
use std::rc::Rc;

use weir_engine::operation;
use weir_metrics::Metric;

use super::{LoopState, rush};
use crate::request::Scratch;

/// The most idle scratch buffers that are kept for new connections.
const SCRATCHES: usize = 64;

impl LoopState {
    /// The number of clients of a listening socket that sent bytes soon after the accept.
    pub fn spoke_soon(&self, listen: usize) -> u64 {
        self.common.spoke_soon.get(listen).map_or(0, Cell::get)
    }

    /// Counts such a client.
    pub(crate) fn note_spoke_soon(&self, listen: usize) {
        if let Some(count) = self.common.spoke_soon.get(listen) {
            count.set(count.get() + 1);
        }
    }

    /// Open client connections.
    pub fn connections(&self) -> usize {
        self.common.connections.get().saturating_sub(self.common.gone.open())
    }

    /// Requests being processed, and connections without an answer to their first request yet.
    pub fn inflight(&self) -> usize {
        self.common.inflight.get().saturating_sub(self.common.gone.busy())
    }

    pub(crate) fn next_connection(&self) -> u64 {
        weir_values::next_connection()
    }

    /// Counts a new connection: see [`Presence`](crate::connection::presence::Presence).
    pub(crate) fn open(&self) {
        self.metrics.add(Metric::Active, 1);
        self.arrived(false);
    }

    /// Counts a connection that has moved here from another loop of the worker.
    pub(crate) fn arrived(&self, busy: bool) {
        self.common.connections.set(self.common.connections.get() + 1);
        self.common.rush.grew(self.connections());
        if busy {
            self.busy();
        }
    }

    /// Counts a closed connection.
    pub(crate) fn closed(&self) {
        self.metrics.sub(Metric::Active, 1);
        self.left();
    }

    /// Counts a connection that has moved to another loop of the worker.
    pub(crate) fn left(&self) {
        self.common.connections.set(self.common.connections.get().saturating_sub(1));
        if self.common.rush.shrank(self.connections()) {
            self.handle.spawn(calm_down(|l| l.common.rush.is_calm(l.connections())));
        }
    }

    pub(crate) fn busy(&self) {
        self.common.inflight.set(self.common.inflight.get() + 1);
    }

    pub(crate) fn idle(&self) {
        self.common.inflight.set(self.common.inflight.get().saturating_sub(1));
    }

    /// A permit for a connection to keep its task between two requests. `None` if there are `most`.
    pub(crate) fn pausing(self: &Rc<Self>, most: usize) -> Option<Pausing> {
        let n = self.common.pausing.get();
        (n < most).then(|| {
            self.common.pausing.set(n + 1);
            self.common.rush_of_pauses.grew(n + 1);
            Pausing(self.clone())
        })
    }

    pub(crate) fn take_scratch(&self) -> Scratch {
        self.common.scratches.borrow_mut().pop().unwrap_or_default()
    }

    /// Renews scratch buffers and keeps them for the next connection. They are kept in no other
    /// way.
    pub(crate) fn give_scratch(&self, mut scratch: Scratch) {
        scratch.renew();
        let mut kept = self.common.scratches.borrow_mut();
        if kept.len() < SCRATCHES {
            kept.push(scratch);
        }
    }
}

/// Returns memory to the system after a rush, unless the next rush has begun.
async fn calm_down(is_calm: impl FnOnce(&LoopState) -> bool) {
    let Some(event_loop) = LoopState::current() else { return };
    event_loop.handle.sleep(rush::CALM).await;
    // Returning hundreds of megabytes takes milliseconds, so ready tasks go first.
    event_loop.handle.heavy().await;
    if is_calm(&event_loop) {
        operation("giving memory back", || {
            event_loop.common.scratches.take();
            event_loop.handle.free_spare();
            weir_sys::allocator::give_back();
        });
    }
}

/// A permit that is returned when it is dropped.
pub(crate) struct Pausing(Rc<LoopState>);

impl Drop for Pausing {
    fn drop(&mut self) {
        let event_loop = &self.0;
        let left = event_loop.common.pausing.get().saturating_sub(1);
        event_loop.common.pausing.set(left);
        if event_loop.common.rush_of_pauses.shrank(left) {
            event_loop
                .handle
                .spawn(calm_down(|l| l.common.rush_of_pauses.is_calm(l.common.pausing.get())));
        }
    }
}
