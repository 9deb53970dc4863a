//! The files that were opened in the current turn of the loop.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use rustc_hash::FxBuildHasher;

use super::opened::Opened;

/// The most files per turn. Others are opened each time.
const MOST_FILES: usize = 256;

/// The files that were opened in the current turn.
#[derive(Debug, Default)]
pub struct TurnFiles {
    /// A client may choose names that collide. They cost at most [`MOST_FILES`] comparisons per turn.
    files: HashMap<Box<[u8]>, TurnFile, FxBuildHasher>,
}

#[derive(Debug)]
struct TurnFile {
    opened: Opened,
    /// The content, if all of it was read.
    content: Option<Bytes>,
}

impl TurnFiles {
    /// A file that was opened in this turn.
    pub fn get(&self, path: &[u8]) -> Option<Opened> {
        self.files.get(path).map(|file| file.opened.clone())
    }

    /// The content of this open file, if it was read in this turn.
    pub fn content(&self, path: &[u8], of: &Opened) -> Option<Bytes> {
        let file = self.files.get(path)?;
        file.content.clone().filter(|_| Arc::ptr_eq(&file.opened.file, &of.file))
    }

    /// The file and its content, for a whole response.
    pub fn whole(&self, path: &[u8]) -> Option<(Opened, Bytes)> {
        let file = self.files.get(path)?;
        Some((file.opened.clone(), file.content.clone()?))
    }

    /// Keeps a file until the end of the turn.
    pub fn put(&mut self, path: &[u8], opened: &Opened) {
        if self.files.len() < MOST_FILES {
            self.files.insert(path.into(), TurnFile { opened: opened.clone(), content: None });
        }
    }

    /// Keeps the content of a file.
    pub fn put_content(&mut self, path: &[u8], of: &Opened, content: &Bytes) {
        if let Some(file) = self.files.get_mut(path)
            && Arc::ptr_eq(&file.opened.file, &of.file)
        {
            file.content = Some(content.clone());
        }
    }

    /// Drops all files at the end of the turn.
    pub fn close(&mut self) {
        self.files.clear();
    }
}
