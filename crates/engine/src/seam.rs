//! Where the engine meets the kernel, so that a simulated world can stand in its place.
//!
//! With the feature `sim`, which only tests ask for, a process may install a [`sim::World`] before it makes its first
//! loop. From then on all time is the world's, a loop that would sleep hands over to it, operations on files happen
//! when it says, and it may let system calls fail. Without the feature nothing of this is compiled.

#[cfg(feature = "sim")]
pub mod sim;

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

#[cfg(feature = "sim")]
pub(crate) use sim::seam::*;

#[cfg(not(feature = "sim"))]
pub(crate) use real::*;

/// The kernel as it is.
#[cfg(not(feature = "sim"))]
mod real {
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::sync::Arc;
    use std::time::Duration;

    use rustix::io::Errno;

    use super::Call;

    #[inline(always)]
    pub(crate) fn simulated_nanos() -> Option<u64> {
        None
    }

    #[inline(always)]
    pub(crate) fn simulated_secs() -> i64 {
        0
    }

    #[inline(always)]
    pub(crate) fn at(_: Call) -> Result<(), Errno> {
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn connected(_: impl AsFd) {}

    #[inline(always)]
    pub(crate) fn accepted(_: impl AsFd, _: impl AsFd) {}

    #[inline(always)]
    pub(crate) fn block(_: Duration, _: bool) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn is_simulated() -> bool {
        false
    }

    pub(crate) fn later(job: Box<dyn FnOnce() + Send>) {
        drop(job);
    }

    #[inline(always)]
    pub(crate) fn born(_: usize) {}

    #[inline(always)]
    pub(crate) fn begin() {}

    #[inline(always)]
    pub(crate) fn me() -> usize {
        0
    }

    #[inline(always)]
    pub(crate) fn is_runnable(_: usize) -> Option<bool> {
        None
    }

    #[inline(always)]
    pub(crate) fn has_used(_: usize) -> Option<Duration> {
        None
    }

    #[inline(always)]
    pub(crate) fn notify_after(_: &Arc<OwnedFd>, _: u64) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn beside() -> usize {
        0
    }

    #[inline(always)]
    pub(crate) fn begin_beside(_: usize) {}

    #[inline(always)]
    pub(crate) fn call_beside() {}

    #[inline(always)]
    pub(crate) fn wait(_: Option<Duration>, _: impl FnMut() -> bool) {}

    #[inline(always)]
    pub(crate) fn wait_at<'a>(_: impl Iterator<Item = BorrowedFd<'a>>, _: impl FnMut() -> bool) {}

    /// A socket. No list is kept of them.
    pub(crate) struct Known;

    #[inline(always)]
    pub(crate) fn opened(_: BorrowedFd<'_>) -> Known {
        Known
    }

    #[inline(always)]
    pub(crate) fn holds(_: impl FnOnce() -> (usize, usize)) {}
}
