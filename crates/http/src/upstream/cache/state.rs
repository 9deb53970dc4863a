//! What a request holds of a cache while it is served.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use weir_cache::{Asked, Cache, CacheKey, Fill, MissingRest, Ticket};

use super::kept::Kept;
use crate::request::cache_reason::{Life, Lookup};
use crate::request::cached::{Shown, Status};
use crate::request::contexts::ContextKey;

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
    /// What is too old may be sent only if a server says that it stands.
    pub(super) never_old: bool,
    /// It updates the key for another request, which has its answer already.
    pub(super) background: bool,
    /// The client has the beginning of an answer, and the server is asked for this.
    pub(super) rest: Option<Box<MissingRest>>,
    /// When the server was asked, as the index counts.
    pub(super) since: u32,
}

/// The request is there to update this, and nothing else: its first location takes it.
pub static UPDATE: ContextKey<Box<State>> =
    ContextKey { survives_redirect: true, ..ContextKey::passing() };

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
            never_old: false,
            background: false,
            rest: None,
            since: 0,
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
            never_old: false,
            background: true,
            rest: None,
            since: 0,
        }
    }

    /// Notes what is there, and why it is sent or not.
    pub(super) fn found(&self, lookup: Lookup, life: Option<Life>) {
        self.shown.because(|reason| (reason.lookup, reason.life) = (lookup, life));
    }

    /// What is asked for, to begin a fill.
    pub(super) fn asked(&self) -> Asked {
        Asked { key: self.main, since: self.since }
    }

    /// A server is to be asked now. A fill that others wait for knows since when already.
    pub(super) fn ask(mut self) -> Option<Box<State>> {
        if self.fill.is_none() {
            self.since = self.cache.index.last();
        }
        Some(Box::new(self))
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
    pub fn came(&self, fill: &Arc<Fill>, now: Instant) {
        self.cache.came(self.key, fill, self.cache.index.msec(now));
    }
}
