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
//!
//! Each word may have any value: a process that an attacker has taken over may write any. A walk
//! takes at most as many steps as the table has cells, and no link leads out of the table. A guard
//! that finds contradictory words shows a table without entries and without room from then on, and
//! leaves an empty one behind.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use crate::journal::{self, Journal};
use crate::lock::{self, Acquired};
use crate::spoilt;

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

/// An entry of a locked table. Outside of the lock it means something only while something else (a
/// count in its value) keeps it from being removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockedEntry(u32);

/// A table, held by this thread until dropped.
#[derive(Debug)]
pub struct Locked<'z> {
    lock: &'z AtomicU64,
    words: Journal<'z>,
    shape: &'z Shape,
    /// The zone's name.
    name: &'z str,
    /// Words were found that cannot be together.
    spoilt: Cell<bool>,
    /// Entries that this guard has removed: no more than there can be.
    removed: u32,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.spoilt.get() {
            self.empty();
        } else {
            // Whole changes leave nothing to undo; a panic may have interrupted one.
            self.words.undo();
        }
        lock::release(self.lock);
        if self.spoilt.get() {
            spoilt::tell(self.name);
        }
    }
}

impl<'z> Locked<'z> {
    pub(crate) fn new(words: &'z [AtomicU64], shape: &'z Shape, name: &'z str) -> Self {
        let journal = Journal::new(words, JOURNAL);
        let lock = &words[LOCK];
        if lock::acquire(lock) == Acquired::FromDead {
            journal.undo();
        }
        let spoilt = Cell::new(false);
        let table = Locked { lock, words: journal, shape, name, spoilt, removed: 0 };
        // A living holder leaves whole changes; one that was killed while it emptied the table leaves no number.
        if journal.is_open() || table.len() > u64::from(shape.cells) {
            table.spoil();
        }
        table
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
    pub fn find(&self, key: &[u8]) -> Option<LockedEntry> {
        self.search(key, |len| len == key.len())
    }

    /// The record of a name.
    pub fn find_record(&self, name: &RecordName) -> Option<LockedEntry> {
        self.search(name, |len| len >= name.len())
    }

    fn search(&self, key: &[u8], fits: impl Fn(usize) -> bool) -> Option<LockedEntry> {
        let hash = hash(key);
        let mut bucket = self.entries_from(low(self.words.get(self.bucket(hash))), next_in_bucket);
        bucket.find(|entry| {
            high(self.word(entry.0, 0)) == hash
                && fits(high(self.word(entry.0, 1)) as usize)
                && self.begins_with(entry.0, key)
        })
    }

    /// A new entry, the newest, for a key that the table does not have; its values are 0. `None` without room:
    /// then it is for the caller to remove something.
    pub fn add(&mut self, key: &[u8]) -> Option<LockedEntry> {
        self.add_hashed(hash(key), key, &[])
    }

    /// A new record, as [`Locked::add`]. A table has either records or other entries.
    pub fn add_record(&mut self, name: &RecordName, contents: &[u8]) -> Option<LockedEntry> {
        self.add_hashed(hash(name), name, contents)
    }

    /// The key is `key` and then `more`; where there is more, `key` has whole words.
    fn add_hashed(&mut self, hash: u32, key: &[u8], more: &[u8]) -> Option<LockedEntry> {
        let length = key.len() + more.len();
        let count = self.shape.cells_of(length);
        let Some(cell) = self.first_free(count) else {
            if self.is_empty() && count <= self.shape.cells as usize {
                // Cells are lost: no entry has them.
                self.spoil();
            }
            return None;
        };
        let bucket = self.bucket(hash);
        // All of this is in cells that are not visible yet, but for the link that makes them a
        // list.
        self.fill(cell, 0, pair(hash, low(self.word(cell, 0))));
        self.fill(cell, 1, pair(length as u32, low(self.words.get(bucket))));
        for i in 0..self.shape.values {
            self.fill(cell, HEAD + i, 0);
        }
        let last = self.last_of(cell, count)?;
        for (at, bytes) in self.key_words(cell).zip(key.chunks(8).chain(more.chunks(8))) {
            self.words.fill(at, word_of(bytes));
        }

        self.take(cell, last, count);
        self.link_newest(cell);
        self.words.set(bucket, pair(0, cell));
        self.words.set(LEN, self.len().saturating_add(1));
        self.words.commit();
        (!self.spoilt.get()).then_some(LockedEntry(cell))
    }

    /// Gives a record other contents and values, all or none, and it becomes the one that was used last. False where the new
    /// contents take another number of cells, or more words than one change may have: then the record stays as it is.
    pub fn rewrite<const N: usize>(
        &mut self,
        record: LockedEntry,
        contents: &[u8],
        values: [u64; N],
    ) -> bool {
        /// The words of the name.
        const NAME: usize = size_of::<RecordName>() / 8;
        let word = self.word(record.0, 1);
        let length = size_of::<RecordName>() + contents.len();
        let notes = contents.len().div_ceil(8) + N + 1;
        let cells = self.shape.cells_of(length);
        if cells != self.shape.cells_of(high(word) as usize) || notes > journal::NOTES {
            return false;
        }
        self.touch(record);
        if high(word) as usize != length {
            self.set(record.0, 1, pair(length as u32, low(word)));
        }
        for (at, bytes) in self.key_words(record.0).skip(NAME).zip(contents.chunks(8)) {
            if self.words.get(at) != word_of(bytes) {
                self.words.set(at, word_of(bytes));
            }
        }
        self.set_values(record, values);
        !self.spoilt.get()
    }

    /// The entry that was used least recently.
    pub fn oldest(&self) -> Option<LockedEntry> {
        let oldest = self.link(low(self.words.get(ENDS)));
        if (oldest == 0) != self.is_empty() {
            self.spoil();
        }
        (oldest != 0 && !self.spoilt.get()).then_some(LockedEntry(oldest))
    }

    /// All entries, the one that was used least recently first.
    pub fn entries(&self) -> impl Iterator<Item = LockedEntry> {
        let newer = |table: &Self, cell| high(table.word(cell, 2));
        self.entries_from(low(self.words.get(ENDS)), newer)
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
    pub fn touch(&mut self, entry: LockedEntry) {
        if high(self.words.get(ENDS)) != entry.0 {
            self.unlink(entry.0);
            self.link_newest(entry.0);
            self.words.commit();
        }
    }

    /// Takes the entry out of the table.
    pub fn remove(&mut self, entry: LockedEntry) {
        let cell = entry.0;
        self.removed = self.removed.saturating_add(1);
        if self.is_empty() || self.removed > self.shape.cells {
            return self.spoil();
        }
        self.unlink(cell);
        let bucket = self.bucket(high(self.word(cell, 0)));
        let (next, first) = (low(self.word(cell, 1)), low(self.words.get(bucket)));
        if first == cell {
            self.words.set(bucket, pair(0, next));
        } else {
            let mut chain = self.entries_from(first, next_in_bucket);
            match chain.find(|before| low(self.word(before.0, 1)) == cell) {
                Some(LockedEntry(before)) => {
                    let key_len = high(self.word(before, 1));
                    self.set(before, 1, pair(key_len, next));
                }
                None => self.spoil(),
            }
        }
        self.give_back(cell);
        self.words.set(LEN, self.len().saturating_sub(1));
        self.words.commit();
    }

    /// A value of an entry.
    pub fn value(&self, entry: LockedEntry, i: usize) -> u64 {
        debug_assert!(i < self.shape.values);
        self.word(entry.0, HEAD + i)
    }

    /// Changes an entry's values, all or none: the first gets the first, and so on.
    pub fn set_values<const N: usize>(&mut self, entry: LockedEntry, values: [u64; N]) {
        debug_assert!(N <= self.shape.values);
        for (i, value) in values.into_iter().enumerate() {
            if self.word(entry.0, HEAD + i) != value {
                self.set(entry.0, HEAD + i, value);
            }
        }
        self.words.commit();
    }

    /// Changes one value of an entry.
    pub fn set_value(&mut self, entry: LockedEntry, i: usize, value: u64) {
        debug_assert!(i < self.shape.values);
        // A change of one word needs no journal: it is made, or it is not.
        self.fill(entry.0, HEAD + i, value);
    }

    /// Appends a part of the contents of a record: so many bytes from the first one on, or all that there are.
    pub fn part(&self, record: LockedEntry, (first, most): (usize, usize), out: &mut Vec<u8>) {
        self.key_part(record, size_of::<RecordName>() + first, most, out);
    }

    /// The contents of a record.
    pub fn contents(&self, record: LockedEntry) -> Vec<u8> {
        let mut all = Vec::new();
        self.part(record, (0, usize::MAX), &mut all);
        all
    }

    /// Appends an entry's key.
    pub fn key(&self, entry: LockedEntry, out: &mut Vec<u8>) {
        self.key_part(entry, 0, usize::MAX, out);
    }

    fn key_part(&self, entry: LockedEntry, first: usize, most: usize, out: &mut Vec<u8>) {
        let length = high(self.word(entry.0, 1)) as usize;
        if self.shape.cells_of(length) > self.shape.cells as usize {
            return self.spoil();
        }
        let (mut skipped, mut left) = (first, length.saturating_sub(first).min(most));
        out.reserve(left);
        let mut some = [0; 8 * CELL];
        for words in self.key_cells(entry.0) {
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

/// What words that cannot be together lead to.
impl Locked<'_> {
    /// The table is empty and has no room, until it is made anew.
    #[cold]
    fn spoil(&self) {
        self.spoilt.set(true);
    }

    /// A link as a word has it: 0 leads nowhere, and so does one out of the table.
    fn link(&self, to: u32) -> u32 {
        if to > self.shape.cells {
            self.spoil();
        }
        if self.spoilt.get() { 0 } else { to }
    }

    /// The entries that links lead to, of which there are no more than the table has.
    fn entries_from(
        &self,
        first: u32,
        next: impl Fn(&Self, u32) -> u32,
    ) -> impl Iterator<Item = LockedEntry> {
        let (mut at, mut left) = (self.link(first), self.len());
        std::iter::from_fn(move || {
            if at == 0 || left == 0 {
                // More than there are, or a ring.
                if at != 0 {
                    self.spoil();
                }
                return None;
            }
            left -= 1;
            let found = LockedEntry(at);
            at = self.link(next(self, at));
            Some(found)
        })
    }

    /// Makes it an empty table. Killed in between, it is done again.
    #[cold]
    fn empty(&self) {
        self.words.commit();
        self.words.fill(LEN, u64::MAX);
        for at in [FREE, USED, ENDS].into_iter().chain(BUCKETS..BUCKETS + self.shape.buckets) {
            self.words.fill(at, 0);
        }
        self.words.fill(LEN, 0);
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
        // There are fewer than 2^32, and each bit of the hash counts.
        BUCKETS + ((u64::from(hash) * self.shape.buckets as u64) >> 32) as usize
    }

    /// The first of `count` chained cells that are free; they stay so until [`Locked::take`].
    fn first_free(&self, count: usize) -> Option<u32> {
        let used = self.link(u32::try_from(self.words.get(USED)).unwrap_or(u32::MAX));
        if high(self.words.get(FREE)) > used {
            self.spoil();
        }
        let unused = self.shape.cells - used;
        if (high(self.words.get(FREE)) as usize) < count && unused > 0 {
            // Cells that were never used join the free ones: as many as are asked for, or all.
            let more = unused.min(u32::try_from(count).ok()?);
            let free = self.words.get(FREE);
            for cell in used + 1..used + more {
                self.fill(cell, 0, pair(0, cell + 1));
            }
            self.fill(used + more, 0, pair(0, low(free)));
            self.words.set(FREE, pair(high(free).saturating_add(more), used + 1));
            self.words.set(USED, u64::from(used + more));
            self.words.commit();
        }
        let free = self.words.get(FREE);
        let first = self.link(low(free));
        if first == 0 && high(free) > 0 {
            self.spoil();
        }
        (first != 0 && high(free) as usize >= count).then_some(first)
    }

    /// Takes the chain from `first` to `last`, with which the free list begins, out of it.
    fn take(&self, first: u32, last: u32, count: usize) {
        let free = self.words.get(FREE);
        let (hash, rest) = (high(self.word(last, 0)), low(self.word(last, 0)));
        if low(free) != first {
            self.spoil();
        }
        self.words.set(FREE, pair(high(free).saturating_sub(count as u32), rest));
        self.set(last, 0, pair(hash, 0));
    }

    fn give_back(&self, first: u32) {
        let count = self.shape.cells_of(high(self.word(first, 1)) as usize);
        let Some(last) = self.last_of(first, count) else { return };
        let free = self.words.get(FREE);
        if low(self.word(last, 0)) != 0 {
            self.spoil();
        }
        self.set(last, 0, pair(high(self.word(last, 0)), low(free)));
        self.words.set(FREE, pair(high(free).saturating_add(count as u32), first));
    }

    /// The last of so many chained cells; `None` where there are fewer.
    fn last_of(&self, first: u32, count: usize) -> Option<u32> {
        if count > self.shape.cells as usize {
            self.spoil();
            return None;
        }
        let last = (1..count).fold(self.link(first), |cell, _| self.link(low(self.word(cell, 0))));
        if last == 0 {
            self.spoil();
        }
        (last != 0).then_some(last)
    }
}

/// Keys.
impl<'z> Locked<'z> {
    /// Where the words of an entry's key stand, cell by cell.
    fn key_cells(&self, cell: u32) -> impl Iterator<Item = Range<usize>> + use<'z> {
        let (words, shape) = (self.words, self.shape);
        let (mut cell, mut first) = (cell, HEAD + shape.values);
        std::iter::from_fn(move || {
            let at = (cell != 0).then(|| shape.cell(cell))?;
            let range = at + first..at + CELL;
            (cell, first) = (low(words.get(at)), 1);
            Some(range)
        })
    }

    /// The same word by word.
    fn key_words(&self, cell: u32) -> impl Iterator<Item = usize> + use<'z> {
        self.key_cells(cell).flatten()
    }

    /// What is compared are whole words, the last one filled up with zeros.
    fn begins_with(&self, cell: u32, key: &[u8]) -> bool {
        let mut words = self.key_words(cell).map(|at| self.words.get(at));
        key.chunks(8).all(|bytes| words.next() == Some(word_of(bytes)))
    }
}

/// The order of use.
impl Locked<'_> {
    fn unlink(&self, cell: u32) {
        let (newer, older) = self.links(self.word(cell, 2));
        let (newest, oldest) = self.links(self.words.get(ENDS));
        // Both neighbours know of it, or the ends do.
        let from_newer = if newer == 0 { newest } else { low(self.word(newer, 2)) };
        let from_older = if older == 0 { oldest } else { high(self.word(older, 2)) };
        if (from_newer, from_older) != (cell, cell) {
            self.spoil();
        }
        self.set(newer, 2, pair(high(self.word(newer, 2)), older));
        self.set(older, 2, pair(newer, low(self.word(older, 2))));
        let newest = if newest == cell { older } else { newest };
        let oldest = if oldest == cell { newer } else { oldest };
        self.words.set(ENDS, pair(newest, oldest));
    }

    fn link_newest(&self, cell: u32) {
        let (newest, oldest) = self.links(self.words.get(ENDS));
        if (newest == 0) != (oldest == 0) {
            self.spoil();
        }
        self.set(cell, 2, pair(0, newest));
        self.set(newest, 2, pair(cell, low(self.word(newest, 2))));
        self.words.set(ENDS, pair(cell, if oldest == 0 { cell } else { oldest }));
    }

    fn links(&self, word: u64) -> (u32, u32) {
        let (first, second) = both(word);
        (self.link(first), self.link(second))
    }
}

fn next_in_bucket(table: &Locked<'_>, cell: u32) -> u32 {
    low(table.word(cell, 1))
}

/// The same in every process: no random keys.
fn hash(key: &[u8]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(FACTOR);
        (product >> 64) as u64 ^ product as u64
    };
    let words = key.chunks(8).map(word_of);
    let hash = words
        .fold(FACTOR ^ key.len() as u64, |hash, word| fold(hash, word.rotate_left(32) ^ FACTOR));
    fold(hash, FACTOR) as u32
}

fn word_of(bytes: &[u8]) -> u64 {
    if let Some(whole) = bytes.first_chunk() {
        return u64::from_le_bytes(*whole);
    }
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
