//! An open file, and where it is closed.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};

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
}

/// Which thread waits for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// One of the pool. It was opened for reading, from memory, so that closing it needs none unless it was removed.
    Memory,
    /// One of the pool.
    Pool,
    /// Whoever asks.
    Here,
}

impl OpenFile {
    pub(super) fn new(file: File, pool: FilePool, access: Access) -> OpenFile {
        OpenFile { file: Some(file), pool, access }
    }

    /// Whose threads read it when it is not in memory.
    pub fn pool(&self) -> &FilePool {
        &self.pool
    }

    /// Who asks also waits.
    pub(crate) fn waits_here(&self) -> bool {
        self.access == Access::Here
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
