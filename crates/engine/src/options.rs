//! The options of a loop.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::steal::StealGroup;
use crate::{BackendKind, FilePool};

/// The options of a loop.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the loop waits; nginx: `use`.
    pub backend: BackendKind,
    /// The shortest interval at which the time of day is read; nginx: `timer_resolution`.
    pub timer_resolution: Option<Duration>,
    /// The most events that one wait takes; nginx: `epoll_events`.
    pub events: usize,
    /// The default pool for file operations. Give all loops of a process clones of one pool.
    pub files: FilePool,
    /// Further pools, by name.
    pub pools: Vec<FilePool>,
    /// The group of loops of this process that steal requests from each other. Give each loop a
    /// clone. Only loops with the epoll backend take part.
    pub steal_group: Option<StealGroup>,
    /// The notifier: a non-blocking eventfd. A write to it wakes the loop, from any process. None:
    /// the loop makes its own.
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
