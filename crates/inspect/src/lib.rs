//! `weir inspect`: a look into any server on this machine. It changes nothing.
//!
//! [`servers`] finds the processes that listen, their sockets and how they wait for connections.
//! `look` takes figures over a while (queues, connections, processor time). `verdict` says in words
//! what they mean and what helps. Both work on a `report`, which is shown as text or as JSON. What
//! only root may see is left out and named.
//!
//! - In: a port, a name or a process id, and what `/proc` and the kernel's socket lists say.
//! - Out: a report with figures and advice.
//! - Callers: the binary `weir`, and `steer`, which needs the group of a port.

mod command;
mod datagrams;
mod look;
mod report;
pub mod servers;
mod verdict;

pub use command::{Options, inspect};
