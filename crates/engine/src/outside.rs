//! Listening sockets and foreign descriptors, through which a loop gets work from outside.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::slots::Key;

/// How a loop is registered for a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The kernel wakes one of the loops that are registered: `EPOLLEXCLUSIVE`. Backends without it
    /// wake all.
    Exclusive,
    /// The kernel wakes every loop that is registered.
    Shared,
}

/// A listening socket in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerKey(pub(crate) Key);

/// A foreign descriptor in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchKey(pub(crate) Key);

pub(crate) struct Listener {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) armed: Option<Arm>,
}
