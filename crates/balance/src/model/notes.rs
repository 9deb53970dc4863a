//! What happens to the listening sockets, told step by step.

use std::time::Duration;

use super::Visit;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Virtual time.
    pub at: Duration,
    /// What it was.
    pub what: What,
}

/// What can happen to a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A connection is established, and the kernel walks along the list of waiters.
    Arrived {
        /// The connection's number.
        connection: usize,
        /// The list: the loop, and whether exclusive.
        order: Vec<(usize, bool)>,
        /// The waiters that the kernel met.
        walk: Vec<Visit>,
    },
    /// A loop took a connection.
    Accepted {
        /// The loop.
        who: usize,
        /// The connection's number.
        connection: usize,
        /// How many connections still wait in its socket.
        left: usize,
    },
    /// A loop was told of a connection that another one had taken.
    FoundNone {
        /// The loop.
        who: usize,
    },
    /// A loop added itself to the list of waiters, at its end, or took itself out.
    Registered {
        /// The loop.
        who: usize,
        /// Added.
        armed: bool,
        /// The list afterwards: the loop, and whether exclusive.
        order: Vec<(usize, bool)>,
    },
}
