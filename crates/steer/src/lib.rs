//! `weir balance`: makes the kernel assign the new connections of another server's SO_REUSEPORT
//! group to workers that have time for them.
//!
//! By default the kernel assigns connections by a hash. So a slow or stopped worker gets as many as
//! the others, and connections wait in its queue. `weir_inspect::servers` finds the group and the
//! process of each of its sockets, which are a `group`. `load` samples them many times a second,
//! `shares` computes each worker's share, and `weir_sys::steering` passes the shares to the kernel.
//! The server itself is neither changed nor asked.
//!
//! - In: a port or a process id.
//! - Out: a table in the kernel while it runs, and figures each second. At its end the kernel uses its hash again.
//! - Callers: the binary `weir`.

mod command;
mod group;
mod load;
mod shares;
mod watch;

pub use command::{Options, balance};
