//! A record of what happens to the listening sockets.

use std::time::Duration;

use super::Visit;

/// One recorded event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// When it happened, in virtual time.
    pub at: Duration,
    /// What happened.
    pub what: What,
}

/// What can happen to a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A connection is established, and the kernel walks along the wait list.
    Arrived {
        /// The connection's number.
        connection: usize,
        /// The wait list: each loop, and whether it is exclusive.
        order: Vec<(usize, bool)>,
        /// The waiters that the walk reached.
        walk: Vec<Visit>,
    },
    /// A loop accepted a connection.
    Accepted {
        /// The loop.
        who: usize,
        /// The connection's number.
        connection: usize,
        /// How many connections still wait at the socket.
        left: usize,
    },
    /// A loop was woken for a connection that another loop had accepted.
    FoundNone {
        /// The loop.
        who: usize,
    },
    /// A loop joined the wait list at its end, or left it.
    Registered {
        /// The loop.
        who: usize,
        /// It joined.
        armed: bool,
        /// The wait list afterwards: each loop, and whether it is exclusive.
        order: Vec<(usize, bool)>,
    },
}
