//! A log in memory: the newest lines, in a ring that all processes of a server share.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_sys::shared::SharedWords;

use crate::LINE_MAX;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// A ring of bytes. A writer reserves its place with one atomic addition and never waits. A reader may
/// see a line that is only partly written.
///
/// A line begins at a word boundary. The rest of its last word is zero.
#[derive(Debug)]
pub struct MemoryLog {
    /// The number of words ever written, then the ring.
    words: SharedWords,
}

impl MemoryLog {
    /// A ring of so many bytes. None if that is less than one line.
    pub fn new(bytes: u64) -> Option<io::Result<MemoryLog>> {
        let bytes = usize::try_from(bytes).ok().filter(|n| *n >= LINE_MAX)?;
        Some(SharedWords::new(1 + bytes / WORD).map(|words| MemoryLog { words }))
    }

    /// Adds a line. The oldest lines make room.
    pub fn write(&self, line: &[u8]) {
        let Some((written, ring)) = self.words.split_first() else { return };
        let needed = line.len().div_ceil(WORD);
        let mut at = place(written.fetch_add(needed as u64, Ordering::Relaxed), ring);
        for piece in line.chunks(WORD) {
            let mut word = [0; WORD];
            word.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
            if let Some(slot) = ring.get(at) {
                slot.store(u64::from_le_bytes(word), Ordering::Relaxed);
            }
            at = if at + 1 == ring.len() { 0 } else { at + 1 };
        }
    }

    /// The newest lines in about `most` bytes, the oldest of them first.
    pub fn newest(&self, most: usize) -> Vec<u8> {
        let Some((written, ring)) = self.words.split_first() else { return Vec::new() };
        let end = written.load(Ordering::Relaxed);
        let start = end.saturating_sub(ring.len().min(most.div_ceil(WORD)) as u64);
        let words = (start..end).filter_map(|n| ring.get(place(n, ring)));
        let bytes = words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        let mut text: Vec<u8> = bytes.filter(|byte| *byte != 0).collect();
        if start > 0 {
            // The beginning of the oldest line is overwritten.
            let end = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |at| at + 1);
            text.drain(..end);
        }
        text
    }
}

/// The place in the ring of the word with this number.
fn place(written: u64, ring: &[AtomicU64]) -> usize {
    (written % ring.len().max(1) as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(memory: &MemoryLog) -> Vec<String> {
        String::from_utf8(memory.newest(usize::MAX)).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn less_than_a_line_is_refused() {
        assert!(MemoryLog::new(LINE_MAX as u64 - 1).is_none());
        assert!(MemoryLog::new(u64::MAX).is_none_or(|memory| memory.is_err()));
    }

    #[test]
    fn a_part_begins_with_a_whole_line() {
        let memory = MemoryLog::new(LINE_MAX as u64).unwrap().unwrap();
        (0..10).for_each(|n| memory.write(format!("line {n}\n").as_bytes()));
        assert_eq!(memory.newest(20), b"line 8\nline 9\n");
        assert_eq!(memory.newest(0), b"");
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]

        #[test]
        fn the_newest_lines_are_there(lengths in proptest::collection::vec(1..200usize, 1..100)) {
            let memory = MemoryLog::new(LINE_MAX as u64).unwrap().unwrap();
            let mut written = Vec::new();
            for (i, length) in lengths.iter().enumerate() {
                let line = format!("{i:>length$}");
                memory.write(format!("{line}\n").as_bytes());
                written.push(line);
                let found = lines(&memory);
                proptest::prop_assert!(written.ends_with(&found));
                // All that fits but the one that lost its begin, with a word for each line's end.
                let kept: usize = found.iter().map(|line| line.len() + WORD).sum();
                let next = written.iter().rev().nth(found.len()).map_or(0, |line| line.len() + WORD);
                proptest::prop_assert!(found.len() == written.len() || kept + next > LINE_MAX - WORD);
            }
        }
    }

    #[test]
    fn many_write_at_once_without_losing_a_line() {
        let memory = MemoryLog::new(64 * 1024).unwrap().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = &memory;
                scope.spawn(move || {
                    (0..100).for_each(|n| memory.write(format!("{thread} {n}\n").as_bytes()));
                });
            }
        });
        let found = lines(&memory);
        assert_eq!(found.len(), 400);
        for thread in 0..4 {
            let own = found.iter().filter(|line| line.starts_with(&thread.to_string()));
            assert!(own.eq((0..100).map(|n| format!("{thread} {n}")).collect::<Vec<_>>().iter()));
        }
    }
}
