//! The facts of a request's cache lookup, for variables, logs and counters.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use weir_cache::{Cache, CacheEntry};

use super::cache_reason::Reason;
use crate::counts::cells::CacheCell;

/// The result of a lookup: `$upstream_cache_status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// No answer is stored.
    Miss,
    /// The lookup was bypassed.
    Bypass,
    /// The stored answer is stale. A server is asked.
    Expired,
    /// A stale answer is sent, since no server gives a better one.
    Stale,
    /// A stale answer is sent, while another request updates it.
    Updating,
    /// A server has said that the stale answer is still valid.
    Revalidated,
    /// A fresh answer is sent.
    Hit,
}

impl Status {
    /// The value of `$upstream_cache_status`.
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

/// A request's facts about its cache.
#[derive(Debug)]
pub struct Shown {
    /// The result of the lookup.
    pub status: Cell<Status>,
    /// The reason of the result.
    pub reason: Cell<Reason>,
    /// The server's answer may be kept.
    pub cacheable: Cell<bool>,
    /// The main key's text.
    pub text: Vec<u8>,
    /// The stored entry that the server is asked to revalidate.
    pub old: RefCell<Option<Arc<CacheEntry>>>,
    /// It has waited for an answer that was fetched for another request.
    pub waited: Cell<bool>,
    /// The counters for it. None unless it is a client's own request.
    counted: Option<(CacheCell, Arc<Cache>)>,
}

impl Shown {
    /// The facts of a request before its lookup.
    pub fn new(
        text: Vec<u8>,
        status: Status,
        counted: Option<(CacheCell, Arc<Cache>)>,
    ) -> Rc<Shown> {
        let (status, cacheable) = (Cell::new(status), Cell::new(true));
        let (old, waited, reason) = (RefCell::default(), Cell::new(false), Cell::default());
        Rc::new(Shown { status, reason, cacheable, text, old, waited, counted })
    }

    /// Changes the reason.
    pub fn because(&self, note: impl FnOnce(&mut Reason)) {
        let mut reason = self.reason.get();
        note(&mut reason);
        self.reason.set(reason);
    }

    /// The counters of its cache.
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
