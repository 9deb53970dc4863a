//! The files of one turn of the loop.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use super::Opened;

/// More files than this in one turn are opened each time.
const MOST: usize = 256;

/// What the running turn has opened.
#[derive(Debug, Default)]
pub struct TurnFiles {
    files: HashMap<Box<[u8]>, Known, BuildHasherDefault<Quick>>,
}

#[derive(Debug)]
struct Known {
    opened: Opened,
    /// Where all of it was read.
    content: Option<Bytes>,
}

/// A hash that costs little. Whoever asks for names that collide makes a turn compare as many as it remembers at most.
#[derive(Debug, Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.write_u64(u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
        }
        let rest = chunks.remainder();
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.write_u64(u64::from_le_bytes(last));
    }

    fn write_u64(&mut self, word: u64) {
        // An odd number without a pattern: the digits of pi.
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x243f_6a88_85a3_08d3);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        // A product's upper half depends on all of its factors, its lower bits on few.
        self.0.rotate_left(26)
    }
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
