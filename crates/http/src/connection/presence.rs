//! Counts the connections of a loop, from accept to close.
//!
//! Dropping the value undoes what it counts. A task that panics or is dropped would leave load behind otherwise: the accept
//! policy would avoid the loop for ever, and a retiring worker would never end.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

use weir_metrics::Metric;

use crate::carrier::Resting;
use crate::event_loop::{Gone, LoopState};

/// An open connection in the loop's counters. It moves with the connection: from the task to the parked value and back, and
/// to another loop.
pub struct Presence {
    counted: Cell<As>,
    /// The loop that counts it.
    home: Arc<Gone>,
}

/// A tunnel of another loop's request that runs in this loop. The other loop still counts its connection. This loop counts it
/// as well, since it has the sockets and must not end before them.
pub struct Guest;

impl Guest {
    /// Counts a tunnel that has moved to this thread's loop.
    pub fn arrive() -> Box<dyn Any> {
        match LoopState::current() {
            Some(event_loop) => {
                event_loop.arrived(true);
                Box::new(Guest)
            }
            None => Box::new(()),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(event_loop) = LoopState::current() {
            event_loop.idle();
            event_loop.left();
        }
    }
}

/// The state that a connection is counted in, besides as open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum As {
    /// In progress: it has a request, or its first one is not answered yet.
    Busy,
    /// None: its streams are counted, or it is between two requests.
    Quiet,
    /// It waits for its next request.
    Waiting,
    /// In progress, and waiting for its first bytes.
    Expected,
}

impl As {
    fn is_busy(self) -> bool {
        matches!(self, As::Busy | As::Expected)
    }

    fn waits(self) -> bool {
        matches!(self, As::Waiting | As::Expected)
    }
}

impl Presence {
    /// Counts an accepted connection, as busy until its first request is answered.
    pub fn begin(event_loop: &LoopState) -> Presence {
        event_loop.open();
        let home = Arc::clone(&event_loop.common.gone);
        let presence = Presence { counted: Cell::new(As::Quiet), home };
        presence.turn(As::Busy, event_loop);
        presence
    }

    /// Counts the connection in this loop, which may be another one than before.
    pub fn arrive(&mut self, conn: &mut Resting, event_loop: &LoopState) {
        if let Some(before) = self.come_home(event_loop) {
            conn.comes_from(before.lines());
        }
    }

    /// Moves the count to this loop. Returns the previous loop, if it is another one.
    fn come_home(&mut self, event_loop: &LoopState) -> Option<Arc<Gone>> {
        if Arc::ptr_eq(&self.home, &event_loop.common.gone) {
            return None;
        }
        let busy = self.counted.get().is_busy();
        event_loop.arrived(busy);
        let before = std::mem::replace(&mut self.home, Arc::clone(&event_loop.common.gone));
        before.add(busy);
        Some(before)
    }

    /// Counts it as busy.
    pub fn busy(&self, event_loop: &LoopState) {
        self.turn(As::Busy, event_loop);
    }

    /// Counts it as quiet.
    pub fn quiet(&self, event_loop: &LoopState) {
        self.turn(As::Quiet, event_loop);
    }

    /// Counts it as waiting for its client, whether it is busy or quiet.
    pub fn wait(&self, event_loop: &LoopState) {
        let waiting = if self.counted.get().is_busy() { As::Expected } else { As::Waiting };
        self.turn(waiting, event_loop);
    }

    /// Ends the waiting state.
    pub fn wake(&self, event_loop: &LoopState) {
        let awake = if self.counted.get().is_busy() { As::Busy } else { As::Quiet };
        self.turn(awake, event_loop);
    }

    fn turn(&self, next: As, event_loop: &LoopState) {
        let before = self.counted.replace(next);
        match (before.is_busy(), next.is_busy()) {
            (false, true) => event_loop.busy(),
            (true, false) => event_loop.idle(),
            _ => {}
        }
        match (before.waits(), next.waits()) {
            (false, true) => event_loop.metrics.add(Metric::Waiting, 1),
            (true, false) => event_loop.metrics.sub(Metric::Waiting, 1),
            _ => {}
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        // At the end of the thread there are no counters any more.
        if let Some(event_loop) = LoopState::current() {
            self.come_home(&event_loop);
            self.turn(As::Quiet, &event_loop);
            event_loop.closed();
        }
    }
}
