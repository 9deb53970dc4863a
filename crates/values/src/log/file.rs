//! The files of a site's access logs, with the parameters that all uses of a file share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use weir_log::LogFile;

/// A file that some `access_log` names, or a group of files with names from one template.
#[derive(Debug, Clone)]
pub struct LogTarget {
    /// Its path; of a group, the name as written.
    pub path: PathBuf,
    /// The open file; none of a group.
    pub file: Option<Arc<LogFile>>,
    /// How lines are gathered before they are written.
    pub buffer: Option<Buffer>,
}

/// `buffer=`, `flush=` and `gzip=`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// So many bytes are gathered at the most.
    pub size: usize,
    /// The oldest line waits no longer than this.
    pub flush: Option<Duration>,
    /// Level of compression.
    pub gzip: Option<u32>,
}
