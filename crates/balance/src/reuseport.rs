//! `reuseport`: a socket for each loop. The kernel chooses by its hash of the addresses.
//!
//! Connections spread evenly in the long run, and loops do not contend for a queue. But a
//! connection waits behind its loop's slow work while other loops sleep, and is stuck if its loop
//! is.

use std::time::Instant;

use crate::{LoadTable, Policy, Wait};

pub(crate) struct Reuseport;

impl Policy for Reuseport {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }
}
