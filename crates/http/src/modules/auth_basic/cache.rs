//! Caches user files that have not changed since they were read. Runs on threads of the pool, since
//! it reads the disk.

#![expect(clippy::disallowed_methods, reason = "the name is looked at when it is put together")]

use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;

use super::users;

/// The most files in the cache. Names of files may depend on the request.
const MOST: usize = 16;
/// Larger files are not cached: they are read line by line each time.
const LARGEST: u64 = 1 << 20;
/// A file that was changed more recently than this may change again without a new time stamp. So it
/// is not cached.
const SETTLED: Duration = Duration::from_secs(2);

/// The cache of this process.
static FILES: Mutex<Option<HashMap<PathBuf, CachedUserFile>>> = Mutex::new(None);

#[derive(Debug)]
struct CachedUserFile {
    stamp: Stamp,
    content: Arc<[u8]>,
}

/// The attributes that show whether a file has changed.
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

/// The stored password of a user.
pub fn password_of(path: &Path, user: &[u8]) -> io::Result<Option<Vec<u8>>> {
    // The file is opened each time, since its permissions may change, too. With O_NONBLOCK, a pipe
    // without a writer is empty instead of blocking.
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path)?;
    let stamp = Stamp::of(&file.metadata()?);
    if stamp.len > LARGEST {
        return users::search(BufReader::new(file), user);
    }
    let content = read(path, file, stamp)?;
    Ok(users::find(&content, user).map(<[u8]>::to_vec))
}

/// The content of a small file. The length is bounded, since a device has no end.
fn read(path: &Path, file: File, stamp: Stamp) -> io::Result<Arc<[u8]>> {
    let now = SystemTime::now();
    if let Some(content) = known(path, &stamp) {
        return Ok(content);
    }
    let mut content = Vec::new();
    file.take(LARGEST).read_to_end(&mut content)?;
    let content: Arc<[u8]> = content.into();
    if stamp.is_settled(now) {
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
        let password = || password_of(&path, b"ann").unwrap();
        std::fs::write(&path, "ann:one").unwrap();
        assert_eq!(password(), Some(b"one".to_vec()));
        let stamp = Stamp::of(&path.metadata().unwrap());
        // A file that was just written is not cached.
        assert!(known(&path, &stamp).is_none());
        let later = SystemTime::now() + SETTLED * 2;
        assert!(stamp.is_settled(later));

        remember(&path, CachedUserFile { stamp, content: b"ann:two"[..].into() });
        assert_eq!(password(), Some(b"two".to_vec()));
        let file = File::options().write(true).open(&path).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).unwrap();
        assert_eq!(password(), Some(b"one".to_vec()));
        std::fs::remove_file(&path).unwrap();
        assert!(password_of(&path, b"ann").is_err());
    }
}
