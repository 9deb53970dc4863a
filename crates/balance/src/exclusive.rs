//! `exclusive`: EPOLLEXCLUSIVE, registered once.
//!
//! Each connection wakes one sleeping loop: the first in the wait list. The list keeps the order of
//! registration, so in an idle server one loop accepts everything.

use std::time::Instant;

use crate::{LoadTable, Policy, Wait};

pub(crate) struct Exclusive;

impl Policy for Exclusive {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }
}
