//! What is to be seen of a request's part in a cache.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use weir_cache::{Cache, CacheEntry};

use super::cache_reason::Reason;
use crate::counts::cells::CacheCell;

/// What a request had from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Nothing.
    Miss,
    /// It was not to be asked.
    Bypass,
    /// Something too old, which is updated.
    Expired,
    /// Something too old, since there is nothing better.
    Stale,
    /// Something too old, while another request updates it.
    Updating,
    /// Something too old that is as good as new.
    Revalidated,
    /// An answer.
    Hit,
}

impl Status {
    /// As `$upstream_cache_status` shows it.
    pub fn name(self) -> &'static str {
        match self {
            Status::Miss => "MISS",
            Status::Bypass => "BYPASS",
            Status::Expired => "EXPIRED",
            Status::Stale => "STALE",
            Status::Updating => "UPDATING",
            Status::Revalidated => "REVALIDATED",
            Status::Hit => "HIT",
        }
    }
}

/// What is to be seen of what a request has to do with a cache, as long as the request is there.
#[derive(Debug)]
pub struct Shown {
    /// What it had from the cache.
    pub status: Cell<Status>,
    /// Why.
    pub reason: Cell<Reason>,
    /// The server's answer may be kept.
    pub cacheable: Cell<bool>,
    /// The main key's text.
    pub text: Vec<u8>,
    /// What the server is asked about, whether it still stands.
    pub old: RefCell<Option<Arc<CacheEntry>>>,
    /// It has waited for an answer that was fetched for another request.
    pub waited: Cell<bool>,
    /// Where it is counted in the end: nowhere, if it is no request of a client.
    counted: Option<(CacheCell, Arc<Cache>)>,
}

impl Shown {
    /// Of a request that begins to have to do with a cache.
    pub fn new(
        text: Vec<u8>,
        status: Status,
        counted: Option<(CacheCell, Arc<Cache>)>,
    ) -> Rc<Shown> {
        let (status, cacheable) = (Cell::new(status), Cell::new(true));
        let (old, waited, reason) = (RefCell::default(), Cell::new(false), Cell::default());
        Rc::new(Shown { status, reason, cacheable, text, old, waited, counted })
    }

    /// Notes something of the reason.
    pub fn because(&self, note: impl FnOnce(&mut Reason)) {
        let mut reason = self.reason.get();
        note(&mut reason);
        self.reason.set(reason);
    }

    /// Where its cache is counted.
    pub fn cell(&self) -> Option<CacheCell> {
        self.counted.as_ref().map(|(cell, _)| *cell)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some((cell, cache)) = &self.counted {
            cell.asked(self.status.get() as usize);
            cell.evicted(cache);
            if self.waited.get() {
                cell.waited();
            }
        }
    }
}
