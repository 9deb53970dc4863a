//! An open file, and the thread that closes it.

use std::fs::File;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{FileInfo, FilePool};
use crate::clock;

/// An open file that many requests may read or send, and that no loop blocks to close.
///
/// Closing may block: NFS and FUSE ask a server, and closing a removed file frees its blocks. A
/// thread of the pool does it in these cases.
///
/// Facts that a loop finds out about the file hold until the end of its turn. It does not ask the
/// kernel again.
#[derive(Debug)]
pub struct OpenFile {
    /// Present until the file is dropped.
    file: Option<File>,
    /// The pool that reads the file if it is not in memory.
    pool: FilePool,
    access: Access,
    found: Mutex<Found>,
}

/// Facts about the file, each with the turn in which it was found.
#[derive(Debug, Default)]
struct Found {
    /// The turn in which the file still had a name and was unchanged.
    stands: Option<Instant>,
    /// The bytes that were in memory, and in which turn.
    resident: Option<(Instant, Range<u64>)>,
}

/// Which thread blocks to read or close a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// A thread of the pool. The file is local and was opened for reading, so closing it blocks
    /// only if it was removed.
    Memory,
    /// A thread of the pool.
    Pool,
    /// The calling thread. The file is in memory, or its user wants to block.
    Here,
}

impl OpenFile {
    pub(super) fn new(file: File, pool: FilePool, access: Access) -> OpenFile {
        // The file has just been opened by its name.
        let stands = if access == Access::Memory { clock::turn() } else { None };
        let found = Mutex::new(Found { stands, resident: None });
        OpenFile { file: Some(file), pool, access, found }
    }

    /// The pool that reads the file if it is not in memory.
    pub fn pool(&self) -> &FilePool {
        &self.pool
    }

    /// Whether the calling thread blocks to read it.
    pub(crate) fn waits_here(&self) -> bool {
        self.access == Access::Here
    }

    /// Whether the file is local and opened for reading, so that reading its metadata does not
    /// block.
    pub fn is_local(&self) -> bool {
        self.access == Access::Memory
    }

    /// Whether the file still has a name and is unchanged since it was opened.
    pub fn stands(&self, opened: &FileInfo) -> bool {
        if self.stood() {
            return true;
        }
        let Ok(stat) = rustix::fs::fstat(self) else { return false };
        let stands = stat.st_nlink > 0 && FileInfo::from(stat) == *opened;
        if stands {
            self.found().stands = clock::turn();
        }
        stands
    }

    /// Whether that was found in this turn.
    fn stood(&self) -> bool {
        let turn = clock::turn();
        turn.is_some() && self.found().stands == turn
    }

    /// Whether these bytes were found in memory in this turn. Otherwise `look` finds out.
    pub(super) fn is_resident(&self, bytes: Range<u64>, look: impl FnOnce() -> bool) -> bool {
        let turn = clock::turn();
        if let Some((when, known)) = &self.found().resident
            && turn == Some(*when)
            && known.start <= bytes.start
            && bytes.end <= known.end
        {
            return true;
        }
        let resident = look();
        if resident {
            self.found().resident = turn.map(|turn| (turn, bytes));
        }
        resident
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this thread may close it.
    fn closes_here(&self, file: &File) -> bool {
        let has_name =
            || self.stood() || rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink > 0);
        super::pool::may_wait_here()
            || match self.access {
                Access::Memory => has_name(),
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
