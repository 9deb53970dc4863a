//! The sessions of a loop, as it counts them.

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
    /// None so far; the loop's counters count them as well.
    pub fn new(metrics: &Rc<Tally>) -> Rc<OpenSessions> {
        let (connections, inflight) = (Cell::new(0), Cell::new(0));
        Rc::new(OpenSessions { metrics: metrics.clone(), connections, inflight })
    }

    /// How many there are.
    pub fn connections(&self) -> usize {
        self.connections.get()
    }

    /// How many have not come to where they lead.
    pub fn inflight(&self) -> usize {
        self.inflight.get()
    }

    /// A session that was accepted, and is on its way.
    pub fn begin(self: &Rc<Self>) -> Presence {
        self.metrics.add(Metric::Active, 1);
        self.connections.set(self.connections.get() + 1);
        self.inflight.set(self.inflight.get() + 1);
        Presence { all: self.clone(), busy: Cell::new(true) }
    }
}

/// One session as its loop counts it. What is counted is undone when the value is dropped.
#[derive(Debug)]
pub struct Presence {
    all: Rc<OpenSessions>,
    busy: Cell<bool>,
}

impl Presence {
    /// It has come to where it leads: from now on it costs what its bytes cost.
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
