//! Balancing methods: one file for each, each a small pure strategy.

use std::fmt::Debug;
use std::time::Instant;

use crate::group::Choice;
use crate::peer_set::PeerSet;
use crate::peer_state::PeerState;

mod consistent;
mod hash;
mod ip_hash;
mod least_conn;
mod least_time;
mod random;
mod round_robin;

pub use consistent::Consistent;
pub use hash::Hash;
pub use ip_hash::IpHash;
pub use least_conn::LeastConn;
pub use least_time::{LeastTime, Measure};
pub use random::{Random, Two};
pub use round_robin::RoundRobin;

/// A balancing method.
pub trait Balance: Debug + Send {
    /// Called with a new list of peers. Expensive tables are computed here, so that no request
    /// waits for them.
    fn prepare(&mut self, _: &PeerSet) {}

    /// The index of a peer that is free ([`PeerSet::is_free`]) for this request, if there is one.
    fn pick(&mut self, peers: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize>;

    /// Called when a request takes a peer that it is bound to.
    fn out_of_turn(&mut self, _: &mut PeerSet, _: usize, _: &Choice, _now: Instant) {}

    /// Called when a peer was chosen. True if the method counts the request as in flight.
    fn chosen(&mut self, _: &mut PeerState, _now: Instant) -> bool {
        false
    }

    /// The moment until which a request counts as in flight; `None` for its end.
    fn inflight_until(&self) -> Option<Measure> {
        None
    }
}

/// After this many tries, a hashing method falls back to round robin, as in nginx.
const HASH_TRIES: u32 = 20;
