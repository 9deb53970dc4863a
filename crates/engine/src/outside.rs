//! Where work comes in from outside: listening sockets and foreign descriptors.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::slots::Key;

/// How a listening socket takes part in the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// One of the loops that wait for this socket is woken: `EPOLLEXCLUSIVE`. Backends that lack
    /// it wake all.
    Exclusive,
    /// Every loop that waits for this socket is woken.
    Shared,
}

/// A listening socket of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerKey(pub(crate) Key);

/// A foreign descriptor of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchKey(pub(crate) Key);

pub(crate) struct Listener {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) armed: Option<Arm>,
}
