//! Files that a configuration names beside its own texts: keys, certificates, scripts. A process that may read them keeps
//! what it has read, for a process that compiles the same configuration and may not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// What files held when they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileTexts(pub(crate) BTreeMap<PathBuf, Vec<u8>>);

enum Reading {
    Noting(FileTexts),
    Given(FileTexts),
}

thread_local! {
    static READING: RefCell<Option<Reading>> = const { RefCell::new(None) };
}

/// The contents of a file that the configuration names.
///
/// # Errors
///
/// As std::fs::read().
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let given = READING.with_borrow(|reading| match reading {
        Some(Reading::Given(texts)) => texts.0.get(path).cloned(),
        _ => None,
    });
    if let Some(text) = given {
        return Ok(text);
    }
    let text = std::fs::read(path)?;
    READING.with_borrow_mut(|reading| {
        if let Some(Reading::Noting(texts)) = reading {
            texts.0.insert(path.to_owned(), text.clone());
        }
    });
    Ok(text)
}

/// Runs `f` on this thread, and keeps the contents of the files that it reads.
pub fn noting_files<T>(f: impl FnOnce() -> T) -> (T, FileTexts) {
    READING.set(Some(Reading::Noting(FileTexts::default())));
    let value = f();
    match READING.take() {
        Some(Reading::Noting(texts)) => (value, texts),
        _ => (value, FileTexts::default()),
    }
}

/// Runs `f` on this thread. Files that stand in `texts` are not read.
pub fn with_files<T>(texts: FileTexts, f: impl FnOnce() -> T) -> T {
    READING.set(Some(Reading::Given(texts)));
    let value = f();
    READING.set(None);
    value
}
