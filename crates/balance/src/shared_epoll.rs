//! `shared_epoll`: the sockets are in one epoll instance, which every loop watches.
//!
//! Since no loop waits on that instance directly, a connection wakes every sleeping loop that
//! watches it: a nested epoll gives up exclusivity (fs/eventpoll.c).

use std::time::Instant;

use crate::{LoadTable, Policy, Wait};

pub(crate) struct SharedEpoll;

impl Policy for SharedEpoll {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }
}
