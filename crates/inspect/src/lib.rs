//! `weir inspect`: a look into any server on this machine, whoever made it. It changes nothing.
//!
//! [`servers`] finds who listens, on which sockets and how they wait for connections, `look` takes figures over a while
//! (queues, connections, processor time), and `verdict` says in words what they mean and what helps; both work on a
//! `report`, which is shown as text or as JSON. What only root may see is left out and named.

mod command;
mod look;
mod report;
pub mod servers;
mod verdict;

pub use command::{Options, inspect};
