//! The cache state of a request.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use weir_cache::{Asked, Cache, CacheKey, Fill, MissingRest, Ticket};

use super::kept::Kept;
use crate::request::cache_reason::{Life, Lookup};
use crate::request::cached::{Shown, Status};
use crate::request::contexts::ContextKey;

/// A request's state in a cache. It moves with the request, from the lookup to the end of the body.
/// It releases what it holds when it is dropped.
#[derive(Debug)]
pub struct State {
    pub(super) cache: Arc<Cache>,
    /// The key of the answer: the main key, or that of a variant.
    pub(super) key: CacheKey,
    pub(super) main: CacheKey,
    pub(super) shown: Rc<Shown>,
    /// The cache lock.
    pub(super) ticket: Option<Ticket>,
    /// The fill on which other requests wait.
    pub(super) fill: Option<Arc<Fill>>,
    /// The stale answer.
    pub(super) old: Option<Kept>,
    /// Popular answers are kept in memory (`..._cache_memory`).
    pub(super) memory: bool,
    /// The stale answer is revalidated.
    pub(super) revalidate: bool,
    /// `stale-if-error` allows to send the stale answer.
    pub(super) stale_error: bool,
    /// The stale answer may be sent only after revalidation (`must-revalidate` and kin).
    pub(super) never_stale: bool,
    /// This is a background update: the other request has its answer already.
    pub(super) background: bool,
    /// The part that the client lacks, if the server is asked again for it.
    pub(super) rest: Option<Box<MissingRest>>,
    /// [`Index::last`](weir_cache::Index::last) when the server was asked.
    pub(super) since: u32,
}

/// The state of a background update. The request's first location takes it.
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
            never_stale: false,
            background: false,
            rest: None,
            since: 0,
        }
    }

    /// The state for a background update, which gets the cache lock.
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
            never_stale: false,
            background: true,
            rest: None,
            since: 0,
        }
    }

    /// Records the result of the lookup, for variables and logs.
    pub(super) fn found(&self, lookup: Lookup, life: Option<Life>) {
        self.shown.because(|reason| (reason.lookup, reason.life) = (lookup, life));
    }

    /// The request, for a new fill.
    pub(super) fn asked(&self) -> Asked {
        Asked { key: self.main, since: self.since }
    }

    /// Prepares to ask a server. If there is a fill already, its number is kept.
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

    /// Whether the client has the beginning of an answer.
    pub fn has_begun(&self) -> bool {
        self.rest.is_some()
    }

    /// Notes that the fill has the complete answer.
    pub fn received_whole(&self, fill: &Arc<Fill>, now: Instant) {
        self.cache.received_whole(self.key, fill, self.cache.index.msec(now));
    }
}
