//! The body of an answer in the memory tiers.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use rustix::process::{Resource, getrlimit};
use weir_engine::{FileInfo, Files, OpenFile};

/// From this length on, sending a file costs less than copying memory.
const FILE_FROM: u64 = 32 * 1024;

/// The most bodies in memory files (memfd). They get an eighth of the descriptors, since most are
/// for connections.
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
    /// In a memory file (memfd); its length.
    Shared(Arc<OpenFile>, u64),
    /// In a cache file that is kept open.
    File(Range),
}

/// A part of a cache file.
#[derive(Debug, Clone)]
pub struct Range {
    /// The file.
    pub file: Arc<OpenFile>,
    /// Its metadata when it was opened.
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
            // Copied, since the bytes may be parts of much larger buffers.
            Some(Err(_)) | None => StoredBody::Bytes(Bytes::copy_from_slice(bytes)),
        }
    }

    /// Bytes of memory that the body takes.
    pub(crate) fn memory(&self) -> u64 {
        match self {
            StoredBody::Bytes(bytes) => bytes.len() as u64,
            StoredBody::Shared(_, length) => length.next_multiple_of(4096),
            StoredBody::File(_) => 0,
        }
    }

    /// Descriptors that the body takes.
    pub(crate) fn files(&self) -> usize {
        usize::from(!matches!(self, StoredBody::Bytes(_)))
    }
}

/// Whether reading a body of this length and sending it costs less than sending it from its file.
pub fn is_short(length: u64) -> bool {
    length < FILE_FROM
}

impl Range {
    /// Whether the file is still there, with the same metadata.
    pub fn stands(&self) -> bool {
        self.file.stands(&self.info)
    }
}
