//! The cells that requests and caches are counted in.

use std::rc::Rc;

use weir_cache::Cache;
use weir_metrics::subjects::{Cell, Cells, HeldName, SubjectKind};
use weir_metrics::{CACHE_STATES, CLASSES};

/// Numbers of cells: first one for each class of statuses, then bytes that were received.
pub const RECEIVED: usize = CLASSES.len();
/// Bytes that were sent.
pub const SENT: usize = RECEIVED + 1;
/// Caches have one for each of their states, then answers that were removed.
pub const EVICTED: usize = CACHE_STATES.len();
/// Answers that were stored.
pub const STORED: usize = EVICTED + 1;
/// Requests that waited for an answer that was fetched for another one.
pub const WAITED: usize = STORED + 1;

/// The cells of a loop for a site.
pub struct Counts {
    /// Of each `status_zone` of the site, by its number.
    pub zones: Vec<Option<Cell>>,
    /// What they are known by, as long as the loop serves the site.
    held: Vec<HeldName>,
    all: Rc<Cells>,
    /// The loop serves another site: names that are not in it are given back.
    pub is_replaced: std::cell::Cell<bool>,
}

impl Counts {
    /// For zones of these names.
    pub fn new(zones: &[String], all: &Rc<Cells>) -> Counts {
        let (mut cells, mut held) = (Vec::with_capacity(zones.len()), Vec::new());
        for name in zones {
            let found = (!name.is_empty()).then(|| all.hold(SubjectKind::Zone, name)).flatten();
            cells.push(found.as_ref().map(|(cell, _)| *cell));
            held.extend(found.map(|(_, name)| name));
        }
        Counts { zones: cells, held, all: Rc::clone(all), is_replaced: false.into() }
    }

    /// All cells of the loop, whatever it serves.
    pub fn all(&self) -> &Rc<Cells> {
        &self.all
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        // What a loop has counted stays when the loop ends.
        if self.is_replaced.get() {
            self.held.drain(..).for_each(|name| self.all.release(name));
        }
    }
}

/// What a request is in progress under, until it is dropped: the zone of its server, and of its location.
#[derive(Debug, Default)]
pub struct Processing {
    /// Their numbers.
    pub zones: [Option<usize>; 2],
    /// Their cells.
    pub cells: [Option<Cell>; 2],
}

impl Drop for Processing {
    fn drop(&mut self) {
        self.cells.iter().flatten().for_each(|cell| cell.sub(1));
    }
}

/// A client without an answer has left: 4xx.
pub fn class(status: u16) -> usize {
    match status / 100 {
        class @ 1..=5 => usize::from(class) - 1,
        0 => 3,
        _ => 4,
    }
}

/// Where a cache's requests are counted.
#[derive(Debug, Clone, Copy)]
pub struct CacheCell(pub Cell);

impl CacheCell {
    /// A request had this from it; its number among [`CACHE_STATES`].
    pub fn asked(&self, state: usize) {
        self.0.add(state.min(EVICTED - 1), 1);
    }

    /// An answer was stored.
    pub fn stored(&self) {
        self.0.add(STORED, 1);
    }

    /// A request waited for an answer that was fetched for another one.
    pub fn waited(&self) {
        self.0.add(WAITED, 1);
    }

    /// What this process has removed since it was asked.
    pub fn evicted(&self, cache: &Cache) {
        match cache.take_evicted() {
            0 => {}
            n => self.0.add(EVICTED, n),
        }
    }
}
