//! `reuseport`: a socket per loop, chosen by the kernel's hash of the connection's addresses.
//!
//! Even in the long run, and without contention; but a queue per loop means that a connection
//! waits behind its loop's slow work while other loops sleep, and is stuck if its loop is.

use std::time::Instant;

use crate::{LoadTable, Policy, Wait};

pub(crate) struct Reuseport;

impl Policy for Reuseport {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }
}
