//! Counters of upstream servers, queues and caches. For a request without them, nothing is looked
//! up and no clock is read.

use std::rc::Rc;
use std::sync::Arc;

use weir_engine::Handle;
use weir_metrics::subjects::{Cell, Cells, GAUGE, SubjectKind};
use weir_upstream::counts::{self, CountedPeer, Counts as Peers, FailureReason};
use weir_upstream::{Ended, Failure, Group, Peer};

use crate::counts::cells::{CacheCell, RECEIVED, SENT, class};
use crate::event_loop::{LoopKey, LoopPart, LoopStart};
use crate::request::passed::Attempt;
use crate::site::Site;

/// Indices into the counters of a server. The first ones are those of zones. Then: failed attempts.
pub const FAILS: usize = SENT + 1;
/// Attempts after which another server was asked.
pub const RETRIES: usize = FAILS + 1;
/// Connections that were opened.
pub const OPENED: usize = RETRIES + 1;
/// Attempts on kept connections.
pub const REUSED: usize = OPENED + 1;
/// Failed attempts without a connection.
pub const CONNECT_FAILS: usize = REUSED + 1;
/// Failed attempts that took too long.
pub const TIMEOUTS: usize = CONNECT_FAILS + 1;

/// Indices into the counters of a queue: requests that waited, that found it full, and that timed
/// out.
pub const ENTERED: usize = 0;
pub const REFUSED: usize = 1;
pub const LATE: usize = 2;

/// The counters of a loop.
pub struct Counts {
    /// Those of each cache of the site.
    caches: Vec<Option<Cell>>,
    /// Those of upstream servers, for all sites of the loop.
    peers: Rc<Peers>,
    cells: Rc<Cells>,
}

/// The loop's counters.
pub static COUNTS: LoopKey<Counts> = LoopKey::new(Counts::new);

impl LoopPart for Counts {}

impl Counts {
    fn new(start: &LoopStart<'_>) -> Counts {
        let cells = start.cells;
        let of = |cache: &Arc<weir_cache::Cache>| cells.of(SubjectKind::Cache, cache.name());
        let caches = start.site.caches.iter().map(of).collect();
        let before = start.before.map(|before| COUNTS.of(before).peers.clone());
        let new = || Rc::new(Peers::new(Rc::clone(cells), SubjectKind::Peer));
        let peers = before.unwrap_or_else(new);
        Counts { caches, peers, cells: Rc::clone(cells) }
    }

    /// The counters of a cache.
    pub fn cache(&self, site: &Site, cache: &Arc<weir_cache::Cache>) -> Option<CacheCell> {
        let at = site.caches.iter().position(|known| Arc::ptr_eq(known, cache))?;
        self.caches.get(at).copied().flatten().map(CacheCell)
    }

    /// The counters of a group's queue.
    pub fn queue(&self, group: &Group) -> Option<Cell> {
        self.cells.of(SubjectKind::Queue, &group.name)
    }

    /// Counts a request that is passed to a server.
    pub fn passed(&self, group: &Group, peer: &Arc<Peer>) -> Option<Asked> {
        self.peers.of(group, peer).map(|counted| {
            counted.cell().add(GAUGE, 1);
            Asked(counted)
        })
    }
}

/// Counts a request as active at a server, until it is dropped.
#[derive(Debug)]
pub struct Asked(CountedPeer);

impl Asked {
    /// Counts its connection: a kept one or a new one.
    pub fn over(&self, reused: bool) {
        self.0.cell().add(if reused { REUSED } else { OPENED }, 1);
    }

    /// Counts the end of the attempt.
    pub fn ended(&self, attempt: &Attempt, how: Ended, failure: Option<Failure>, handle: &Handle) {
        let now = handle.now();
        counts::note(self.0.cell(), how, handle.wall(), || {
            let failure = failure.unwrap_or(Failure::Error);
            FailureReason::new(failure, attempt.errno.get(), attempt.connect.is_some())
        });
        if matches!(how, Ended::Failed) {
            self.0.cell().add(FAILS, 1);
            self.0.cell().add(CONNECT_FAILS, attempt.connect.is_none().into());
            self.0.cell().add(TIMEOUTS, matches!(failure, Some(Failure::Timeout)).into());
        }
        self.0.cell().add(RECEIVED, attempt.received);
        self.0.cell().add(SENT, attempt.sent);
        if attempt.status > 0 {
            self.0.cell().add(class(attempt.status), 1);
            self.0.cell().record(now.saturating_duration_since(attempt.started));
        }
    }

    /// Counts that another server is asked.
    pub fn again(&self) {
        self.0.cell().add(RETRIES, 1);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.cell().sub(1);
    }
}
