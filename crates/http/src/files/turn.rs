//! The files of one turn of the loop.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use rustc_hash::FxBuildHasher;

use super::opened::Opened;

/// More files than this in one turn are opened each time.
const MOST: usize = 256;

/// What the running turn has opened.
#[derive(Debug, Default)]
pub struct TurnFiles {
    /// Names that a client makes collide cost a turn [`MOST`] comparisons at most.
    files: HashMap<Box<[u8]>, Known, FxBuildHasher>,
}

#[derive(Debug)]
struct Known {
    opened: Opened,
    /// Where all of it was read.
    content: Option<Bytes>,
}

impl TurnFiles {
    /// A file that this turn has opened.
    pub fn get(&self, path: &[u8]) -> Option<Opened> {
        self.files.get(path).map(|known| known.opened.clone())
    }

    /// The content of this very file, if this turn has read it.
    pub fn content(&self, path: &[u8], of: &Opened) -> Option<Bytes> {
        let known = self.files.get(path)?;
        known.content.clone().filter(|_| Arc::ptr_eq(&known.opened.file, &of.file))
    }

    /// Both at once: what a whole answer needs.
    pub fn whole(&self, path: &[u8]) -> Option<(Opened, Bytes)> {
        let known = self.files.get(path)?;
        Some((known.opened.clone(), known.content.clone()?))
    }

    /// Remembers a file to the end of the turn.
    pub fn put(&mut self, path: &[u8], opened: &Opened) {
        if self.files.len() < MOST {
            self.files.insert(path.into(), Known { opened: opened.clone(), content: None });
        }
    }

    /// Remembers a file's content with it.
    pub fn put_content(&mut self, path: &[u8], of: &Opened, content: &Bytes) {
        if let Some(known) = self.files.get_mut(path)
            && Arc::ptr_eq(&known.opened.file, &of.file)
        {
            known.content = Some(content.clone());
        }
    }

    /// The turn is over: nothing of it holds in the next one.
    pub fn close(&mut self) {
        self.files.clear();
    }
}
