//! An open file, and where it is closed.

use std::fs::File;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{FileInfo, FilePool};
use crate::clock;

/// A file that many may read or send, and that no loop waits for when it is closed.
///
/// Closing is more than forgetting a number: NFS and FUSE tell a server, and with the last reference to a file that
/// was removed its blocks are freed. A thread of the pool does either.
///
/// What a turn of a loop finds out about a file holds to the turn's end, and is not asked for again.
#[derive(Debug)]
pub struct OpenFile {
    /// There until it is dropped.
    file: Option<File>,
    /// The pool with the threads that read it when it is not in memory.
    pool: FilePool,
    access: Access,
    found: Mutex<Found>,
}

/// What was found out, and in which turn.
#[derive(Debug, Default)]
struct Found {
    /// It had a name, and was what it was when it was opened.
    stands: Option<Instant>,
    /// These bytes were in memory.
    resident: Option<(Instant, Range<u64>)>,
}

/// Which thread waits for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// One of the pool. It was opened for reading, from memory, so that closing it needs none unless it was removed.
    Memory,
    /// One of the pool.
    Pool,
    /// The calling thread: the file is memory, or its users want to wait.
    Here,
}

impl OpenFile {
    pub(super) fn new(file: File, pool: FilePool, access: Access) -> OpenFile {
        // Of what was opened by its name the kernel was asked a moment ago.
        let stands = if access == Access::Memory { clock::turn() } else { None };
        let found = Mutex::new(Found { stands, resident: None });
        OpenFile { file: Some(file), pool, access, found }
    }

    /// The pool with the threads that read it when it is not in memory.
    pub fn pool(&self) -> &FilePool {
        &self.pool
    }

    /// The calling thread also waits.
    pub(crate) fn waits_here(&self) -> bool {
        self.access == Access::Here
    }

    /// It is a local file, opened for reading: to ask what it is needs no disk.
    pub fn is_local(&self) -> bool {
        self.access == Access::Memory
    }

    /// Whether it still has a name, and is what it was when it was opened.
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

    /// Whether that was found out in this turn.
    fn stood(&self) -> bool {
        let turn = clock::turn();
        turn.is_some() && self.found().stands == turn
    }

    /// Whether these bytes were found in memory in this turn; if not, `look` says whether they are.
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

    /// Whether it may be closed here.
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
