//! Upstream servers: groups of peers, how one is chosen, when another is tried, and the connections
//! that are kept for the next request. The crate knows no HTTP except [`reply`], so that `stream`
//! can use it, too.
//!
//! All except [`Pool`] and [`config`] is pure: it makes no system call and reads no clock; `now` is
//! passed in.
//!
//! - In: a group's settings, the time, and how each attempt ended.
//! - Out: the peer to ask, a kept connection to it, or why there is none.
//! - Callers: `http` and `stream`, which speak to the peer themselves.

pub mod balance;
mod board;
mod changes;
pub mod config;
pub mod counts;
pub mod fault;
pub mod framing;
mod group;
pub mod health;
mod peer;
mod peer_set;
mod peer_state;
mod pool;
mod queue;
mod rate;
pub mod reply;
mod retry;
mod rotation;
pub mod tunnel;

#[cfg(test)]
mod tests;

pub use changes::{Changes, Duty, MOST_WEIGHT};
pub use group::{Choice, Ended, Group, Picked};
pub use health::{CheckResult, Health, Record, Thresholds};
pub use peer::{Peer, PeerAddress, PeerOptions};
pub use peer_set::{PeerSet, Tried};
pub use peer_state::{Inflight, PeerState, PeerTimes};
pub use pool::{Connection, Limits, Pool, SharedPool, Tag, close_idle};
pub use queue::Queue;
pub use rate::{Pace, Rate};
pub use retry::{Failure, Failures, Retry, Sent};

/// How many peers fit into a zone of `bytes` bytes.
pub fn peers_in_zone(bytes: u64) -> usize {
    weir_zone::capacity(bytes, board::VALUES)
}
