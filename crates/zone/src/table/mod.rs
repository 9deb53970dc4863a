//! A table of keys and values in a fixed number of words. Its entries are in the order of their
//! last use.
//!
//! Memory is divided into cells of 64 bytes. An entry takes one cell, or more if its key is long.
//! The cells of an entry are linked in the same way as free cells. So taking them from the free
//! list needs two writes, however long the key is. Cells that were never used are never touched, so
//! the kernel provides no memory for them.
//!
//! ```text
//! first cell:  hash | next cell    key length | next in bucket    newer | older    values...    key...
//! more cells:     0 | next cell    key...
//! ```
//!
//! A record is an entry that is found by the first bytes of its key. The rest of the key is its
//! contents. Any entry may have [items].
//!
//! Each word may have any value, since a compromised process may write any. A walk takes at most as
//! many steps as the table has cells, and no link leads out of the table. A guard that finds
//! contradictory words shows a table without entries and without free space from then on, and
//! empties the table when it is dropped.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;

use crate::journal::{self, Journal};
use crate::lock::{self, Acquired};
use crate::spoilt;

mod items;
mod keys;

pub use items::End;

/// Words in a cell.
const CELL: usize = 8;
/// Words of an entry before its values.
const HEAD: usize = 3;

const LOCK: usize = 0;
const JOURNAL: usize = 1;
/// The first free cell, and the number of free cells.
const FREE: usize = JOURNAL + journal::WORDS;
/// The number of cells that were ever used.
const USED: usize = FREE + 1;
/// The newest and the oldest entry.
const ENDS: usize = USED + 1;
/// The number of entries.
const LEN: usize = ENDS + 1;
const BUCKETS: usize = LEN + 1;

/// The division of a zone's words.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    buckets: usize,
    cells: u32,
    values: usize,
}

impl Shape {
    /// Divides this many words, with `values` for each entry. `None` if they are too few.
    pub fn new(words: usize, values: usize) -> Option<Shape> {
        if values + HEAD > CELL {
            return None;
        }
        // One bucket for two cells.
        let pairs = words.checked_sub(BUCKETS)? / (2 * CELL + 1);
        let pairs = pairs.min(u32::MAX as usize / 4);
        (pairs > 0).then_some(Shape { buckets: pairs, cells: 2 * pairs as u32, values })
    }

    /// The first word of a cell; cells are numbered from 1.
    fn cell(&self, cell: u32) -> usize {
        BUCKETS + self.buckets + (cell as usize).wrapping_sub(1).wrapping_mul(CELL)
    }

    /// The bytes of a key that fit in the first cell.
    fn inline(&self) -> usize {
        8 * (CELL - HEAD - self.values)
    }

    /// The cells of an entry with a key of this length.
    fn cells_of(&self, key: usize) -> usize {
        1 + key.saturating_sub(self.inline()).div_ceil(8 * (CELL - 1))
    }
}

/// The name of a record: a hash. So names are practically unique and take a fixed number of whole
/// words.
pub type RecordName = [u8; 32];

/// An entry of a locked table. It stays valid without the lock only while something, such as a
/// count in its value, prevents its removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockedEntry(u32);

/// A table, locked until this is dropped.
#[derive(Debug)]
pub struct Locked<'z> {
    lock: &'z AtomicU64,
    words: Journal<'z>,
    shape: &'z Shape,
    /// The zone's name.
    name: &'z str,
    /// Contradictory words were found.
    spoilt: Cell<bool>,
    /// The entries that this guard has removed. They cannot exceed the cells.
    removed: u32,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.spoilt.get() {
            self.empty();
        } else {
            // Complete changes leave nothing to undo, but a panic may have interrupted one.
            self.words.undo();
        }
        lock::release(self.lock);
        if self.spoilt.get() {
            spoilt::report(self.name);
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
        // A living holder leaves complete changes. A holder that was killed while it emptied the
        // table leaves an impossible number of entries.
        if journal.is_open() || table.len() > u64::from(shape.cells) {
            table.spoil();
        }
        table
    }

    /// The number of entries.
    pub fn len(&self) -> u64 {
        self.words.get(LEN)
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds the entry of a key.
    pub fn find(&self, key: &[u8]) -> Option<LockedEntry> {
        self.search(key, |len| len == key.len())
    }

    /// Finds the record of a name.
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

    /// Adds the newest entry, for a key that the table does not have. Its values are 0. `None` if
    /// there is no free space; the caller then removes something.
    pub fn add(&mut self, key: &[u8]) -> Option<LockedEntry> {
        self.add_hashed(hash(key), key, &[])
    }

    /// Adds a record, as [`Locked::add`]. A table has either records or plain entries.
    pub fn add_record(&mut self, name: &RecordName, contents: &[u8]) -> Option<LockedEntry> {
        self.add_hashed(hash(name), name, contents)
    }

    /// The key is `key` followed by `more`. If there is `more`, `key` consists of whole words.
    fn add_hashed(&mut self, hash: u32, key: &[u8], more: &[u8]) -> Option<LockedEntry> {
        let length = key.len() + more.len();
        let count = self.shape.cells_of(length);
        let Some(cell) = self.first_free(count) else {
            if self.is_empty() && count <= self.shape.cells as usize {
                // Cells are lost: they are neither free nor part of an entry.
                self.spoil();
            }
            return None;
        };
        let bucket = self.bucket(hash);
        // These cells are not visible to others yet, except for the links of the free list.
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

    /// Replaces the contents and values of a record, all or none, and makes it the newest. False if
    /// the new contents need another number of cells or more words than one change may have, or if
    /// the record has items. The record then stays as it is.
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
        let end = self.last_of(record.0, cells);
        if end.is_none_or(|end| low(self.word(end, 0)) != 0) {
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

    /// The least recently used entry.
    pub fn oldest(&self) -> Option<LockedEntry> {
        let oldest = self.link(low(self.words.get(ENDS)));
        if (oldest == 0) != self.is_empty() {
            self.spoil();
        }
        (oldest != 0 && !self.spoilt.get()).then_some(LockedEntry(oldest))
    }

    /// All entries, the least recently used first.
    pub fn entries(&self) -> impl Iterator<Item = LockedEntry> {
        let newer = |table: &Self, cell| high(table.word(cell, 2));
        self.entries_from(low(self.words.get(ENDS)), newer)
    }

    /// Whether a record with this many bytes of contents fits into the empty table.
    pub fn could_hold(&self, contents: usize) -> bool {
        self.shape.cells_of(size_of::<RecordName>() + contents) <= self.shape.cells as usize
    }

    /// Bytes of memory that no entry uses.
    pub fn free(&self) -> u64 {
        let unused = u64::from(self.shape.cells).saturating_sub(self.words.get(USED));
        (unused + u64::from(high(self.words.get(FREE)))) * (CELL as u64 * 8)
    }

    /// Makes an entry the newest.
    pub fn touch(&mut self, entry: LockedEntry) {
        if high(self.words.get(ENDS)) != entry.0 {
            self.unlink(entry.0);
            self.link_newest(entry.0);
            self.words.commit();
        }
    }

    /// Removes an entry.
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
        if let Some((last, count)) = self.end_of_entry(cell) {
            self.give_back(cell, last, count);
        }
        self.words.set(LEN, self.len().saturating_sub(1));
        self.words.commit();
    }

    /// Reads a value of an entry.
    pub fn value(&self, entry: LockedEntry, i: usize) -> u64 {
        debug_assert!(i < self.shape.values);
        self.word(entry.0, HEAD + i)
    }

    /// Changes the first values of an entry, all or none.
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
        // A change of one word is atomic and needs no journal.
        self.fill(entry.0, HEAD + i, value);
    }

    /// Appends a part of a record's contents: up to `most` bytes from `first` on.
    pub fn part(&self, record: LockedEntry, (first, most): (usize, usize), out: &mut Vec<u8>) {
        self.key_part(record, size_of::<RecordName>() + first, most, out);
    }

    /// The contents of a record.
    pub fn contents(&self, record: LockedEntry) -> Vec<u8> {
        let mut all = Vec::new();
        self.part(record, (0, usize::MAX), &mut all);
        all
    }

    /// Appends the key of an entry.
    pub fn key(&self, entry: LockedEntry, out: &mut Vec<u8>) {
        self.key_part(entry, 0, usize::MAX, out);
    }
}

/// The handling of contradictory words.
impl Locked<'_> {
    /// Makes the table appear empty and full until it is emptied.
    #[cold]
    fn spoil(&self) {
        self.spoilt.set(true);
    }

    /// A link in a word. 0 leads nowhere; so does a link out of the table.
    fn link(&self, to: u32) -> u32 {
        if to > self.shape.cells {
            self.spoil();
        }
        if self.spoilt.get() { 0 } else { to }
    }

    /// The entries of a linked list, at most as many as the table has.
    fn entries_from(
        &self,
        first: u32,
        next: impl Fn(&Self, u32) -> u32,
    ) -> impl Iterator<Item = LockedEntry> {
        let (mut at, mut left) = (self.link(first), self.len());
        std::iter::from_fn(move || {
            if at == 0 || left == 0 {
                // The list is too long or circular.
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

    /// Makes an empty table. If the process is killed meanwhile, the next one repeats it.
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
        // There are fewer than 2^32 buckets, and each bit of the hash counts.
        BUCKETS + ((u64::from(hash) * self.shape.buckets as u64) >> 32) as usize
    }

    /// The first of `count` linked free cells. They stay free until [`Locked::take`].
    fn first_free(&self, count: usize) -> Option<u32> {
        let used = self.link(u32::try_from(self.words.get(USED)).unwrap_or(u32::MAX));
        if high(self.words.get(FREE)) > used {
            self.spoil();
        }
        let unused = self.shape.cells - used;
        if (high(self.words.get(FREE)) as usize) < count && unused > 0 {
            // Adds cells that were never used to the free list, as many as are needed or all.
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

    /// Removes the cells from `first` to `last`, which are the head of the free list.
    fn take(&self, first: u32, last: u32, count: usize) {
        let free = self.words.get(FREE);
        let (hash, rest) = (high(self.word(last, 0)), low(self.word(last, 0)));
        if low(free) != first {
            self.spoil();
        }
        self.words.set(FREE, pair(high(free).saturating_sub(count as u32), rest));
        self.set(last, 0, pair(hash, 0));
    }

    /// Puts the cells from `first` to `last` at the head of the free list.
    fn give_back(&self, first: u32, last: u32, count: usize) {
        let free = self.words.get(FREE);
        self.set(last, 0, pair(high(self.word(last, 0)), low(free)));
        self.words.set(FREE, pair(high(free).saturating_add(count as u32), first));
    }

    /// The last of `count` linked cells. `None` if there are fewer.
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

/// The order of use.
impl Locked<'_> {
    fn unlink(&self, cell: u32) {
        let (newer, older) = self.links(self.word(cell, 2));
        let (newest, oldest) = self.links(self.words.get(ENDS));
        // Both neighbours must link to this cell, or the ends must.
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

/// The same in every process, so it has no random seed.
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

/// For the model of several processes.
#[cfg(test)]
impl Locked<'_> {
    pub(crate) fn cells_of(&self, entry: LockedEntry) -> usize {
        self.end_of_entry(entry.0).map_or(0, |(_, count)| count)
    }

    pub(crate) fn cells(&self) -> u64 {
        u64::from(self.shape.cells)
    }
}

#[cfg(test)]
mod tests;
