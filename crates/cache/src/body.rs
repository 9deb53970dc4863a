//! Where the body of an answer at hand is.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use rustix::process::{Resource, getrlimit};
use weir_engine::{FileInfo, Files, OpenFile};

/// From this length on it costs less to send a file than to copy memory.
const FILE_FROM: u64 = 32 * 1024;

/// The most bodies that are files of memory: most descriptors are for connections.
pub(crate) fn shared_files() -> usize {
    static MOST: LazyLock<usize> = LazyLock::new(|| {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        usize::try_from(limit / 8).unwrap_or(usize::MAX).min(4096)
    });
    *MOST
}

/// A body.
#[derive(Debug, Clone)]
pub enum StoredBody {
    /// In memory.
    Bytes(Bytes),
    /// In a file that is memory; its length.
    Shared(Arc<OpenFile>, u64),
    /// In a file of the disk that is kept open.
    File(Range),
}

/// A part of a file of the disk.
#[derive(Debug, Clone)]
pub struct Range {
    /// The file.
    pub file: Arc<OpenFile>,
    /// What it was when it was opened.
    pub info: FileInfo,
    /// Where the part begins.
    pub offset: u64,
    /// Its length.
    pub length: u64,
}

impl StoredBody {
    /// A body in memory, in the form that costs least to send.
    pub fn in_memory(bytes: &[u8], files: &Files) -> StoredBody {
        let length = bytes.len() as u64;
        let shared = (!is_short(length)).then(|| files.memory_file(bytes));
        match shared {
            Some(Ok(file)) => StoredBody::Shared(file, length),
            // The bytes may be parts of much larger buffers.
            Some(Err(_)) | None => StoredBody::Bytes(Bytes::copy_from_slice(bytes)),
        }
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory(&self) -> u64 {
        match self {
            StoredBody::Bytes(bytes) => bytes.len() as u64,
            StoredBody::Shared(_, length) => length.next_multiple_of(4096),
            StoredBody::File(_) => 0,
        }
    }

    /// Descriptors that it takes.
    pub(crate) fn files(&self) -> usize {
        usize::from(!matches!(self, StoredBody::Bytes(_)))
    }
}

/// Whether it costs less to read so many bytes and to send them than to send them from their file.
pub fn is_short(length: u64) -> bool {
    length < FILE_FROM
}

impl Range {
    /// Whether the file still is there, and what it was.
    pub fn stands(&self) -> bool {
        self.file.stands(&self.info)
    }
}
