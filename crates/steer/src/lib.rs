//! `weir balance`: gives the new connections of another server's SO_REUSEPORT group to the workers
//! that have time for them.
//!
//! The kernel spreads them by a hash. So a worker that is slow, or stopped, gets as many as the
//! others, and the connections in its queue wait. Here `weir_inspect::servers` finds the group and
//! the process of each of its sockets, a `group`. `load` looks at them many times a second,
//! `shares` decides how much each one gets, and `weir_sys::steering` tells the kernel. The server
//! itself is neither changed nor asked.
//!
//! - In: a port or a process id.
//! - Out: a table in the kernel while it runs, and figures each second. At its end the kernel's hash is back.
//! - Callers: the binary `weir`.

mod command;
mod group;
mod load;
mod shares;
mod watch;

pub use command::{Options, balance};
