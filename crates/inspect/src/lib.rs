//! `weir inspect`: inspects any server on this machine, without changing it.
//!
//! [`servers`] finds listening processes, their sockets and how they wait for connections. `measure`
//! samples queues, connections and processor time over an interval. `verdict` explains the
//! measurements and gives advice. Both work on a `report`, which is shown as text or as JSON. The
//! report names what only root could see.
//!
//! - In: a port, a name or a process id, and data of `/proc` and of sock_diag(7).
//! - Out: a report with measurements and advice.
//! - Callers: the binary `weir`, and `steer`, which needs the group of a port.

mod command;
mod datagrams;
mod measure;
mod report;
pub mod servers;
mod verdict;

pub use command::{Options, inspect};
