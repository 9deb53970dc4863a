//! `exclusive`: EPOLLEXCLUSIVE, registered once.
//!
//! One sleeping loop wakes per connection, the first in the kernel's wait list. The list keeps the
//! order of registration, so an idle server serves everything from its first loop.

use std::time::Instant;

use crate::{LoadTable, Policy, Wait};

pub(crate) struct Exclusive;

impl Policy for Exclusive {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }
}
