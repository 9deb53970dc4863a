//! The cells that requests and caches are counted in.

use weir_cache::Cache;
use weir_metrics::subjects::{Cell, Cells, SubjectKind};
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

/// The cells of a loop.
pub struct Counts {
    /// Of each `status_zone` of the site.
    pub zones: Vec<Option<Cell>>,
}

impl Counts {
    /// For the loop of this row, and the zones of these names.
    pub fn new(zones: &[String], cells: &Cells) -> Counts {
        let zones = zones.iter().map(|name| cells.of(SubjectKind::Zone, name));
        Counts { zones: zones.collect() }
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
