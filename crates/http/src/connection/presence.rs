//! A client's connection as its loop counts it, from accept to close.
//!
//! What is counted is undone when the value is dropped, so that a task that panics or is dropped leaves no load
//! behind: the accept policy would shun the loop for ever, and a worker that is to finish would never end.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

use weir_metrics::Metric;

use crate::carrier::Resting;
use crate::event_loop::{Gone, LoopState};

/// One open connection of this thread's worker. It goes with the connection: from the task to the parked value and
/// back, and to another loop that takes the connection over.
pub struct Presence {
    counted: Cell<As>,
    /// The loop that counts it.
    home: Arc<Gone>,
}

/// A tunnel of another loop that goes on in this one. Its connection stays counted where its request is; this loop counts it as
/// well, since it has the sockets, and is not to end before them.
pub struct Guest;

impl Guest {
    /// One has come to this thread's loop.
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

/// What a connection counts as, besides as open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum As {
    /// In process: it has a request, or its first is not answered yet.
    Busy,
    /// Nothing: what it does is counted by its streams, or it is between two requests.
    Quiet,
    /// One that waits for its next request.
    Waiting,
    /// In process, and waiting for its first bytes.
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
    /// A connection that was accepted, and is busy until its first request is answered.
    pub fn begin(event_loop: &LoopState) -> Presence {
        event_loop.open();
        let home = Arc::clone(&event_loop.common.gone);
        let presence = Presence { counted: Cell::new(As::Quiet), home };
        presence.turn(As::Busy, event_loop);
        presence
    }

    /// Its connection goes on in this loop, which may be another one than before.
    pub fn arrive(&mut self, conn: &mut Resting, event_loop: &LoopState) {
        if let Some(before) = self.come_home(event_loop) {
            conn.comes_from(before.lines());
        }
    }

    /// This loop counts it from now on; the one that did before, if that is another.
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

    /// It has something to do.
    pub fn busy(&self, event_loop: &LoopState) {
        self.turn(As::Busy, event_loop);
    }

    /// It has nothing to do.
    pub fn quiet(&self, event_loop: &LoopState) {
        self.turn(As::Quiet, event_loop);
    }

    /// It waits for its client, busy as before or not.
    pub fn wait(&self, event_loop: &LoopState) {
        let waiting = if self.counted.get().is_busy() { As::Expected } else { As::Waiting };
        self.turn(waiting, event_loop);
    }

    /// Its client has said something, or is not waited for any more.
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
        // At the end of its thread it is not counted any more.
        if let Some(event_loop) = LoopState::current() {
            self.come_home(&event_loop);
            self.turn(As::Quiet, &event_loop);
            event_loop.closed();
        }
    }
}
