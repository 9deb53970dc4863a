//! `blocking`: each loop has a thread that blocks in accept(2) while the loop sleeps.
//!
//! The kernel serves blocked threads first come, first served. So connections spread evenly out of
//! one queue. The price is a thread for each loop and a handover for each connection. A loop that
//! wakes up for other work cannot interrupt its thread, so it may still get one more connection.

use std::time::Instant;

use crate::{LoadTable, Policy, Wait};

pub(crate) struct Blocking;

impl Policy for Blocking {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }
}
