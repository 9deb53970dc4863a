//! `weir balance`: new connections of another server's SO_REUSEPORT group go to the workers that have time for them.
//!
//! The kernel spreads them by a hash, so a worker that is slow, or stopped, gets as many as the others, and whoever is in
//! its queue waits. Here `weir_inspect::servers` finds the group and who serves which of its sockets, a `group`; `load` looks at them many
//! times a second, `shares` says who is to get what, and `weir_sys::steering` tells the kernel. The server itself is
//! neither changed nor asked.

mod command;
mod group;
mod load;
mod shares;
mod watch;

pub use command::{Options, balance};
