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

/// The most bytes of files that only earlier configurations name. The directory may be in memory,
/// and a Secret may change many times in [`KEPT`].
const MOST_UNUSED: u64 = 32 << 20;

/// The files of the directory.
#[derive(Debug)]
pub struct Files {
    dir: PathBuf,
    named: BTreeMap<PathBuf, Named>,
}

#[derive(Clone, Copy, Debug)]
struct Named {
    /// The last time that a configuration named the file.
    last: Instant,
    size: u64,
}

impl Files {
    /// Adopts the files of an earlier process, which are removed in their time. Sockets in the
    /// directory are weir's.
    pub fn new(dir: &Path, now: Instant) -> Files {
        let is_file = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
        let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
        let entries = entries.filter(is_file);
        let named = entries.map(|entry| {
            let size = entry.metadata().map_or(0, |about| about.len());
            (entry.path(), Named { last: now, size })
        });
        let named = named.collect();
        Files { dir: dir.to_owned(), named }
    }

    /// Writes the files that a configuration names. `in_use` are those of the served configuration.
    pub fn write(
        &mut self,
        files: &BTreeMap<PathBuf, Arc<[u8]>>,
        in_use: &BTreeSet<PathBuf>,
        now: Instant,
    ) -> io::Result<()> {
        // A file that cannot be written may still be there in part. It is removed in its time.
        let named = |(path, content): (&PathBuf, &Arc<[u8]>)| {
            (path.clone(), Named { last: now, size: content.len() as u64 })
        };
        self.named.extend(files.iter().map(named));
        self.remove_oldest(|path| in_use.contains(path) || files.contains_key(path));
        crate::state::write(files)
    }

    /// Removes the files that were named longest ago while those without a use have too many bytes.
    fn remove_oldest(&mut self, is_used: impl Fn(&PathBuf) -> bool) {
        let dir = &self.dir;
        let unused = self.named.iter().filter(|(path, _)| !is_used(path));
        let unused = unused.filter(|(path, _)| path.parent() == Some(dir));
        let mut unused: Vec<_> = unused.map(|(path, named)| (path.clone(), *named)).collect();
        let mut bytes: u64 = unused.iter().map(|(_, named)| named.size).sum();
        unused.sort_by_key(|(_, named)| named.last);
        for (path, named) in unused {
            if bytes <= MOST_UNUSED {
                return;
            }
            bytes -= named.size;
            let _ = fs::remove_file(&path);
            self.named.remove(&path);
        }
    }

    /// Removes files that were named too long ago. `in_use` are those of the served configuration.
    pub fn sweep(&mut self, in_use: &BTreeSet<PathBuf>, now: Instant) {
        let dir = &self.dir;
        self.named.retain(|path, named| {
            if in_use.contains(path) {
                named.last = now;
            }
            let keep = now.saturating_duration_since(named.last) < KEPT;
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
        files.write(&content, &BTreeSet::new(), begin).unwrap();
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

    #[test]
    fn files_that_change_all_the_time_do_not_fill_the_directory() {
        let dir = weir_testkit::Dir::new();
        let state = dir.file("state");
        let begin = Instant::now();
        let mut files = Files::new(&state, begin);
        let path = |n: u32| state.join(format!("auth-{n:03}"));
        let served = BTreeSet::from([path(0)]);
        let content: Arc<[u8]> = vec![b'x'; 1 << 20].into();
        for n in 0..100 {
            let now = begin + Duration::from_secs(n.into());
            files.write(&BTreeMap::from([(path(n), content.clone())]), &served, now).unwrap();
        }
        let left: Vec<u32> = (0..100).filter(|n| path(*n).exists()).collect();
        // The served one, the last one, and the youngest of those without a use.
        let wanted: Vec<u32> = std::iter::once(0).chain(67..100).collect();
        assert_eq!(left, wanted);
    }
}
