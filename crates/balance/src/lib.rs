//! Accept policies, which decide which loop takes the next connection. Each policy is one file and
//! pure. The crate also has the laws that they are tested against.
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

/// Decides how new connections spread over the loops. Each loop has its own instance.
pub trait Policy: Send {
    /// The loop is about to sleep. Decides whether new connections may wake it, and when it must
    /// decide again.
    fn before_wait(&mut self, now: Instant, loops: &LoadTable<'_>) -> Wait;

    /// Another loop woke this one to decide again. [`after_wait`](Policy::after_wait) follows.
    fn on_woken(&mut self) {}

    /// The wait has returned.
    fn after_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) {}

    /// The loop has accepted `n` connections in a row from one socket. Its row already counts them.
    fn on_accepted(&mut self, _now: Instant, _loops: &LoadTable<'_>, _n: u32) -> AfterAccept {
        AfterAccept::Keep
    }

    /// Returns a sleeping loop that must decide again now. Called after the accepts of each turn,
    /// until it returns `None`. The loop is woken and calls its own `before_wait`, which sees this
    /// loop's load after its accepts.
    fn loop_to_wake(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Option<usize> {
        None
    }

    /// Returns a stalled loop whose queue this loop empties. Called after
    /// [`loop_to_wake`](Policy::loop_to_wake), until it returns `None`.
    fn loop_to_relieve(&mut self) -> Option<usize> {
        None
    }

    /// For an acceptor: the loop that gets the connection that was just accepted.
    fn place(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Option<usize> {
        None
    }
}

/// How a loop is registered for its listening sockets while it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stance {
    /// Registered: a new connection may wake this loop.
    Armed,
    /// Registered at the end of the kernel's wait list. Sockets that this loop has accepted from
    /// since it added them are removed and added again.
    ArmedLast,
    /// Not registered: other loops accept new connections.
    Disarmed,
}

/// The result of [`Policy::before_wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The registration.
    pub stance: Stance,
    /// The longest sleep, after which the policy decides again. `None`: no limit.
    pub at_most: Option<Duration>,
    /// An armed, sleeping loop that must decide again, since this one is armed now, too.
    pub wake: Option<usize>,
}

impl Wait {
    /// Armed, without a limit on the sleep.
    pub const ARMED: Wait = Wait { stance: Stance::Armed, at_most: None, wake: None };
    /// Disarmed, without a limit on the sleep.
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

/// What a loop does with a socket after an accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterAccept {
    /// Leaves the registration as it is.
    Keep,
    /// Removes and adds the socket at once. This moves the loop to the end of the wait list.
    Readd,
}
