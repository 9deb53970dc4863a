//! What came of opening a file.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use weir_engine::{FileInfo, FileKind, OpenFile};
use weir_log::Cause;

/// An open file, and what it is.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The file; not there for a directory that was only asked about.
    pub file: Arc<OpenFile>,
    /// What it is.
    pub info: FileInfo,
}

/// What a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat(pub FileInfo);

impl Stat {
    /// A directory.
    pub fn is_directory(&self) -> bool {
        self.0.kind == FileKind::Directory
    }
}

/// Why a file could not be opened or asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileError {
    pub(super) errno: Errno,
    /// The call that failed, as nginx's log names it.
    pub(super) call: &'static str,
}

impl FileError {
    pub(super) fn new(error: &io::Error, call: &'static str) -> FileError {
        let errno = match error.kind() {
            // No thread takes the operation: the pool's queue is full.
            io::ErrorKind::ResourceBusy => Errno::BUSY,
            _ => Errno::from_io_error(error).unwrap_or(Errno::IO),
        };
        FileError { errno, call }
    }

    /// There is no such file.
    pub fn is_absent(&self) -> bool {
        matches!(self.errno, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG)
    }

    /// There is no file of this name, though its directory may be there.
    pub fn is_missing_name(&self) -> bool {
        self.errno == Errno::NOENT
    }

    /// The system refuses it.
    pub fn is_denied(&self) -> bool {
        self.errno == Errno::ACCESS
    }

    /// `disable_symlinks` refuses it.
    pub fn is_symlink(&self) -> bool {
        matches!(self.errno, Errno::LOOP | Errno::MLINK)
    }
}

/// `(2: No such file or directory)`
impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Cause(&self.errno.into()).fmt(f)
    }
}
