//! Upstream servers: groups of peers, how one is chosen, when another is tried, and the connections that are
//! kept for the next request. Knows no HTTP, so that `stream` can use it, too.
//!
//! Everything but [`Pool`] is pure: it makes no system call and asks no clock; `now` is passed in.

pub mod balance;
mod group;
mod peer;
mod pool;
mod retry;
mod seats;

#[cfg(test)]
mod tests;

pub use group::{Choice, Ended, Group, Picked};
pub use peer::{Endpoint, Options, Peer};
pub use pool::{Connection, Limits, Pool};
pub use retry::{Failure, Failures, Retry, Sent};
pub use seats::{Seats, Tried};
