//! All calls of the engine to the kernel, so that a simulated world can replace it.
//!
//! With the feature `sim`, which is for tests, a process may install a [`sim::SimulatedWorld`]
//! before it makes its first loop. From then on the world provides the time, decides when loops and
//! file operations run, and lets system calls fail. Without the feature these functions are thin
//! wrappers of system calls.

#[cfg_attr(feature = "sim", allow(dead_code, reason = "the world stands for some of it"))]
mod kernel;
#[cfg(feature = "sim")]
pub mod sim;

/// Work to be run on another thread or later.
pub type Job = Box<dyn FnOnce() + Send>;

/// A kind of system call, which the simulated world may let fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Accepting from a listening socket.
    Accept,
    /// Making a socket and connecting it.
    Connect,
    /// Adding a socket or listener to the backend.
    Watch,
    /// Receiving from a socket.
    Recv,
    /// Sending on a socket.
    Send,
    /// Reading a file or resolving a path from memory, which must not wait for a disk.
    FromMemory,
    /// Giving a job to the file pool.
    Offload,
}

#[cfg(not(feature = "sim"))]
pub(crate) use kernel::*;
#[cfg(feature = "sim")]
pub(crate) use sim::seam::*;
