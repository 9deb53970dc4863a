//! Logs with variables in their names. Their files are opened for each line, or kept open for a
//! while.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::file_operation;
use weir_log::{Cause, Level, Log, LogFile};

/// `open_log_file_cache`
#[derive(Debug, Clone, Copy)]
pub struct OpenLogFiles {
    /// The most files that stay open. The least recently used one is closed.
    pub max: usize,
    /// A file that is not used for this long is closed.
    pub inactive: Duration,
    /// The number of uses from which a file stays open. Uses are counted while the file is in the
    /// cache.
    pub min_uses: u64,
    /// How long a file stays open before its name is looked up again.
    pub valid: Duration,
}

impl Default for OpenLogFiles {
    fn default() -> Self {
        let (inactive, valid) = (Duration::from_secs(10), Duration::from_secs(60));
        OpenLogFiles { max: 0, inactive, min_uses: 1, valid }
    }
}

/// A line for a file with variables in its name.
#[derive(Debug)]
pub struct NamedLine {
    /// The file's name.
    pub path: PathBuf,
    /// The request's root, which must exist. Otherwise a client could create files by host names.
    pub root: Option<PathBuf>,
    /// How long the file stays open. `None`: it is opened for each line.
    pub cache: Option<OpenLogFiles>,
    /// The line.
    pub line: Vec<u8>,
    /// The number of the connection.
    pub connection: u64,
    /// The error log of the request or session, for failures to open the file.
    pub log: Arc<Log>,
    /// The description of the request for that log.
    pub about: String,
}

impl NamedLine {
    /// The bytes that it takes in memory.
    pub(super) fn size(&self) -> usize {
        let root = self.root.as_ref().map_or(0, |root| root.as_os_str().len());
        let texts = self.path.as_os_str().len() + root + self.line.len() + self.about.len();
        size_of::<NamedLine>() + texts
    }
}

/// The open files, in the thread that writes.
#[derive(Debug, Default)]
pub struct OpenFiles {
    files: HashMap<PathBuf, Open>,
}

#[derive(Debug)]
struct Open {
    /// `None` until the file is used often enough to stay open.
    file: Option<Arc<LogFile>>,
    opened: Instant,
    used: Instant,
    uses: u64,
}

impl OpenFiles {
    /// Writes each line to its file. This blocks, so a thread of the file pool calls it.
    pub fn write(&mut self, lines: Vec<NamedLine>) {
        let now = Instant::now();
        self.expire(&lines, now);
        for named in lines {
            let (log, connection, about) = (&named.log, Some(named.connection), &named.about);
            if let Some(root) = &named.root
                && let Err(error) = directory(root)
            {
                let (root, cause) = (root.display(), Cause(&error));
                let text = format_args!("testing \"{root}\" existence failed {cause}{about}");
                log.write(Level::Error, connection, text);
                continue;
            }
            let write = || self.file(&named, now).and_then(|file| file.write_lines(&named.line));
            let written = file_operation("write", &*named.path, write);
            if let Err(error) = written {
                let (path, cause) = (named.path.display(), Cause(&error));
                let text = format_args!("open() \"{path}\" failed {cause}{about}");
                log.write(Level::Crit, connection, text);
            }
        }
    }

    fn file(&mut self, named: &NamedLine, now: Instant) -> io::Result<Arc<LogFile>> {
        let Some(cache) = named.cache else { return Ok(Arc::new(LogFile::open(&named.path)?)) };
        if let Some(open) = self.files.get_mut(&named.path) {
            (open.used, open.uses) = (now, open.uses + 1);
            if let Some(file) = &open.file {
                return Ok(Arc::clone(file));
            }
            let file = Arc::new(LogFile::open(&named.path)?);
            open.opened = now;
            open.file = (open.uses >= cache.min_uses).then(|| Arc::clone(&file));
            return Ok(file);
        }
        let file = Arc::new(LogFile::open(&named.path)?);
        if self.files.len() >= cache.max {
            let oldest = self.files.iter().min_by_key(|(_, open)| open.used);
            let oldest = oldest.map(|(path, _)| path.clone());
            oldest.and_then(|path| self.files.remove(&path));
        }
        let kept = (cache.min_uses <= 1).then(|| Arc::clone(&file));
        let open = Open { file: kept, opened: now, used: now, uses: 1 };
        self.files.insert(named.path.clone(), open);
        Ok(file)
    }

    /// Closes files that were not used for long, or may have been renamed.
    fn expire(&mut self, lines: &[NamedLine], now: Instant) {
        let Some(cache) = lines.iter().find_map(|named| named.cache) else { return };
        self.files.retain(|_, open| {
            let idle = now.saturating_duration_since(open.used) >= cache.inactive;
            let old = now.saturating_duration_since(open.opened) >= cache.valid;
            !idle && !old
        });
    }
}

fn directory(root: &Path) -> io::Result<()> {
    if std::fs::metadata(root)?.is_dir() {
        return Ok(());
    }
    Err(io::Error::from(rustix::io::Errno::NOTDIR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(path: &Path, root: &Path, cache: Option<OpenLogFiles>) -> NamedLine {
        let (path, root) = (path.to_owned(), Some(root.to_owned()));
        let (connection, about) = (1, String::new());
        let (line, log) = (b"line\n".to_vec(), Arc::new(Log::new(Vec::new())));
        NamedLine { path, root, cache, line, connection, log, about }
    }

    #[test]
    fn files_stay_open_up_to_a_number() {
        let dir = std::env::temp_dir().join(format!("weir-log-path-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let cache = Some(OpenLogFiles { max: 2, ..OpenLogFiles::default() });
        let mut files = OpenFiles::default();
        for name in ["a", "b", "a", "c"] {
            files.write(vec![line(&dir.join(name), &dir, cache)]);
        }
        assert_eq!(files.files.len(), 2);
        assert!(!files.files.contains_key(&dir.join("b")));
        assert_eq!(std::fs::read(dir.join("a")).unwrap(), b"line\nline\n");
        files.write(vec![line(&dir.join("d"), &dir, None)]);
        assert_eq!(files.files.len(), 2);
        assert!(dir.join("d").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_file_stays_open_once_it_was_used_often_enough() {
        let dir = std::env::temp_dir().join(format!("weir-log-uses-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (path, mut files) = (dir.join("a"), OpenFiles::default());
        let cache = Some(OpenLogFiles { max: 2, min_uses: 2, ..OpenLogFiles::default() });
        for stays_open in [false, true, true] {
            files.write(vec![line(&path, &dir, cache)]);
            assert_eq!(files.files[&path].file.is_some(), stays_open);
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"line\nline\nline\n");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_root_that_is_not_there_gets_no_log() {
        let dir = std::env::temp_dir();
        let path = dir.join(format!("weir-log-none-{}", std::process::id()));
        OpenFiles::default().write(vec![line(&path, &dir.join("no such root"), None)]);
        assert!(!path.exists());
    }
}
