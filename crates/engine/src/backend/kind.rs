//! The backends by name, and how each is made.

use std::io;

#[cfg(feature = "sim")]
use super::simulated;
use super::{Backend, epoll, poll, select, uring};

/// The backends that a loop can be made with; nginx: the `use` directive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// `epoll(7)`, edge-triggered: the default.
    #[default]
    Epoll,
    /// `poll(2)`: for comparison.
    Poll,
    /// `select(2)`: for comparison, and descriptors below 1024 only.
    Select,
    /// `io_uring(7)`: where the kernel has it, see [`BackendKind::check`].
    IoUring,
}

impl BackendKind {
    /// An error if the kernel lacks this backend or forbids it.
    pub fn check(self) -> io::Result<()> {
        make(self, 1).map(drop)
    }
}

pub(crate) fn make(kind: BackendKind, events: usize) -> io::Result<Box<dyn Backend>> {
    let real: Box<dyn Backend> = match kind {
        BackendKind::Epoll => Box::new(epoll::Epoll::new(events)?),
        BackendKind::Poll => Box::new(poll::Poll::default()),
        BackendKind::Select => Box::new(select::Select::default()),
        BackendKind::IoUring => Box::new(uring::Uring::new(events)?),
    };
    #[cfg(feature = "sim")]
    let real = simulated::stand_in(real);
    Ok(real)
}
