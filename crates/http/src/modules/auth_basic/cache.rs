//! User files that were read before and have not changed since. For threads of the pool: it asks the disk.

#![expect(clippy::disallowed_methods, reason = "the name is looked at when it is put together")]

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Files that are kept; a name may come from a client's request.
const MOST: usize = 16;
/// Larger files are read each time.
const LARGEST: u64 = 1 << 20;
/// A file that was changed so lately may change again without another time stamp.
const SETTLED: Duration = Duration::from_secs(2);

/// The files of a process.
static FILES: Mutex<Option<HashMap<PathBuf, CachedUserFile>>> = Mutex::new(None);

#[derive(Debug)]
struct CachedUserFile {
    stamp: Stamp,
    content: Arc<[u8]>,
}

/// What differs when a file's content does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    len: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(info: &Metadata) -> Stamp {
        Stamp {
            file: (info.dev(), info.ino()),
            len: info.len(),
            modified: (info.mtime(), info.mtime_nsec()),
            changed: (info.ctime(), info.ctime_nsec()),
        }
    }

    fn is_settled(&self, now: SystemTime) -> bool {
        let changed = u64::try_from(self.changed.0).unwrap_or(0);
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(changed);
        now.duration_since(changed).is_ok_and(|age| age > SETTLED)
    }
}

/// The file's content.
pub fn read(path: &Path) -> io::Result<Arc<[u8]>> {
    // Opened each time: whether that is allowed may change, too.
    let mut file = File::open(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    let now = SystemTime::now();
    if let Some(content) = known(path, &stamp) {
        return Ok(content);
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    let content: Arc<[u8]> = content.into();
    if stamp.len <= LARGEST && stamp.is_settled(now) {
        remember(path, CachedUserFile { stamp, content: content.clone() });
    }
    Ok(content)
}

fn known(path: &Path, stamp: &Stamp) -> Option<Arc<[u8]>> {
    let files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let known = files.as_ref()?.get(path)?;
    (known.stamp == *stamp).then(|| known.content.clone())
}

fn remember(path: &Path, known: CachedUserFile) {
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let files = files.get_or_insert_default();
    if files.len() >= MOST && !files.contains_key(path) {
        files.clear();
    }
    files.insert(path.to_owned(), known);
}

#[cfg(test)]
mod tests {
    use std::fs::FileTimes;

    use super::*;

    #[test]
    fn an_old_file_is_read_once_and_a_changed_one_again() {
        let path = std::env::temp_dir().join(format!("weir-users-{}", std::process::id()));
        std::fs::write(&path, "one").unwrap();
        assert_eq!(&*read(&path).unwrap(), b"one");
        let stamp = Stamp::of(&path.metadata().unwrap());
        // Just written: not remembered.
        assert!(known(&path, &stamp).is_none());
        let later = SystemTime::now() + SETTLED * 2;
        assert!(stamp.is_settled(later));

        remember(&path, CachedUserFile { stamp, content: b"remembered"[..].into() });
        assert_eq!(&*read(&path).unwrap(), b"remembered");
        let file = File::options().write(true).open(&path).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).unwrap();
        assert_eq!(&*read(&path).unwrap(), b"one");
        std::fs::remove_file(&path).unwrap();
        assert!(read(&path).is_err());
    }
}
