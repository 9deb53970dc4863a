//! `herd`: each loop registers the one socket in its own backend, without EPOLLEXCLUSIVE.
//!
//! Each connection wakes all sleeping loops. The first one to run accepts it, the others find
//! nothing. nginx works like this with `accept_mutex off` where EPOLLEXCLUSIVE is missing, and
//! always with poll and select.

use std::time::Instant;

use crate::{LoadTable, Policy, Wait};

pub(crate) struct Herd;

impl Policy for Herd {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }
}
