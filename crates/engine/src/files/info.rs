//! What is known about a file.

use std::io;

use rustix::fs::FileType;

/// What kind of thing a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link that was not followed.
    Symlink,
    /// A device, a FIFO or a socket.
    Other,
}

/// What is known about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// The kind of thing.
    pub kind: FileKind,
    /// The size in bytes.
    pub len: u64,
    /// The last change of the content, in seconds since 1970 (UTC).
    pub modified: i64,
    /// Nanoseconds within that second.
    pub modified_nsec: u32,
    /// The inode number.
    pub inode: u64,
    /// The device number of the file system.
    pub device: u64,
    /// The owner's user id.
    pub uid: u32,
    /// Permission bits.
    pub permissions: u32,
}

impl FileInfo {
    /// Reads the metadata of an open file. On a remote file system this may block.
    pub fn of(file: impl std::os::fd::AsFd) -> io::Result<Self> {
        Ok(rustix::fs::fstat(file)?.into())
    }
}

impl From<rustix::fs::Stat> for FileInfo {
    // The widths of these fields differ between architectures.
    #[allow(clippy::unnecessary_cast)]
    fn from(stat: rustix::fs::Stat) -> Self {
        FileInfo {
            kind: match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => FileKind::File,
                FileType::Directory => FileKind::Directory,
                FileType::Symlink => FileKind::Symlink,
                _ => FileKind::Other,
            },
            len: u64::try_from(stat.st_size).unwrap_or(0),
            modified: stat.st_mtime as i64,
            modified_nsec: stat.st_mtime_nsec as u32,
            inode: stat.st_ino as u64,
            device: stat.st_dev as u64,
            uid: stat.st_uid,
            permissions: stat.st_mode & 0o7777,
        }
    }
}
