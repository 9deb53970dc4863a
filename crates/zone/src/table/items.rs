//! Items of an entry: byte strings in a line with two ends.
//!
//! The cells of the items follow those of the entry's key. So an entry is removed with all its
//! items in one change. An item at either end is added or removed in one change, too, and at a cost
//! that does not depend on the number of items.
//!
//! ```text
//! first cell of an item:     0 | next cell    length | item before    bytes...
//! more cells:                0 | next cell    bytes...
//! last value of the entry:   last item | number of items
//! ```

use super::{CELL, Locked, LockedEntry, Shape, both, high, low, pair, word_of};

/// Words of an item before its bytes.
const HEAD: usize = 2;

/// An end of a line of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Before all others.
    First,
    /// Behind all others.
    Last,
}

/// An item, and the cell and the item beside it.
struct Place {
    item: u32,
    /// The item's last cell, and how many cells it has.
    end: u32,
    count: usize,
    /// The cell that links to the item.
    before: u32,
    /// The next item, or 0.
    next: u32,
}

impl Shape {
    /// The cells of an item of this length.
    fn cells_of_item(&self, length: usize) -> usize {
        1 + length.saturating_sub(8 * (CELL - HEAD)).div_ceil(8 * (CELL - 1))
    }
}

/// Items. The last value of an entry that has some belongs to them. It is 0 before the first one.
impl Locked<'_> {
    /// The number of items of an entry.
    pub fn items(&self, entry: LockedEntry) -> u32 {
        low(self.items_word(entry.0))
    }

    /// Appends the item at an end. False if the entry has no items.
    pub fn item(&self, entry: LockedEntry, end: End, out: &mut Vec<u8>) -> bool {
        let Some(place) = self.place(entry.0, end) else { return false };
        let length = high(self.word(place.item, 1)) as usize;
        self.read(self.cells_from(place.item, HEAD), (0, length), out);
        !self.spoilt.get()
    }

    /// Adds an item at an end. False if there is no free space, and nothing changes.
    pub fn push_item(&mut self, entry: LockedEntry, bytes: &[u8], end: End) -> bool {
        self.push(entry.0, bytes, end).is_some() && !self.spoilt.get()
    }

    fn push(&self, entry: u32, bytes: &[u8], end: End) -> Option<()> {
        let count = self.shape.cells_of_item(bytes.len());
        let item = self.first_free(count)?;
        let item_end = self.last_of(item, count)?;
        let (key_end, first, last) = self.ends(entry)?;
        let (before, next) = match end {
            End::First => (key_end, first),
            End::Last if last == 0 => (key_end, 0),
            End::Last => (self.end_of_item(last)?.0, 0),
        };
        // These cells are not visible to others yet, except for the links of the free list.
        let item_before = if end == End::Last { last } else { 0 };
        self.fill(item, 1, pair(bytes.len() as u32, item_before));
        for (at, bytes) in self.cells_from(item, HEAD).flatten().zip(bytes.chunks(8)) {
            self.words.fill(at, word_of(bytes));
        }

        self.take(item, item_end, count);
        self.set_next(item_end, next);
        self.set_next(before, item);
        self.set_item_before(next, item);
        let last = if next == 0 { item } else { last };
        self.set_items(entry, last, self.items(LockedEntry(entry)).saturating_add(1));
        self.words.commit();
        Some(())
    }

    /// Removes the item at an end, if there is one.
    pub fn remove_item(&mut self, entry: LockedEntry, end: End) {
        let Some(place) = self.place(entry.0, end) else { return };
        let item_before = low(self.word(place.item, 1));
        self.set_next(place.before, place.next);
        self.set_item_before(place.next, item_before);
        let (last, number) = both(self.items_word(entry.0));
        let last = if last == place.item { item_before } else { last };
        self.set_items(entry.0, last, number.saturating_sub(1));
        self.give_back(place.item, place.end, place.count);
        self.words.commit();
    }

    /// The last cell of an entry with its items, and the number of its cells.
    pub(super) fn end_of_entry(&self, entry: u32) -> Option<(u32, usize)> {
        let mut count = self.shape.cells_of(high(self.word(entry, 1)) as usize);
        let mut end = self.last_of(entry, count)?;
        let mut last = 0;
        loop {
            let item = self.next(end);
            if item == 0 {
                break;
            }
            if low(self.word(item, 1)) != last || count > self.shape.cells as usize {
                self.spoil();
                return None;
            }
            let (item_end, cells) = self.end_of_item(item)?;
            (last, end, count) = (item, item_end, count + cells);
        }
        if last != 0 && last != high(self.items_word(entry)) {
            self.spoil();
        }
        (!self.spoilt.get()).then_some((end, count))
    }

    /// The item at an end.
    fn place(&self, entry: u32, end: End) -> Option<Place> {
        let (key_end, first, last) = self.ends(entry)?;
        let item = if end == End::First { first } else { last };
        if item == 0 {
            return None;
        }
        let (item_end, count) = self.end_of_item(item)?;
        let before = match self.link(low(self.word(item, 1))) {
            0 => key_end,
            item => self.end_of_item(item)?.0,
        };
        let next = self.next(item_end);
        if self.next(before) != item || (next == 0) != (item == last) {
            self.spoil();
        }
        let place = Place { item, end: item_end, count, before, next };
        (!self.spoilt.get()).then_some(place)
    }

    /// The last cell of an entry's key, its first item and its last item.
    fn ends(&self, entry: u32) -> Option<(u32, u32, u32)> {
        let count = self.shape.cells_of(high(self.word(entry, 1)) as usize);
        let key_end = self.last_of(entry, count)?;
        let (first, last) = (self.next(key_end), self.link(high(self.items_word(entry))));
        if (first == 0) != (last == 0) || (first != 0 && low(self.word(first, 1)) != 0) {
            self.spoil();
        }
        (!self.spoilt.get()).then_some((key_end, first, last))
    }

    /// The last cell of an item, and the number of its cells.
    fn end_of_item(&self, item: u32) -> Option<(u32, usize)> {
        let count = self.shape.cells_of_item(high(self.word(item, 1)) as usize);
        Some((self.last_of(item, count)?, count))
    }

    /// The cell that follows another.
    fn next(&self, cell: u32) -> u32 {
        self.link(low(self.word(cell, 0)))
    }

    fn set_next(&self, cell: u32, next: u32) {
        self.set(cell, 0, pair(high(self.word(cell, 0)), next));
    }

    fn set_item_before(&self, item: u32, before: u32) {
        self.set(item, 1, pair(high(self.word(item, 1)), before));
    }

    fn items_at(&self) -> Option<usize> {
        Some(super::HEAD + self.shape.values.checked_sub(1)?)
    }

    fn items_word(&self, entry: u32) -> u64 {
        self.items_at().map_or(0, |at| self.word(entry, at))
    }

    fn set_items(&self, entry: u32, last: u32, number: u32) {
        if let Some(at) = self.items_at() {
            self.set(entry, at, pair(last, number));
        }
    }
}

/// For the model of several processes.
#[cfg(test)]
impl Locked<'_> {
    /// The items of an entry, from the first to the last.
    pub(crate) fn all_items(&self, entry: LockedEntry) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut item = self.ends(entry.0).map_or(0, |(_, first, _)| first);
        while item != 0 {
            let mut bytes = Vec::new();
            let length = high(self.word(item, 1)) as usize;
            self.read(self.cells_from(item, HEAD), (0, length), &mut bytes);
            all.push(bytes);
            item = self.end_of_item(item).map_or(0, |(end, _)| self.next(end));
        }
        assert_eq!(all.len(), self.items(entry) as usize);
        all
    }
}

#[cfg(test)]
mod tests;
