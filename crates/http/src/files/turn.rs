//! The files of one turn of the loop.

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;

use super::Opened;

/// More files than this in one turn are opened each time.
const MOST: usize = 256;

/// What the running turn has opened.
#[derive(Debug, Default)]
pub struct TurnFiles {
    turn: Option<Instant>,
    files: HashMap<Box<[u8]>, (Opened, Option<Bytes>)>,
    /// Somebody will call [`TurnFiles::close`].
    closing: bool,
}

impl TurnFiles {
    /// A file that this turn has opened.
    pub fn get(&mut self, now: Instant, path: &[u8]) -> Option<Opened> {
        self.begin(now);
        self.files.get(path).map(|(opened, _)| opened.clone())
    }

    /// The content of a file that this turn has read.
    pub fn content(&mut self, now: Instant, path: &[u8]) -> Option<Bytes> {
        self.begin(now);
        self.files.get(path)?.1.clone()
    }

    /// Both at once: what a whole answer needs.
    pub fn whole(&mut self, now: Instant, path: &[u8]) -> Option<(Opened, Bytes)> {
        self.begin(now);
        let (opened, content) = self.files.get(path)?;
        Some((opened.clone(), content.clone()?))
    }

    /// Remembers a file to the end of the turn.
    pub fn put(&mut self, now: Instant, path: &[u8], opened: &Opened) {
        self.begin(now);
        if self.files.len() < MOST {
            self.files.insert(path.into(), (opened.clone(), None));
        }
    }

    /// Remembers a file's content with it.
    pub fn put_content(&mut self, now: Instant, path: &[u8], content: &Bytes) {
        self.begin(now);
        if let Some(file) = self.files.get_mut(path) {
            file.1 = Some(content.clone());
        }
    }

    /// True once after each [`TurnFiles::close`]: the caller sees to the next one.
    pub fn needs_closing(&mut self) -> bool {
        !std::mem::replace(&mut self.closing, true)
    }

    /// Forgets all files, and so closes them.
    pub fn close(&mut self) {
        self.files.clear();
        self.closing = false;
    }

    /// Another turn has begun: nothing of the last one holds.
    fn begin(&mut self, now: Instant) {
        if self.turn != Some(now) {
            self.turn = Some(now);
            self.files.clear();
        }
    }
}
