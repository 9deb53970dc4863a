//! Where the engine meets the kernel, so that a simulated world can stand in its place.
//!
//! With the feature `sim`, which only tests ask for, a process may install a [`sim::SimulatedWorld`] before it makes its first
//! loop. From then on all time is the world's, a loop that would sleep hands over to it, operations on files happen
//! when it says, and it may let system calls fail. Without the feature nothing of this is compiled.

#[cfg_attr(feature = "sim", allow(dead_code, reason = "the world stands for some of it"))]
mod kernel;
#[cfg(feature = "sim")]
pub mod sim;

/// Work for another thread, or for another moment.
pub type Job = Box<dyn FnOnce() + Send>;

/// What is about to be asked of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A connection from a listening socket.
    Accept,
    /// A new socket for a connection to a server.
    Connect,
    /// A stream or a listening socket for the backend.
    Watch,
    /// Bytes from a socket.
    Recv,
    /// Bytes to a socket.
    Send,
    /// Bytes of a file, or a look at a path, that must not wait for a disk.
    FromMemory,
    /// A thread of the file pool.
    Offload,
}

#[cfg(not(feature = "sim"))]
pub(crate) use kernel::*;
#[cfg(feature = "sim")]
pub(crate) use sim::seam::*;
