//! Rows of words: the form of a zone for a few wide records that are always at hand.
//!
//! A row is found by a name of 128 bits and then stays in place, so that its user may remember the
//! place. When all rows are taken, a new name gets the least recently used row that no process
//! holds. A user that remembers a place checks whether the row still has its name ([`Rows::is`]).
//!
//! A row's values are independent words. A writer that is killed leaves some new and some old
//! values, which readers must tolerate. What a process *holds* of a row is counted for each
//! process, and the counts of ended processes are released. This needs no journal: the total is the
//! sum of the counts, so a process that takes the lock from a dead one computes it again. A row has
//! no name while it passes from one name to the next.
//!
//! As in a table, each word may have any value. If the number of rows exceeds the zone, all rows
//! are emptied.
//!
//! ```text
//! lock | rows in use | owners...    rows: name (2) | last use | held by all | held by each owner... | values...
//! ```

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, compiler_fence};

use crate::lock::{self, Acquired};
use crate::{owner, seam, spoilt};

/// The number of processes with their own counts. All others share the last count, which is never
/// released.
const OWNERS: usize = 64;
const LOCK: usize = 0;
const USED: usize = 1;
const OWNER: usize = 2;
const FIRST: usize = (OWNER + OWNERS).next_multiple_of(8);

const NAME: usize = 0;
const LAST_USE: usize = 2;
const HELD: usize = 3;
const SHARE: usize = 4;
const VALUES: usize = SHARE + OWNERS;

/// The rows of a zone, locked until this is dropped.
#[derive(Debug)]
pub struct Rows<'z> {
    words: &'z [AtomicU64],
    values: usize,
    /// The zone's name.
    name: &'z str,
    /// Contradictory words were found.
    spoilt: bool,
}

/// The place of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row(usize);

/// The origin of a claimed row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// Another process or configuration has used the row under this name.
    Known(Row),
    /// The row is new: all its values are 0.
    New(Row),
}

impl Drop for Rows<'_> {
    fn drop(&mut self) {
        if let Some(lock) = self.words.get(LOCK) {
            lock::release(lock);
        }
        if self.spoilt {
            spoilt::report(self.name);
        }
    }
}

/// Whether a thread holds the lock of these words.
pub(crate) fn is_held(words: &[AtomicU64]) -> bool {
    words.get(LOCK).is_some_and(|lock| lock.load(Relaxed) != 0)
}

/// The number of rows in a zone of this many bytes.
pub fn capacity(bytes: u64, values: usize) -> usize {
    let words = usize::try_from(bytes / 8).unwrap_or(usize::MAX);
    words.saturating_sub(FIRST) / (VALUES + values)
}

impl<'z> Rows<'z> {
    pub(crate) fn new(words: &'z [AtomicU64], values: usize, name: &'z str) -> Rows<'z> {
        let mut rows = Rows { words, values, name, spoilt: false };
        if let Some(lock) = words.get(LOCK) {
            let taken = lock::acquire(lock);
            if rows.get(USED) > rows.capacity() as u64 {
                rows.empty();
            } else if taken == Acquired::FromDead {
                rows.add_up();
            }
        }
        rows
    }

    /// Computes all totals again, after a killed process may have left wrong ones.
    fn add_up(&mut self) {
        for i in 0..self.used() {
            self.add_up_row(self.row(i));
        }
    }

    /// Sets the total of a row to the sum of the processes' counts.
    fn add_up_row(&mut self, row: Row) {
        let shares = (0..OWNERS).map(|owner| self.get(row.0 + SHARE + owner));
        let held = shares.fold(0, u64::saturating_add);
        self.set(row.0 + HELD, held);
    }

    /// Makes all rows unused. If the process is killed meanwhile, the next one repeats it.
    #[cold]
    fn empty(&mut self) {
        self.spoilt = true;
        for at in (LOCK + 1..self.words.len()).filter(|at| *at != USED) {
            self.set(at, 0);
        }
        self.set(USED, 0);
    }

    fn capacity(&self) -> usize {
        self.words.len().saturating_sub(FIRST) / self.width()
    }

    /// The number of rows in use. Another process may write any number while this one holds the
    /// lock, so it is bounded.
    fn used(&self) -> usize {
        self.capacity().min(self.get(USED) as usize)
    }

    /// Finds or makes the row of a name. `now` only orders the uses. `None` if all rows are held.
    pub fn claim(&mut self, name: u128, now: u64) -> Option<Claimed> {
        let used = self.used();
        let known = (0..used).map(|i| self.row(i)).find(|row| self.is(*row, name));
        if let Some(row) = known {
            self.set(row.0 + LAST_USE, now);
            return Some(Claimed::Known(row));
        }
        let row = match used < self.capacity() {
            true => {
                self.set(USED, used as u64 + 1);
                self.row(used)
            }
            false => self.idlest(used)?,
        };
        // If the process is killed in between, the row has no name or half of one, and is never
        // found.
        for at in row.0..row.0 + self.width() {
            self.set(at, 0);
        }
        self.set(row.0 + LAST_USE, now);
        self.set(row.0 + NAME, name as u64);
        self.set(row.0 + NAME + 1, (name >> 64) as u64);
        Some(Claimed::New(row))
    }

    /// All rows in use, with their names. A row whose process was killed may have half of a name.
    pub fn named(&self) -> impl Iterator<Item = (u128, Row)> + '_ {
        (0..self.used()).map(|i| {
            let row = self.row(i);
            let half = |at| u128::from(self.get(row.0 + NAME + at));
            (half(0) | half(1) << 64, row)
        })
    }

    /// Whether a row still has this name.
    pub fn is(&self, row: Row, name: u128) -> bool {
        self.get(row.0 + NAME) == name as u64 && self.get(row.0 + NAME + 1) == (name >> 64) as u64
    }

    /// Records a use of the row.
    pub fn touch(&mut self, row: Row, now: u64) {
        self.set(row.0 + LAST_USE, now);
    }

    /// Reads a value.
    pub fn value(&self, row: Row, i: usize) -> u64 {
        debug_assert!(i < self.values);
        self.get(row.0 + VALUES + i)
    }

    /// Changes a value.
    pub fn set_value(&mut self, row: Row, i: usize, value: u64) {
        debug_assert!(i < self.values);
        let at = row.0 + VALUES + i;
        // An unchanged cache line stays in the caches of all processors.
        if self.get(at) != value {
            self.set(at, value);
        }
    }

    /// The sum of what all processes hold of a row.
    pub fn held(&self, row: Row) -> u64 {
        self.get(row.0 + HELD)
    }

    /// This process holds one more of a row.
    pub fn hold(&mut self, row: Row) {
        let share = row.0 + SHARE + self.owner();
        self.set(share, self.get(share).saturating_add(1));
        self.set(row.0 + HELD, self.held(row).saturating_add(1));
    }

    /// This process releases one of a row.
    pub fn release(&mut self, row: Row) {
        let share = row.0 + SHARE + self.owner();
        if self.get(share) > 0 {
            self.set(share, self.get(share) - 1);
            self.set(row.0 + HELD, self.held(row).saturating_sub(1));
        }
    }

    /// This process begins to use the rows. Releases counts of dead processes, and counts without
    /// an owner.
    pub(crate) fn enter(&mut self) {
        self.owner();
        for i in 0..self.used() {
            let row = self.row(i);
            // The last count belongs to no process.
            for at in 0..OWNERS - 1 {
                if self.get(OWNER + at) == 0 && self.get(row.0 + SHARE + at) != 0 {
                    self.set(row.0 + SHARE + at, 0);
                }
            }
            self.add_up_row(row);
        }
    }

    /// The index of this process among the owners. A new process releases the counts of dead ones.
    fn owner(&mut self) -> usize {
        let this = owner::this();
        if let Some(at) = (0..OWNERS).find(|at| self.get(OWNER + at) == this) {
            return at;
        }
        for at in 0..OWNERS {
            let known = self.get(OWNER + at);
            if known != 0 && !owner::is_alive(known) {
                self.bury(at);
            }
        }
        let free = (0..OWNERS - 1).find(|at| self.get(OWNER + at) == 0);
        if let Some(at) = free {
            self.set(OWNER + at, this);
        }
        free.unwrap_or(OWNERS - 1)
    }

    fn bury(&mut self, owner: usize) {
        for i in 0..self.used() {
            let row = self.row(i);
            self.set(row.0 + SHARE + owner, 0);
            self.add_up_row(row);
        }
        self.set(OWNER + owner, 0);
    }

    fn idlest(&self, used: usize) -> Option<Row> {
        let free = (0..used).map(|i| self.row(i)).filter(|row| self.held(*row) == 0);
        free.min_by_key(|row| self.get(row.0 + LAST_USE))
    }

    fn row(&self, i: usize) -> Row {
        Row(FIRST + i * self.width())
    }

    fn width(&self) -> usize {
        VALUES + self.values
    }

    fn get(&self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |word| word.load(Relaxed))
    }

    fn set(&mut self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at)
            && seam::step()
        {
            #[cfg(test)]
            crate::journal::fault::point();
            word.store(value, Relaxed);
            // As in the journal, only the compiler must keep the order.
            compiler_fence(SeqCst);
        }
    }
}

/// For the model of several processes.
#[cfg(test)]
impl Rows<'_> {
    pub(crate) fn all(&self) -> impl Iterator<Item = Row> {
        (0..self.used()).map(|i| self.row(i))
    }

    pub(crate) fn shares(&self, row: Row) -> impl Iterator<Item = (u64, u64)> {
        (0..OWNERS).map(move |at| (self.get(OWNER + at), self.get(row.0 + SHARE + at)))
    }
}

/// The words of a zone with this many rows.
#[cfg(test)]
pub(crate) fn words_for(rows: usize, values: usize) -> usize {
    FIRST + rows * (VALUES + values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(n: usize) -> Vec<AtomicU64> {
        (0..n).map(|_| AtomicU64::new(0)).collect()
    }

    /// Words for three rows of two values.
    fn three() -> Vec<AtomicU64> {
        let words = words(FIRST + 3 * (VALUES + 2) + 5);
        assert_eq!(capacity(words.len() as u64 * 8, 2), 3);
        words
    }

    fn new(rows: &mut Rows<'_>, name: u128, now: u64) -> Row {
        match rows.claim(name, now) {
            Some(Claimed::New(row)) => row,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_row_is_found_again_by_its_name() {
        let words = three();
        let row = {
            let mut rows = Rows::new(&words, 2, "rows");
            let row = new(&mut rows, 1 << 90, 1);
            rows.set_value(row, 1, 7);
            row
        };
        let mut rows = Rows::new(&words, 2, "rows");
        assert_eq!(rows.claim(1 << 90, 2), Some(Claimed::Known(row)));
        assert_eq!(rows.value(row, 1), 7);
        assert!(!rows.is(row, 1));
    }

    #[test]
    fn the_least_recently_used_free_row_makes_room() {
        let words = three();
        let mut rows = Rows::new(&words, 2, "rows");
        let [a, b, c] = [1, 2, 3].map(|name| new(&mut rows, name, name as u64));
        rows.hold(a);
        rows.touch(b, 9);
        rows.set_value(c, 0, 5);
        let d = new(&mut rows, 4, 10);
        assert_eq!((d, rows.value(d, 0)), (c, 0));
        assert!(!rows.is(c, 3) && rows.is(a, 1) && rows.is(b, 2));
        for row in [b, d] {
            rows.hold(row);
        }
        assert_eq!(rows.claim(5, 11), None);
        rows.release(b);
        assert_eq!(rows.claim(5, 11), Some(Claimed::New(b)));
    }

    /// Kills a holder at each of its writes in turn. A later process finds correct sums, and no row
    /// with parts of two names.
    #[test]
    fn a_holder_may_be_killed_anywhere() {
        let dead = u64::from(u32::MAX >> 1) << 32 | 7;
        for writes in 0.. {
            let words = three();
            for name in 1..4 {
                let mut rows = Rows::new(&words, 2, "rows");
                let row = new(&mut rows, name, name as u64);
                rows.set_value(row, 0, 7);
            }
            crate::journal::fault::after(writes);
            let killed = std::panic::catch_unwind(|| {
                let mut rows = std::mem::ManuallyDrop::new(Rows::new(&words, 2, "rows"));
                let Some(Claimed::New(row)) = rows.claim(9 << 64 | 9, 9) else { return };
                rows.hold(row);
                rows.hold(row);
                rows.release(row);
            });
            let whole = crate::journal::fault::off();
            words[LOCK].store(dead, Relaxed);
            let rows = Rows::new(&words, 2, "rows");
            for i in 0..3 {
                let row = rows.row(i);
                let shares: u64 = (0..OWNERS).map(|o| rows.get(row.0 + SHARE + o)).sum();
                assert_eq!(rows.held(row), shares, "after {writes} writes");
                if rows.is(row, 9 << 64 | 9) {
                    assert_eq!(rows.value(row, 0), 0, "after {writes} writes");
                }
            }
            drop(rows);
            if whole && killed.is_ok() {
                return;
            }
        }
    }

    #[test]
    fn what_no_process_holds_is_taken_back() {
        let words = three();
        let mut rows = Rows::new(&words, 2, "rows");
        let row = new(&mut rows, 1, 1);
        rows.hold(row);
        rows.set(row.0 + HELD, u64::MAX);
        rows.set(row.0 + SHARE + 5, 9);
        rows.enter();
        assert_eq!(rows.held(row), 1);
    }

    #[test]
    fn what_the_dead_held_is_taken_back() {
        let words = three();
        let mut rows = Rows::new(&words, 2, "rows");
        let row = new(&mut rows, 1, 1);
        // A pid above the kernel's limit cannot live.
        let dead = u64::from(u32::MAX >> 1) << 32 | 7;
        rows.set(OWNER, dead);
        rows.set(row.0 + SHARE, 3);
        rows.set(row.0 + HELD, 3);
        rows.hold(row);
        assert_eq!(rows.held(row), 1);
        rows.release(row);
        rows.release(row);
        assert_eq!(rows.held(row), 0);
    }
}
