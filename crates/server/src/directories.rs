//! Directories for temporary files. They are made before a worker serves, and given to the workers'
//! user. Directories of logs must not belong to that user. nginx: ngx_create_paths.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use weir_log::{Cause, Log, OpenLogs, log};
use weir_sys::guarded;

use crate::config::User;
use crate::sockets::SocketsFailed;

/// The mode of the directory that contains the others.
const PARENT: u32 = 0o755;
/// The mode of the others, for their owner alone.
const LEAF: u32 = 0o700;

/// Makes missing directories. Existing ones keep their content. The directory `own` is made as
/// their parent. Modes do not depend on the umask, which is 0 in a daemon.
pub fn create<'a>(
    paths: impl Iterator<Item = &'a Path>,
    own: &Path,
    user: Option<&User>,
    log: &Log,
) -> Result<(), SocketsFailed> {
    for path in paths {
        let there = if path.parent() == Some(own) { parents(own) } else { Ok(()) };
        let made = || guarded::directory(path, LEAF, user.map(|user| user.uid));
        there.and_then(|()| made()).map_err(|(call, e)| {
            log!(log, Emerg, None, "{call} \"{}\" failed {}", path.display(), Cause(&e));
            SocketsFailed
        })?;
    }
    Ok(())
}

/// Warns if the workers' user may change a directory of log files: the master opens files there as
/// root.
pub fn warn_of_logs(logs: &OpenLogs, user: Option<&User>, log: &Log) {
    let Some(user) = user.filter(|user| user.uid != 0) else { return };
    let paths = logs.paths();
    let directories: BTreeSet<&Path> = paths.iter().filter_map(|path| path.parent()).collect();
    for directory in directories {
        let Ok(found) = std::fs::metadata(directory) else { continue };
        let mode = found.mode();
        let writes = found.uid() == user.uid && mode & 0o200 != 0
            || found.gid() == user.gid && mode & 0o020 != 0
            || mode & 0o1002 == 0o002;
        if writes {
            let (shown, name) = (directory.display(), user.name.to_string_lossy());
            let text = format_args!(
                "the log directory \"{shown}\" can be changed by the workers' user \"{name}\", it should be root's"
            );
            log!(log, Warn, None, "{text}");
        }
    }
}

/// Makes a directory and its parents.
fn parents(path: &Path) -> Result<(), (&'static str, io::Error)> {
    let make = || guarded::directory(path, PARENT, None);
    match (make(), path.parent()) {
        (Err((_, e)), Some(above)) if e.kind() == io::ErrorKind::NotFound => {
            parents(above).and_then(|()| make())
        }
        (made, _) => made,
    }
}
