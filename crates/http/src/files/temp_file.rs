//! Temporary files: where `client_body_temp_path`, `proxy_temp_path` and kin put them.

#![expect(clippy::disallowed_methods, reason = "names are numbers")]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_engine::{Handle, OpenFile, Rank, file_operation};

/// Digits in a temporary file's name, as nginx has.
pub const DIGITS: usize = 10;
/// Attempts to find a name that is not taken, before the directory counts as unusable.
const ATTEMPTS: usize = 1000;

/// A directory of temporary files, and how many directories below it share them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TempPath {
    /// The directory.
    pub directory: PathBuf,
    /// For each level below: how many of the name's last digits name a directory.
    pub levels: Vec<usize>,
}

/// What becomes of a temporary file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It has none: no other process can open the file.
    Nameless,
    /// It is removed with the last use.
    WhileUsed,
    /// It stays when the file is closed.
    Forever,
}

/// An open temporary file.
pub struct TempFile {
    /// Open for reading and writing.
    pub file: Arc<OpenFile>,
    /// Its name; only others can use it if it was kept.
    pub path: PathBuf,
    /// It has that name: others can open it as long as it is used.
    pub named: bool,
    /// Removes the name in the end, on a thread of this loop's pool.
    remover: Cell<Option<Handle>>,
}

impl TempPath {
    /// Creates a file; the directory, too, if it is missing.
    pub async fn create(&self, handle: &Handle, keep: Keep) -> Result<TempFile, Failed> {
        let this = self.clone();
        let made = handle.files().write(move || this.create_waiting(keep)).await;
        let (file, path) =
            made.map_err(|error| Failed { path: self.directory.clone(), error })??;
        let remover = (keep == Keep::WhileUsed).then(|| handle.clone());
        let (file, named) = (handle.files().hold(file), keep != Keep::Nameless);
        Ok(TempFile { file, path, named, remover: Cell::new(remover) })
    }

    fn create_waiting(&self, keep: Keep) -> Result<(File, PathBuf), Failed> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..ATTEMPTS {
            let number = NEXT.fetch_add(1, Ordering::Relaxed) % 10u64.pow(DIGITS as u32);
            let path = self.path_of(&format!("{number:0DIGITS$}"));
            let opened = match open(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    path.parent().map_or(Ok(()), make).and_then(|()| open(&path))
                }
                opened => opened,
            };
            match opened {
                Ok(file) => {
                    if keep == Keep::Nameless {
                        let _ = std::fs::remove_file(&path);
                    }
                    return Ok((file, path));
                }
                // Another process has files here, or has left thousands: names go on elsewhere.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    NEXT.fetch_add(far(), Ordering::Relaxed);
                }
                Err(error) => return Err(Failed { path, error }),
            }
        }
        Err(Failed { path: self.directory.clone(), error: io::ErrorKind::AlreadyExists.into() })
    }

    /// `0000000012` with levels 1 and 2 lies in `2/01/`.
    fn path_of(&self, name: &str) -> PathBuf {
        let mut path = self.directory.clone();
        let mut end = name.len();
        for &digits in &self.levels {
            let start = end.saturating_sub(digits);
            path.push(name.get(start..end).unwrap_or_default());
            end = start;
        }
        path.push(name);
        path
    }
}

/// Why there is no temporary file.
#[derive(Debug)]
pub struct Failed {
    /// What was to be created.
    pub path: PathBuf,
    /// What the system said.
    pub error: io::Error,
}

impl TempFile {
    /// A file that was there before. Its name is removed with the last use by this loop, or stays.
    pub fn of(file: Arc<OpenFile>, path: PathBuf, remover: Option<Handle>) -> TempFile {
        TempFile { file, path, named: true, remover: Cell::new(remover) }
    }

    /// The name stays: the caller moves or removes it.
    pub fn keep(&self) {
        self.remover.set(None);
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let Some(handle) = self.remover.take() else { return };
        let path = std::mem::take(&mut self.path);
        let unlink = |path: &Path| std::fs::remove_file(path);
        let remove = move || drop(file_operation("unlink", &*path, || unlink(&path)));
        handle.files().default_pool().insist(Rank::Later, remove);
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = std::fs::OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    file_operation("open", path, || options.open(path))
}

/// How many names are skipped behind one that is taken.
fn far() -> u64 {
    let mut bytes = [0; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(_) => u32::from_ne_bytes(bytes).into(),
        Err(_) => 123_457,
    }
}

/// Makes a level's directory, and those above it, for this user alone.
fn make(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_come_from_the_end_of_the_name() {
        let path = TempPath { directory: "/t".into(), levels: vec![1, 2] };
        assert_eq!(path.path_of("0000000012"), Path::new("/t/2/01/0000000012"));
        let flat = TempPath { directory: "/t".into(), levels: Vec::new() };
        assert_eq!(flat.path_of("0000000012"), Path::new("/t/0000000012"));
    }

    /// Files of `client_body_in_file_only on` stay, and each new process begins with the first name.
    #[test]
    fn names_are_found_beside_thousands_of_files_that_stay() {
        let dir = weir_testkit::Dir::new();
        let path = TempPath { directory: dir.path().to_owned(), levels: Vec::new() };
        (0..5000).for_each(|n| drop(open(&path.path_of(&format!("{n:0DIGITS$}"))).unwrap()));
        path.create_waiting(Keep::Forever).unwrap();
    }
}
