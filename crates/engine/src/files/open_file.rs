//! An open file, and where it is closed.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::FilePool;

/// A file that many may read or send, and that no loop waits for when it is closed.
///
/// Closing is more than forgetting a number: NFS and FUSE tell a server, and with the last reference to a file that
/// was removed its blocks are freed. A thread of the pool does either.
#[derive(Debug)]
pub struct OpenFile {
    /// There until it is dropped.
    file: Option<File>,
    /// Whose threads read it when it is not in memory.
    pool: FilePool,
    access: Access,
    /// Its file system says what of it is in memory.
    tells: AtomicBool,
}

/// Which thread waits for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// One of the pool. It was opened for reading, from memory, so that closing it needs none unless it was removed.
    Memory,
    /// One of the pool.
    Pool,
    /// Whoever asks: the file is memory, or its users want to wait.
    Here,
}

impl OpenFile {
    pub(super) fn new(file: File, pool: FilePool, access: Access) -> OpenFile {
        OpenFile { file: Some(file), pool, access, tells: AtomicBool::new(false) }
    }

    /// Whose threads read it when it is not in memory.
    pub fn pool(&self) -> &FilePool {
        &self.pool
    }

    /// Who asks also waits.
    pub(crate) fn waits_here(&self) -> bool {
        self.access == Access::Here
    }

    /// It is a local file, opened for reading: to ask what it is needs no disk.
    pub fn is_local(&self) -> bool {
        self.access == Access::Memory
    }

    /// Whether its file system has said before what of it is in memory.
    pub(super) fn tells(&self) -> bool {
        self.tells.load(Ordering::Relaxed)
    }

    pub(super) fn has_told(&self) {
        self.tells.store(true, Ordering::Relaxed);
    }

    /// Whether it may be closed here.
    fn closes_here(&self, file: &File) -> bool {
        super::pool::may_wait_here()
            || match self.access {
                Access::Memory => rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0),
                Access::Pool => false,
                Access::Here => true,
            }
    }
}

impl Deref for OpenFile {
    type Target = File;

    fn deref(&self) -> &File {
        self.file.as_ref().expect("a file is there until it is dropped")
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Some(file) = self.file.take()
            && !self.closes_here(&file)
        {
            self.pool.close(file);
        }
    }
}
