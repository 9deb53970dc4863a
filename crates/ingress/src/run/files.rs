//! Files of certificates, keys and passwords. Only this user can read them or list their directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a file stays after the last configuration that named it. Requests that have begun may
/// still read it.
const KEPT: Duration = Duration::from_secs(600);

/// The files of the directory, each with the last time that a configuration named it.
#[derive(Debug)]
pub struct Files {
    dir: PathBuf,
    named: BTreeMap<PathBuf, Instant>,
}

impl Files {
    /// Adopts the files of an earlier process, which are removed in their time. Sockets in the
    /// directory are weir's.
    pub fn new(dir: &Path, now: Instant) -> Files {
        let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
        let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
        let entries = entries.filter(is_file);
        let named = entries.map(|entry| (entry.path(), now)).collect();
        Files { dir: dir.to_owned(), named }
    }

    /// Writes the files that a configuration names.
    pub fn write(&mut self, files: &BTreeMap<PathBuf, Arc<[u8]>>, now: Instant) -> io::Result<()> {
        crate::state::write(files)?;
        self.named.extend(files.keys().map(|path| (path.clone(), now)));
        Ok(())
    }

    /// Removes files that were named too long ago. `in_use` are those of the served configuration.
    pub fn sweep(&mut self, in_use: &BTreeSet<PathBuf>, now: Instant) {
        let dir = &self.dir;
        self.named.retain(|path, last| {
            if in_use.contains(path) {
                *last = now;
            }
            let keep = now.saturating_duration_since(*last) < KEPT;
            // Files elsewhere are not this program's.
            if !keep && path.parent() == Some(dir) {
                let _ = fs::remove_file(path);
            }
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_are_for_their_owner_alone_and_go_when_no_configuration_names_them() {
        let dir = weir_testkit::Dir::new();
        let state = dir.file("state");
        let begin = Instant::now();
        let mut files = Files::new(&state, begin);
        let paths = ["tls-1", "tls-2"].map(|name| state.join(name));
        let content = paths.iter().map(|path| (path.clone(), b"key".as_slice().into())).collect();
        files.write(&content, begin).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&state), mode(&paths[0])), (0o711, 0o600));
        let in_use = BTreeSet::from([paths[0].clone()]);
        files.sweep(&in_use, begin + KEPT / 2);
        assert!(paths[1].exists());
        files.sweep(&in_use, begin + KEPT * 2);
        assert_eq!((paths[0].exists(), paths[1].exists()), (true, false));
        // Another process adopts the files, and leaves sockets alone.
        let socket = state.join("tls.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let mut next = Files::new(&state, begin);
        next.sweep(&BTreeSet::new(), begin + KEPT);
        assert!(!paths[0].exists() && socket.exists());
    }
}
