//! An undo log. Before a word changes, its place and its old value are noted.
//!
//! A change of a table takes several writes, and the process may be killed between any two. The
//! notes are in the zone itself, so the next holder of the lock can restore the old values.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use crate::seam;

/// The most writes of one change.
pub const NOTES: usize = 32;
/// The words of the journal: the number of notes, and two words for each.
pub const WORDS: usize = 1 + 2 * NOTES;

/// The words of a zone, with the journal at `at`.
#[derive(Debug, Clone, Copy)]
pub struct Journal<'z> {
    words: &'z [AtomicU64],
    at: usize,
}

impl<'z> Journal<'z> {
    /// The words with the journal at `at`.
    pub fn new(words: &'z [AtomicU64], at: usize) -> Self {
        Journal { words, at }
    }

    /// Reads a word.
    pub fn get(&self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |w| w.load(Ordering::Relaxed))
    }

    /// Changes a word without a note, such as one to which nothing links yet.
    pub fn fill(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at)
            && seam::step()
        {
            #[cfg(test)]
            fault::point();
            word.store(value, Ordering::Relaxed);
            // A killed process has done all its writes up to some point and none after it. So only
            // the compiler must keep their order. This holds for the whole crate.
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Changes a word. Until [`Journal::commit`] the change can be undone.
    pub fn set(&self, at: usize, value: u64) {
        // A change takes fewer writes. The number is greater only if a word was spoilt.
        let n = (self.get(self.at) as usize).min(NOTES - 1);
        let note = self.at + 1 + 2 * n;
        self.fill(note, at as u64);
        self.fill(note + 1, self.get(at));
        self.fill(self.at, n as u64 + 1);
        self.fill(at, value);
    }

    /// Ends a change, which can no longer be undone.
    pub fn commit(&self) {
        self.fill(self.at, 0);
    }

    /// Whether a change is in progress, or its process has died.
    pub fn is_open(&self) -> bool {
        self.get(self.at) != 0
    }

    /// Restores the words that were changed since the last commit. If the process is killed
    /// meanwhile, the next one repeats it.
    pub fn undo(&self) {
        let mut n = (self.get(self.at) as usize).min(NOTES);
        while n > 0 {
            n -= 1;
            let note = self.at + 1 + 2 * n;
            let (at, before) = (self.get(note) as usize, self.get(note + 1));
            // The lock and the journal are never noted.
            if at >= self.at + WORDS {
                self.fill(at, before);
            }
            self.fill(self.at, n as u64);
        }
    }
}

/// Interrupts a change at any of its writes, as a signal would.
#[cfg(test)]
pub mod fault {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Makes the write after this many panic.
    pub fn after(writes: u32) {
        LEFT.set(Some(writes));
    }

    /// Makes no write panic. False if one has.
    pub fn off() -> bool {
        LEFT.take().is_some()
    }

    pub fn point() {
        match LEFT.get() {
            None => {}
            Some(0) => {
                LEFT.set(None);
                panic!("killed here");
            }
            Some(n) => LEFT.set(Some(n - 1)),
        }
    }
}
