//! Counts the open sessions of a loop.

use std::cell::Cell;
use std::rc::Rc;

use weir_metrics::{Metric, Tally};

/// The sessions of one loop.
#[derive(Debug)]
pub struct OpenSessions {
    metrics: Rc<Tally>,
    connections: Cell<usize>,
    inflight: Cell<usize>,
}

impl OpenSessions {
    /// No sessions yet. They are also counted in the loop's metrics.
    pub fn new(metrics: &Rc<Tally>) -> Rc<OpenSessions> {
        let (connections, inflight) = (Cell::new(0), Cell::new(0));
        Rc::new(OpenSessions { metrics: metrics.clone(), connections, inflight })
    }

    /// The number of open sessions.
    pub fn connections(&self) -> usize {
        self.connections.get()
    }

    /// The number of sessions that have not reached their destination.
    pub fn inflight(&self) -> usize {
        self.inflight.get()
    }

    /// Counts a session that was accepted.
    pub fn begin(self: &Rc<Self>) -> Presence {
        self.metrics.add(Metric::Active, 1);
        self.connections.set(self.connections.get() + 1);
        self.inflight.set(self.inflight.get() + 1);
        Presence { all: self.clone(), busy: Cell::new(true) }
    }
}

/// A session that is counted. Dropping it reduces the counts.
#[derive(Debug)]
pub struct Presence {
    all: Rc<OpenSessions>,
    busy: Cell<bool>,
}

impl Presence {
    /// The session has reached its destination, so it is no longer in flight.
    pub fn quiet(&self) {
        if self.busy.replace(false) {
            self.all.inflight.set(self.all.inflight.get().saturating_sub(1));
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.quiet();
        self.all.metrics.sub(Metric::Active, 1);
        self.all.connections.set(self.all.connections.get().saturating_sub(1));
    }
}
