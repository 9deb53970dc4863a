//! Files that a configuration names beside its own texts: keys, certificates, scripts. A process that may read them keeps
//! what it has read, for a process that compiles the same configuration and may not.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// What files held when they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileTexts(pub(crate) BTreeMap<PathBuf, Vec<u8>>);

impl FileTexts {
    /// A file that a tree names, which need not be on the disk.
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

/// How many files this thread has asked for so far.
pub fn files_asked() -> usize {
    ASKED.get()
}

/// Runs `f` on this thread. Files that stand in `given` are not read from the disk; of all files that `f` asks for, the contents
/// come back.
pub fn with_files<T>(given: FileTexts, f: impl FnOnce() -> T) -> (T, FileTexts) {
    READING.set(Some(Reading { given, noted: FileTexts::default() }));
    let value = f();
    (value, READING.take().map(|reading| reading.noted).unwrap_or_default())
}
