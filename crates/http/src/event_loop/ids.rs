//! `$request_id`.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

/// The source of `$request_id`: a keyed hash of a counter.
pub(super) struct Ids {
    hash: RandomState,
    seed: [u8; 16],
    count: Cell<u64>,
}

impl Ids {
    pub(super) fn new() -> Ids {
        // Forked processes may share the hash's keys, but not this seed.
        let mut seed = [0; 16];
        if rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).is_err() {
            // Clients cannot compute the hash without its keys. This only prevents two processes
            // from making equal IDs.
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
