//! The words of keys and items.

use std::ops::Range;

use super::{CELL, HEAD, Locked, LockedEntry, high, low, word_of};

impl<'z> Locked<'z> {
    /// The words of an entry's key, as a range for each cell. More cells may follow the key.
    pub(super) fn key_cells(&self, cell: u32) -> impl Iterator<Item = Range<usize>> + use<'z> {
        self.cells_from(cell, HEAD + self.shape.values)
    }

    /// The words of linked cells, as a range for each, without the first ones of the first cell.
    pub(super) fn cells_from(
        &self,
        cell: u32,
        first: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<'z> {
        let (words, shape) = (self.words, self.shape);
        let (mut cell, mut first) = (cell, first);
        std::iter::from_fn(move || {
            let at = (cell != 0).then(|| shape.cell(cell))?;
            let range = at + first..at + CELL;
            (cell, first) = (low(words.get(at)), 1);
            Some(range)
        })
    }

    /// The words of an entry's key, one by one.
    pub(super) fn key_words(&self, cell: u32) -> impl Iterator<Item = usize> + use<'z> {
        self.key_cells(cell).flatten()
    }

    /// Compares whole words. The last one is padded with zeros.
    pub(super) fn begins_with(&self, cell: u32, key: &[u8]) -> bool {
        let mut words = self.key_words(cell).map(|at| self.words.get(at));
        key.chunks(8).all(|bytes| words.next() == Some(word_of(bytes)))
    }

    /// Appends a part of an entry's key.
    pub(super) fn key_part(
        &self,
        entry: LockedEntry,
        first: usize,
        most: usize,
        out: &mut Vec<u8>,
    ) {
        let length = high(self.word(entry.0, 1)) as usize;
        if self.shape.cells_of(length) > self.shape.cells as usize {
            return self.spoil();
        }
        let most = length.saturating_sub(first).min(most);
        self.read(self.key_cells(entry.0), (first, most), out);
    }

    /// Appends `most` bytes of these words from `first` on.
    pub(super) fn read(
        &self,
        cells: impl Iterator<Item = Range<usize>>,
        (first, most): (usize, usize),
        out: &mut Vec<u8>,
    ) {
        let (mut skipped, mut left) = (first, most);
        out.reserve(left);
        let mut some = [0; 8 * CELL];
        for words in cells {
            let room = 8 * words.len();
            if skipped < room && left > 0 {
                for (at, word) in words.zip(some.chunks_exact_mut(8)) {
                    word.copy_from_slice(&self.words.get(at).to_le_bytes());
                }
                let n = left.min(room - skipped);
                out.extend_from_slice(some.get(skipped..skipped + n).unwrap_or_default());
                left -= n;
            }
            if left == 0 {
                break;
            }
            skipped = skipped.saturating_sub(room);
        }
    }
}
