//! `shared_epoll`: the sockets are in one epoll instance, which each loop watches.
//!
//! No loop waits in that instance directly. So a connection wakes all sleeping loops that watch it:
//! nested epoll instances lose exclusivity (fs/eventpoll.c).

use std::time::Instant;

use crate::{LoadTable, Policy, Wait};

pub(crate) struct SharedEpoll;

impl Policy for SharedEpoll {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }
}
