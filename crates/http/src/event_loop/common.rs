//! What the connections of one loop share whatever site they are served by: it outlives each of the loop's sites.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::rc::Weak;
use std::sync::Arc;

use weir_values::{Offset, Retire};

use super::rush::Rush;
use super::{FirstBytesGuess, Gone, OnRetire};
use crate::request::Scratch;

/// What outlives a site.
pub(crate) struct Common {
    pub(super) connections: Cell<usize>,
    pub(super) inflight: Cell<usize>,
    /// Of both, what went to other loops.
    pub(crate) gone: Arc<Gone>,
    pub(super) retiring: Cell<Option<Retire>>,
    pub(super) scratches: RefCell<Vec<Scratch>>,
    pub(super) pausing: Cell<usize>,
    pub(crate) first_bytes: FirstBytesGuess,
    /// For each listening socket, how many clients spoke soon after they were accepted.
    pub(super) spoke_soon: Box<[Cell<u64>]>,
    pub(super) rush: Rush,
    /// The same of connections that pause with their tasks.
    pub(super) rush_of_pauses: Rush,
    /// In this turn a connection was accepted without being asked for its first bytes.
    pub(crate) unasked: Cell<bool>,
    /// Connections that are told of the worker's end, the oldest first.
    pub(super) links: RefCell<BTreeMap<u64, Weak<dyn OnRetire>>>,
    pub(super) date: Cell<(i64, [u8; 29])>,
    /// The last second for which the time zone was asked, and its offset.
    pub(super) offset: Offset,
    pub(super) ids: Ids,
}

impl Common {
    /// That of a new loop with so many listening sockets.
    pub(super) fn new(listens: usize) -> Common {
        Common {
            connections: Cell::new(0),
            inflight: Cell::new(0),
            gone: Arc::default(),
            retiring: Cell::new(None),
            scratches: RefCell::new(Vec::new()),
            pausing: Cell::new(0),
            first_bytes: FirstBytesGuess::default(),
            spoke_soon: (0..listens).map(|_| Cell::new(0)).collect(),
            rush: Rush::default(),
            rush_of_pauses: Rush::default(),
            unasked: Cell::new(false),
            links: RefCell::default(),
            date: Cell::new((i64::MIN, [b' '; 29])),
            offset: Offset::default(),
            ids: Ids::new(),
        }
    }
}

/// The source of `$request_id`: a keyed hash of a counter.
pub(super) struct Ids {
    hash: RandomState,
    seed: [u8; 16],
    count: Cell<u64>,
}

impl Ids {
    pub(super) fn new() -> Ids {
        // Forked processes may share the hash's keys, but not this.
        let mut seed = [0; 16];
        if rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).is_err() {
            // Others cannot compute the hash without its keys; this only keeps one process from repeating another.
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            seed = now.map_or(0, |since| since.as_nanos()).to_ne_bytes();
        }
        Ids { hash: RandomState::new(), seed, count: Cell::new(0) }
    }

    pub(super) fn next(&self) -> u64 {
        self.count.set(self.count.get() + 1);
        self.hash.hash_one((std::process::id(), self.seed, self.count.get()))
    }
}
