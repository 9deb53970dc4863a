//! How a peer is chosen: one file for each method, each a small pure strategy.

use std::fmt::Debug;
use std::time::Instant;

use crate::group::Choice;
use crate::seat::PeerState;
use crate::seats::PeerSet;

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

/// A method of choosing.
pub trait Balance: Debug + Send {
    /// The list of seats is new. What takes long to compute from it is computed here, so that no request waits for it.
    fn prepare(&mut self, _: &PeerSet) {}

    /// The index of a seat that is free ([`PeerSet::is_free`]) for this request. `None`: there is none.
    fn pick(&mut self, seats: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize>;

    /// A request took this seat because it is bound to it.
    fn out_of_turn(&mut self, _: &mut PeerSet, _: usize, _: &Choice, _now: Instant) {}

    /// The seat was chosen. True if its request is counted as in flight.
    fn chosen(&mut self, _: &mut PeerState, _now: Instant) -> bool {
        false
    }

    /// A request counts as in flight until this moment, and no longer; `None`: until its end.
    fn hears_of(&self) -> Option<Measure> {
        None
    }
}

/// How many seats that are not free a hash leads to before any free peer is taken.
const HASH_TRIES: u32 = 20;
