//! Accept policies: which loop takes the next connection. One file each, pure, and the laws that
//! they are held to.
//!
//! A policy makes no system call and reads no clock. It gets events and answers with decisions, so the server, the
//! laboratory and the simulator run the same code. The loops know each other's load from the [`LoadTable`], a few words
//! per loop in shared memory. A [`LoopPolicy`] keeps a loop's row of the table and asks its policy, and an
//! [`AcceptDriver`] carries the decisions out.
//!
//! What a policy needs of the sockets (one shared socket, one each, an acceptor) is its [`SocketLayout`];
//! [`AcceptPolicy`] lists the policies by the names that `accept_balance` takes.
//!
//! - In: what happens to one loop (it accepted, a connection closed, it is about to sleep), the time, and the load table.
//! - Out: whether the loop listens, for how long it waits, and which loop it wakes.
//! - Callers: `server` for real sockets, the model of this crate, and `sim`.

mod accept_driver;
mod accept_policy;
mod blocking;
mod dispatch;
mod exclusive;
mod fair;
mod herd;
#[cfg(test)]
mod laws;
mod loop_policy;
pub mod model;
mod mutex;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod races;
mod reuseport;
mod reuseport_load;
mod rotate;
mod seam;
mod shared_epoll;
mod single;
#[cfg(test)]
mod spoilt;
mod table;

use std::time::{Duration, Instant};

pub use accept_driver::{AcceptDriver, AcceptOutcome, ListenerSet};
pub use accept_policy::{AcceptPolicy, SocketLayout, UnknownPolicy};
pub use loop_policy::{LoopPolicy, LoopSetup};
pub use reuseport_load::Fit;
pub use table::{Load, LoadTable, LoopActivity, Row, words};

/// Decides how new connections are spread over the loops. Each loop has its own value.
pub trait Policy: Send {
    /// About to sleep: should this loop be woken for new connections, and when must it look again?
    fn before_wait(&mut self, now: Instant, loops: &LoadTable<'_>) -> Wait;

    /// Another loop woke this one to look again; [`after_wait`](Policy::after_wait) follows.
    fn on_woken(&mut self) {}

    /// Back from the wait.
    fn after_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) {}

    /// This loop accepted `n` connections in a row from one socket; its row counts them already.
    fn on_accepted(&mut self, _now: Instant, _loops: &LoadTable<'_>, _n: u32) -> AfterAccept {
        AfterAccept::Keep
    }

    /// Asked in each turn when its accepts are done and before its other work, until it answers
    /// `None`: a sleeping loop that must look again, now. It is woken and runs its own
    /// `before_wait`, which compares with what this loop carries since its accepts.
    fn loop_to_wake(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Option<usize> {
        None
    }

    /// A stalled loop with a queue that this one empties. Asked when no loop is left to wake, until
    /// it answers `None`.
    fn loop_to_relieve(&mut self) -> Option<usize> {
        None
    }

    /// For an acceptor that hands over: the loop that gets the connection it just accepted.
    fn place(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Option<usize> {
        None
    }
}

/// What a loop does with its listening sockets before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// Registered: a new connection may wake this loop.
    Armed,
    /// Registered, and at the end of the kernel's wait list: sockets from which this loop accepted
    /// since it added them are removed and added again.
    ArmedLast,
    /// Not registered: new connections are for others.
    Disarmed,
}

/// The answer to [`Policy::before_wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Registered or not.
    pub stance: Stance,
    /// The longest sleep after which the policy must be asked again; `None`: as long as it likes.
    pub at_most: Option<Duration>,
    /// An armed loop that sleeps and must look again, now that this one is armed, too.
    pub wake: Option<usize>,
}

impl Wait {
    /// Armed, for as long as nothing happens.
    pub const ARMED: Wait = Wait { stance: Stance::Armed, at_most: None, wake: None };
    /// Disarmed, for as long as nothing happens.
    pub const DISARMED: Wait = Wait { stance: Stance::Disarmed, at_most: None, wake: None };
}

/// Whether to try an accept on sockets that are not armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Accept only what the backend reports.
    No,
    /// Try one accept on each socket.
    Try,
}

/// What follows an accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterAccept {
    /// The registration stays as it is.
    Keep,
    /// Remove and add the socket at once: this loop goes to the end of the kernel's wait list.
    Readd,
}
