//! The files of a site's access logs, with the parameters that belong to a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weir_log::LogFile;

/// A file of an `access_log`, or all files with names from one template.
#[derive(Debug, Clone)]
pub struct LogTarget {
    /// The path, or the template as written.
    pub path: PathBuf,
    /// The open file. `None` for a template.
    pub file: Option<Arc<LogFile>>,
    /// The buffering of lines.
    pub buffer: Option<Buffer>,
}

/// `buffer=`, `flush=` and `gzip=`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// The most bytes that are buffered.
    pub size: usize,
    /// The longest time that a line stays in the buffer.
    pub flush: Option<Duration>,
    /// The level of compression.
    pub gzip: Option<u32>,
}
