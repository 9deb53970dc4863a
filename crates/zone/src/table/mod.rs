//! A table of keys and values in a fixed number of words, with its entries in the order of their last use.
//!
//! Memory is cut into cells of 64 bytes. An entry takes one, and more where its key is long; cells of one
//! entry are chained as free ones are, so that taking them from the free list needs two writes, however long
//! the key. Cells that were never used stay untouched, and the kernel gives no memory for them.
//!
//! ```text
//! first cell:  hash | next cell    key length | next in bucket    newer | older    values...    key...
//! more cells:     0 | next cell    key...
//! ```
//!
//! A record is an entry that is found by the first bytes of its key; what follows them is its contents.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::AtomicU64;

use crate::journal::{self, Journal};
use crate::lock::{self, Taken};

/// Words of a cell.
const CELL: usize = 8;
/// Words before the values of an entry.
const HEAD: usize = 3;

const LOCK: usize = 0;
const JOURNAL: usize = 1;
/// First free cell, and how many there are.
const FREE: usize = JOURNAL + journal::WORDS;
/// Cells that were used at least once.
const USED: usize = FREE + 1;
/// Newest entry | oldest entry.
const ENDS: usize = USED + 1;
/// Number of entries.
const LEN: usize = ENDS + 1;
const BUCKETS: usize = LEN + 1;

/// How a zone's words are divided.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    buckets: usize,
    cells: u32,
    values: usize,
}

impl Shape {
    /// The division of this many words, `values` for each entry; `None` where there is room for none.
    pub fn new(words: usize, values: usize) -> Option<Shape> {
        if values + HEAD > CELL {
            return None;
        }
        // A bucket for two cells.
        let pairs = words.checked_sub(BUCKETS)? / (2 * CELL + 1);
        let pairs = pairs.min(u32::MAX as usize / 4);
        (pairs > 0).then_some(Shape { buckets: pairs, cells: 2 * pairs as u32, values })
    }

    /// Where a cell begins; cells are counted from 1.
    fn cell(&self, cell: u32) -> usize {
        BUCKETS + self.buckets + (cell as usize).wrapping_sub(1).wrapping_mul(CELL)
    }

    /// Bytes of a key that fit in an entry's first cell.
    fn inline(&self) -> usize {
        8 * (CELL - HEAD - self.values)
    }

    /// Cells that an entry takes.
    fn cells_of(&self, key: usize) -> usize {
        1 + key.saturating_sub(self.inline()).div_ceil(8 * (CELL - 1))
    }
}

/// What a record is found by: a hash, so that it is as good as unique and all are of one length, in whole words.
pub type RecordName = [u8; 32];

/// An entry of a locked table; outside of the lock it means something only while something else (a count in
/// its value) keeps everybody from removing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(u32);

/// A table, held by this thread until dropped.
#[derive(Debug)]
pub struct Locked<'z> {
    lock: &'z AtomicU64,
    words: Journal<'z>,
    shape: &'z Shape,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Whole changes leave nothing to undo; a panic may have interrupted one.
        self.words.undo();
        lock::release(self.lock);
    }
}

impl<'z> Locked<'z> {
    pub(crate) fn new(words: &'z [AtomicU64], shape: &'z Shape) -> Self {
        let journal = Journal::new(words, JOURNAL);
        let lock = &words[LOCK];
        if lock::acquire(lock) == Taken::FromDead {
            journal.undo();
        }
        Locked { lock, words: journal, shape }
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.words.get(LEN)
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry of a key.
    pub fn find(&self, key: &[u8]) -> Option<Entry> {
        self.search(key, |len| len == key.len())
    }

    /// The record of a name.
    pub fn find_record(&self, name: &RecordName) -> Option<Entry> {
        self.search(name, |len| len >= name.len())
    }

    fn search(&self, key: &[u8], fits: impl Fn(usize) -> bool) -> Option<Entry> {
        let hash = hash(key);
        let mut cell = low(self.words.get(self.bucket(hash)));
        while cell != 0 {
            let same = high(self.word(cell, 0)) == hash
                && fits(high(self.word(cell, 1)) as usize)
                && self.begins_with(cell, key);
            if same {
                return Some(Entry(cell));
            }
            cell = low(self.word(cell, 1));
        }
        None
    }

    /// A new entry, the newest, for a key that the table does not have; its values are 0. `None` without room:
    /// then it is for the caller to remove something.
    pub fn add(&mut self, key: &[u8]) -> Option<Entry> {
        self.add_hashed(hash(key), key)
    }

    /// A new record, as [`Locked::add`]. A table has either records or other entries.
    pub fn add_record(&mut self, name: &RecordName, contents: &[u8]) -> Option<Entry> {
        self.add_hashed(hash(name), &[name, contents].concat())
    }

    fn add_hashed(&mut self, hash: u32, key: &[u8]) -> Option<Entry> {
        let count = self.shape.cells_of(key.len());
        let cell = self.first_free(count)?;
        let bucket = self.bucket(hash);
        // All of this is in cells that nobody sees yet, but for the link that makes them a list.
        self.fill(cell, 0, pair(hash, low(self.word(cell, 0))));
        self.fill(cell, 1, pair(key.len() as u32, low(self.words.get(bucket))));
        for i in 0..self.shape.values {
            self.fill(cell, HEAD + i, 0);
        }
        let last = self.write_key(cell, key);

        self.take(cell, last, count);
        self.link_newest(cell);
        self.words.set(bucket, pair(0, cell));
        self.words.set(LEN, self.len() + 1);
        self.words.commit();
        Some(Entry(cell))
    }

    /// The entry that was used least recently.
    pub fn oldest(&self) -> Option<Entry> {
        let oldest = low(self.words.get(ENDS));
        (oldest != 0).then_some(Entry(oldest))
    }

    /// The entry that was used next after this one.
    pub fn newer(&self, entry: Entry) -> Option<Entry> {
        let newer = high(self.word(entry.0, 2));
        (newer != 0).then_some(Entry(newer))
    }

    /// Whether a record with so many bytes fits when all others are gone.
    pub fn could_hold(&self, contents: usize) -> bool {
        self.shape.cells_of(size_of::<RecordName>() + contents) <= self.shape.cells as usize
    }

    /// Bytes of memory that no entry takes.
    pub fn free(&self) -> u64 {
        let unused = u64::from(self.shape.cells).saturating_sub(self.words.get(USED));
        (unused + u64::from(high(self.words.get(FREE)))) * (CELL as u64 * 8)
    }

    /// The entry becomes the one that was used last.
    pub fn touch(&mut self, entry: Entry) {
        if high(self.words.get(ENDS)) != entry.0 {
            self.unlink(entry.0);
            self.link_newest(entry.0);
            self.words.commit();
        }
    }

    /// Takes the entry out of the table.
    pub fn remove(&mut self, entry: Entry) {
        let cell = entry.0;
        self.unlink(cell);
        let bucket = self.bucket(high(self.word(cell, 0)));
        let (next, mut before) = (low(self.word(cell, 1)), low(self.words.get(bucket)));
        if before == cell {
            self.words.set(bucket, pair(0, next));
        } else {
            while before != 0 && low(self.word(before, 1)) != cell {
                before = low(self.word(before, 1));
            }
            let key_len = high(self.word(before, 1));
            self.set(before, 1, pair(key_len, next));
        }
        self.give_back(cell);
        self.words.set(LEN, self.len().saturating_sub(1));
        self.words.commit();
    }

    /// A value of an entry.
    pub fn value(&self, entry: Entry, i: usize) -> u64 {
        debug_assert!(i < self.shape.values);
        self.word(entry.0, HEAD + i)
    }

    /// Changes an entry's values, all or none: the first gets the first, and so on.
    pub fn set_values<const N: usize>(&mut self, entry: Entry, values: [u64; N]) {
        debug_assert!(N <= self.shape.values);
        for (i, value) in values.into_iter().enumerate() {
            self.set(entry.0, HEAD + i, value);
        }
        self.words.commit();
    }

    /// Changes one value of an entry.
    pub fn set_value(&mut self, entry: Entry, i: usize, value: u64) {
        debug_assert!(i < self.shape.values);
        // A change of one word needs no journal: it is made, or it is not.
        self.fill(entry.0, HEAD + i, value);
    }

    /// The contents of a record.
    pub fn contents(&self, record: Entry) -> Vec<u8> {
        let mut all = Vec::new();
        self.key(record, &mut all);
        all.drain(..size_of::<RecordName>().min(all.len()));
        all
    }

    /// Appends an entry's key.
    pub fn key(&self, entry: Entry, out: &mut Vec<u8>) {
        let mut left = high(self.word(entry.0, 1)) as usize;
        for at in self.key_words(entry.0) {
            let bytes = self.words.get(at).to_le_bytes();
            let n = left.min(8);
            out.extend_from_slice(&bytes[..n]);
            left -= n;
            if left == 0 {
                break;
            }
        }
    }
}

/// Cells.
impl Locked<'_> {
    fn word(&self, cell: u32, i: usize) -> u64 {
        if cell == 0 { 0 } else { self.words.get(self.shape.cell(cell) + i) }
    }

    fn fill(&self, cell: u32, i: usize, value: u64) {
        self.words.fill(self.shape.cell(cell) + i, value);
    }

    fn set(&self, cell: u32, i: usize, value: u64) {
        if cell != 0 {
            self.words.set(self.shape.cell(cell) + i, value);
        }
    }

    fn bucket(&self, hash: u32) -> usize {
        BUCKETS + hash as usize % self.shape.buckets
    }

    /// The first of `count` chained cells that are free; they stay so until [`Locked::take`].
    fn first_free(&self, count: usize) -> Option<u32> {
        let used = self.words.get(USED) as u32;
        let unused = self.shape.cells - used;
        if (high(self.words.get(FREE)) as usize) < count && unused > 0 {
            // Cells that were never used join the free ones: as many as are asked for, or all.
            let more = unused.min(u32::try_from(count).ok()?);
            let free = self.words.get(FREE);
            for cell in used + 1..used + more {
                self.fill(cell, 0, pair(0, cell + 1));
            }
            self.fill(used + more, 0, pair(0, low(free)));
            self.words.set(FREE, pair(high(free) + more, used + 1));
            self.words.set(USED, u64::from(used + more));
            self.words.commit();
        }
        let free = self.words.get(FREE);
        (high(free) as usize >= count).then_some(low(free))
    }

    /// Takes the chain from `first` to `last`, with which the free list begins, out of it.
    fn take(&self, first: u32, last: u32, count: usize) {
        let free = self.words.get(FREE);
        let (hash, rest) = (high(self.word(last, 0)), low(self.word(last, 0)));
        debug_assert_eq!(low(free), first);
        self.words.set(FREE, pair(high(free) - count as u32, rest));
        self.set(last, 0, pair(hash, 0));
    }

    fn give_back(&self, first: u32) {
        let (mut last, mut count) = (first, 1);
        while low(self.word(last, 0)) != 0 {
            last = low(self.word(last, 0));
            count += 1;
        }
        let free = self.words.get(FREE);
        self.set(last, 0, pair(high(self.word(last, 0)), low(free)));
        self.words.set(FREE, pair(high(free) + count, first));
    }
}

/// Keys.
impl<'z> Locked<'z> {
    /// Where the words of an entry's key stand.
    fn key_words(&self, cell: u32) -> impl Iterator<Item = usize> + use<'z> {
        let (words, shape) = (self.words, self.shape);
        let (mut cell, mut i) = (cell, HEAD + shape.values);
        std::iter::from_fn(move || {
            if i == CELL {
                cell = low(words.get(shape.cell(cell)));
                i = 1;
            }
            (cell != 0).then(|| {
                i += 1;
                shape.cell(cell) + i - 1
            })
        })
    }

    /// Writes a key into chained cells; the last one that it takes.
    fn write_key(&self, first: u32, key: &[u8]) -> u32 {
        for (at, bytes) in self.key_words(first).zip(key.chunks(8)) {
            self.words.fill(at, word_of(bytes));
        }
        let more = self.shape.cells_of(key.len()) - 1;
        (0..more).fold(first, |cell, _| low(self.word(cell, 0)))
    }

    /// What is compared are whole words, the last one filled up with zeros.
    fn begins_with(&self, cell: u32, key: &[u8]) -> bool {
        let words = self.key_words(cell).zip(key.chunks(8));
        words.into_iter().all(|(at, b)| self.words.get(at) == word_of(b))
    }
}

/// The order of use.
impl Locked<'_> {
    fn unlink(&self, cell: u32) {
        let (newer, older) = both(self.word(cell, 2));
        let (newest, oldest) = both(self.words.get(ENDS));
        self.set(newer, 2, pair(high(self.word(newer, 2)), older));
        self.set(older, 2, pair(newer, low(self.word(older, 2))));
        let newest = if newest == cell { older } else { newest };
        let oldest = if oldest == cell { newer } else { oldest };
        self.words.set(ENDS, pair(newest, oldest));
    }

    fn link_newest(&self, cell: u32) {
        let (newest, oldest) = both(self.words.get(ENDS));
        self.set(cell, 2, pair(0, newest));
        self.set(newest, 2, pair(cell, low(self.word(newest, 2))));
        self.words.set(ENDS, pair(cell, if oldest == 0 { cell } else { oldest }));
    }
}

fn hash(key: &[u8]) -> u32 {
    // The same in every process: no random keys.
    BuildHasherDefault::<DefaultHasher>::default().hash_one(key) as u32
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

fn low(word: u64) -> u32 {
    word as u32
}

fn both(word: u64) -> (u32, u32) {
    (high(word), low(word))
}

/// What the model of several processes looks at.
#[cfg(test)]
impl Locked<'_> {
    pub(crate) fn cells_of(&self, key: usize) -> usize {
        self.shape.cells_of(key)
    }

    pub(crate) fn cells(&self) -> u64 {
        u64::from(self.shape.cells)
    }
}

#[cfg(test)]
mod tests;
