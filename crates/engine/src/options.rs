//! How a loop is made.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::steal::StealGroup;
use crate::{BackendKind, FilePool};

/// How a loop is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// How it waits; nginx: `use`.
    pub backend: BackendKind,
    /// How often the time of day is read at most; nginx: `timer_resolution`.
    pub timer_resolution: Option<Duration>,
    /// Events taken from the kernel at once; nginx: `epoll_events`.
    pub events: usize,
    /// Threads for file operations; give all loops of a process a clone of one pool.
    pub files: FilePool,
    /// Further pools, found by their names.
    pub pools: Vec<FilePool>,
    /// The loops of this process that relieve each other; give each of them a clone. Only loops that wait in epoll do.
    pub steal_group: Option<StealGroup>,
    /// What wakes it: an event descriptor that does not block. Any other holder, in another process for instance, wakes the
    /// loop by writing to it. None: one of its own.
    pub notifier: Option<Arc<OwnedFd>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            backend: BackendKind::Epoll,
            timer_resolution: None,
            events: 512,
            files: FilePool::default(),
            pools: Vec::new(),
            steal_group: None,
            notifier: None,
        }
    }
}
