//! The cells with the counts of requests and caches.

use std::rc::Rc;

use weir_cache::Cache;
use weir_metrics::subjects::{Cell, Cells, HeldName, SubjectKind};
use weir_metrics::{CACHE_STATES, CLASSES};

/// The indexes of a cell's numbers: one for each class of statuses, then received bytes.
pub const RECEIVED: usize = CLASSES.len();
/// Sent bytes.
pub const SENT: usize = RECEIVED + 1;
/// The numbers of a cache: one for each state, then removed responses.
pub const EVICTED: usize = CACHE_STATES.len();
/// Stored responses.
pub const STORED: usize = EVICTED + 1;
/// Requests that waited for a response that another request fetched.
pub const WAITED: usize = STORED + 1;

/// The cells of a loop for a site.
pub struct Counts {
    /// The cells of the site's `status_zone`s, by number.
    pub zones: Vec<Option<Cell>>,
    /// The names of the cells. They are held as long as the loop serves the site.
    held: Vec<HeldName>,
    all: Rc<Cells>,
    /// Whether another site has taken over. Then the names are released.
    pub is_replaced: std::cell::Cell<bool>,
}

impl Counts {
    /// The cells of these zones.
    pub fn new(zones: &[String], all: &Rc<Cells>) -> Counts {
        let (mut cells, mut held) = (Vec::with_capacity(zones.len()), Vec::new());
        for name in zones {
            let found = (!name.is_empty()).then(|| all.hold(SubjectKind::Zone, name)).flatten();
            cells.push(found.as_ref().map(|(cell, _)| *cell));
            held.extend(found.map(|(_, name)| name));
        }
        Counts { zones: cells, held, all: Rc::clone(all), is_replaced: false.into() }
    }

    /// All cells of the loop, for any site.
    pub fn all(&self) -> &Rc<Cells> {
        &self.all
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        // When the loop ends, its counts stay.
        if self.is_replaced.get() {
            self.held.drain(..).for_each(|name| self.all.release(name));
        }
    }
}

/// The zones of the server and location of a running request. Dropped at its end.
#[derive(Debug, Default)]
pub struct Processing {
    /// The numbers of the zones.
    pub zones: [Option<usize>; 2],
    /// Their cells.
    pub cells: [Option<Cell>; 2],
}

impl Drop for Processing {
    fn drop(&mut self) {
        self.cells.iter().flatten().for_each(|cell| cell.sub(1));
    }
}

/// The class of a status. A request without a status counts as 4xx, since the client has
/// disconnected.
pub fn class(status: u16) -> usize {
    match status / 100 {
        class @ 1..=5 => usize::from(class) - 1,
        0 => 3,
        _ => 4,
    }
}

/// The cell of a cache.
#[derive(Debug, Clone, Copy)]
pub struct CacheCell(pub Cell);

impl CacheCell {
    /// Counts a request by the cache's state, an index of [`CACHE_STATES`].
    pub fn asked(&self, state: usize) {
        self.0.add(state.min(EVICTED - 1), 1);
    }

    /// Counts a stored response.
    pub fn stored(&self) {
        self.0.add(STORED, 1);
    }

    /// Counts a request that waited for a response that another request fetched.
    pub fn waited(&self) {
        self.0.add(WAITED, 1);
    }

    /// Counts the responses that this process has removed since the last call.
    pub fn evicted(&self, cache: &Cache) {
        match cache.take_evicted() {
            0 => {}
            n => self.0.add(EVICTED, n),
        }
    }
}
