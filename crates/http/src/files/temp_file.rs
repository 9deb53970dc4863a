//! Temporary files in `client_body_temp_path`, `proxy_temp_path` and alike.

#![expect(clippy::disallowed_methods, reason = "names are numbers")]

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_engine::{Handle, OpenFile, Rank, file_operation};

/// The digits of a temporary file's name, as in nginx.
pub const DIGITS: usize = 10;
/// The attempts to find an unused name, before the directory counts as unusable.
const ATTEMPTS: usize = 1000;

/// A directory of temporary files, and the levels of its subdirectories.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TempPath {
    /// The directory.
    pub directory: PathBuf,
    /// For each level: how many of the name's last digits name the subdirectory.
    pub levels: Vec<usize>,
}

/// How long a temporary file has its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The name is removed at once, so that no other process can open the file.
    Nameless,
    /// The name is removed after the last use.
    WhileUsed,
    /// The name stays.
    Forever,
}

/// An open temporary file.
pub struct TempFile {
    /// Open for reading and writing.
    pub file: Arc<OpenFile>,
    /// The path. Only kept files can be opened by others.
    pub path: PathBuf,
    /// Whether the file has a name, so that others can open it while it is used.
    pub named: bool,
    /// Removes the name at the end, on a thread of this loop's pool.
    remover: Cell<Option<Handle>>,
}

impl TempPath {
    /// Creates a file, and its directory if it is missing.
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
                // Another process uses these names, or has left thousands of files. The numbers
                // continue elsewhere.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    NEXT.fetch_add(skip_distance(), Ordering::Relaxed);
                }
                Err(error) => return Err(Failed { path, error }),
            }
        }
        Err(Failed { path: self.directory.clone(), error: io::ErrorKind::AlreadyExists.into() })
    }

    /// The path of a name. With the levels 1 and 2, `0000000012` is in `2/01/`.
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

/// Why a temporary file could not be created.
#[derive(Debug)]
pub struct Failed {
    /// The path.
    pub path: PathBuf,
    /// The error.
    pub error: io::Error,
}

impl TempFile {
    /// Takes over an existing file. With a `remover`, its name is removed after the last use by
    /// this loop.
    pub fn of(file: Arc<OpenFile>, path: PathBuf, remover: Option<Handle>) -> TempFile {
        TempFile { file, path, named: true, remover: Cell::new(remover) }
    }

    /// Keeps the name. The caller moves or removes it.
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

/// The distance to skip after a used name.
fn skip_distance() -> u64 {
    let mut bytes = [0; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(_) => u32::from_ne_bytes(bytes).into(),
        Err(_) => 123_457,
    }
}

/// Creates the directory of a level and its parents, for this user alone.
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

    /// Files of `client_body_in_file_only on` stay, and each new process begins with the first
    /// number.
    #[test]
    fn names_are_found_beside_thousands_of_files_that_stay() {
        let dir = weir_testkit::Dir::new();
        let path = TempPath { directory: dir.path().to_owned(), levels: Vec::new() };
        (0..5000).for_each(|n| drop(open(&path.path_of(&format!("{n:0DIGITS$}"))).unwrap()));
        path.create_waiting(Keep::Forever).unwrap();
    }
}
