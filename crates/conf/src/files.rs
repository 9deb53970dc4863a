//! Files that a configuration names besides its own texts: keys, certificates, scripts. A process
//! that may read them keeps their contents for a process that compiles the same configuration and
//! may not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Contents of files, as they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileTexts(pub(crate) BTreeMap<PathBuf, Vec<u8>>);

impl FileTexts {
    /// Adds a file that a tree names. It need not be on the disk.
    pub fn insert(&mut self, path: PathBuf, text: Vec<u8>) {
        self.0.insert(path, text);
    }
}

struct Reading {
    given: FileTexts,
    noted: FileTexts,
}

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
    static READING: RefCell<Option<Reading>> = const { RefCell::new(None) };
}

/// The contents of a file that the configuration names.
///
/// # Errors
///
/// As std::fs::read().
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    ASKED.set(ASKED.get() + 1);
    let given = READING.with_borrow(|reading| reading.as_ref()?.given.0.get(path).cloned());
    let text = match given {
        Some(text) => text,
        None => std::fs::read(path)?,
    };
    READING.with_borrow_mut(|reading| {
        if let Some(reading) = reading {
            reading.noted.0.insert(path.to_owned(), text.clone());
        }
    });
    Ok(text)
}

/// The number of files that this thread has asked for so far.
pub fn files_asked() -> usize {
    ASKED.get()
}

/// Runs `f` on this thread. Files in `given` are not read from the disk. Also returns the contents
/// of all files that `f` has asked for.
pub fn with_files<T>(given: FileTexts, f: impl FnOnce() -> T) -> (T, FileTexts) {
    READING.set(Some(Reading { given, noted: FileTexts::default() }));
    let value = f();
    (value, READING.take().map(|reading| reading.noted).unwrap_or_default())
}
