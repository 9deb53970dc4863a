//! Results of opening and examining files.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;
use weir_engine::{FileInfo, FileKind, OpenFile};
use weir_log::Cause;

/// An open file and its attributes.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The open file.
    pub file: Arc<OpenFile>,
    /// Its attributes.
    pub info: FileInfo,
}

/// The attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat(pub FileInfo);

impl Stat {
    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.0.kind == FileKind::Directory
    }
}

/// Why a file could not be opened or examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileError {
    pub(super) errno: Errno,
    /// The failed call, as nginx logs it.
    pub(super) call: &'static str,
}

impl FileError {
    pub(super) fn new(error: &io::Error, call: &'static str) -> FileError {
        let errno = match error.kind() {
            // The queue of the thread pool is full.
            io::ErrorKind::ResourceBusy => Errno::BUSY,
            _ => Errno::from_io_error(error).unwrap_or(Errno::IO),
        };
        FileError { errno, call }
    }

    /// Whether the file does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self.errno, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG)
    }

    /// Whether the directory has no file of this name.
    pub fn is_missing_name(&self) -> bool {
        self.errno == Errno::NOENT
    }

    /// Whether a permission is missing.
    pub fn is_denied(&self) -> bool {
        self.errno == Errno::ACCESS
    }

    /// Whether `disable_symlinks` refuses the file.
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
