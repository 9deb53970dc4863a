//! What a request holds of a cache while it is served.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use weir_cache::{Cache, CacheEntry, CacheKey, Fill, MissingRest, Ticket};

use super::kept::Kept;
use crate::upstream::counts::CacheCell;

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
    pub(super) status: Cell<Status>,
    /// The server's answer may be kept.
    pub(super) cacheable: Cell<bool>,
    /// The main key's text.
    pub(super) text: Vec<u8>,
    /// What the server is asked about, whether it still stands.
    pub(super) old: RefCell<Option<Arc<CacheEntry>>>,
    /// Where it is counted in the end: nowhere, if it is no request of a client.
    pub(super) counted: Option<(CacheCell, Arc<Cache>)>,
}

impl Shown {
    pub(super) fn new(
        text: Vec<u8>,
        status: Status,
        counted: Option<(CacheCell, Arc<Cache>)>,
    ) -> Rc<Shown> {
        let (status, cacheable) = (Cell::new(status), Cell::new(true));
        Rc::new(Shown { status, cacheable, text, old: RefCell::default(), counted })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some((cell, cache)) = &self.counted {
            cell.asked(self.status.get() as usize);
            cell.evicted(cache);
        }
    }
}

/// The place of one answer in a cache. It goes with the answer, from the look at what is there to the end of the
/// body, and gives back what it holds wherever that ends.
#[derive(Debug)]
pub struct State {
    pub(super) cache: Arc<Cache>,
    /// What the answer is stored under: the main key, or that of a variant.
    pub(super) key: CacheKey,
    pub(super) main: CacheKey,
    pub(super) shown: Rc<Shown>,
    /// The right to update the key.
    pub(super) ticket: Option<Ticket>,
    /// Where others wait for the answer.
    pub(super) fill: Option<Arc<Fill>>,
    /// What is there, too old.
    pub(super) old: Option<Kept>,
    /// What is asked for often may be in memory.
    pub(super) memory: bool,
    /// The server is asked whether what is too old still stands.
    pub(super) revalidate: bool,
    /// It may be used although it cannot be updated.
    pub(super) stale_error: bool,
    /// It updates the key for another request, which has its answer already.
    pub(super) background: bool,
    /// The client has the beginning of an answer, and the server is asked for this.
    pub(super) rest: Option<Box<MissingRest>>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl State {
    pub(super) fn new(
        cache: Arc<Cache>,
        shown: Rc<Shown>,
        memory: bool,
        revalidate: bool,
    ) -> State {
        let key = CacheKey::of(&shown.text);
        State {
            cache,
            key,
            main: key,
            shown,
            ticket: None,
            fill: None,
            old: None,
            memory,
            revalidate,
            stale_error: false,
            background: false,
            rest: None,
        }
    }

    /// The same place, for a request that updates what is there; it has the right to do so from now on.
    pub(super) fn hand_over(&mut self) -> State {
        State {
            cache: self.cache.clone(),
            key: self.key,
            main: self.main,
            shown: Shown::new(self.shown.text.clone(), Status::Miss, None),
            ticket: self.ticket.take(),
            fill: None,
            old: None,
            memory: self.memory,
            revalidate: self.revalidate,
            stale_error: false,
            background: true,
            rest: None,
        }
    }

    /// Tells requests that wait for this answer to fetch it themselves.
    fn withdraw(&mut self) {
        if let Some(fill) = self.fill.take() {
            self.cache.end(&self.key, &fill);
            fill.withdraw();
        }
    }

    pub(super) fn give_back(&mut self) {
        self.withdraw();
        if let Some(ticket) = self.ticket.take() {
            self.cache.index.release(ticket);
        }
    }

    pub(super) fn give_up(&mut self) {
        self.shown.cacheable.set(false);
        self.give_back();
    }

    /// The client has the beginning of an answer.
    pub fn has_begun(&self) -> bool {
        self.rest.is_some()
    }

    /// All of the answer is in the fill.
    pub fn came(&self, fill: &Arc<Fill>) {
        self.cache.came(self.key, fill);
    }
}
