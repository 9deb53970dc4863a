//! `blocking`: a thread per loop blocks in accept(2), and does so while its loop sleeps.
//!
//! The kernel serves blocked threads first come, first served: even and one queue, at the price of
//! a thread per loop and a hand-over per connection. A loop that wakes for other work cannot call
//! its thread back, so one connection may still come its way.

use std::time::Instant;

use crate::{LoadTable, Policy, Wait};

pub(crate) struct Blocking;

impl Policy for Blocking {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }
}
