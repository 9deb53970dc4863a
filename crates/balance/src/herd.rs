//! `herd`: plain registration of one socket in every loop's backend.
//!
//! Every sleeping loop wakes for every connection; the first one to run gets it, the others find
//! nothing. nginx does this with `accept_mutex off` where EPOLLEXCLUSIVE is missing, and with
//! poll and select always.

use std::time::Instant;

use crate::{LoadTable, Policy, Wait};

pub(crate) struct Herd;

impl Policy for Herd {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }
}
