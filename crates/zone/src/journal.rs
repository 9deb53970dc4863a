//! Writes that can be undone: before a word changes, its place and its old value are noted.
//!
//! A change of the table takes several writes, and its writer may be killed between any two. The
//! notes stand in the zone itself, so that the next holder of the lock can put the old values back.

use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use crate::seam;

/// Writes that one change may take.
pub const NOTES: usize = 32;
/// Words that the journal itself takes: how many notes there are, and two words for each.
pub const WORDS: usize = 1 + 2 * NOTES;

/// The zone's words, changed through the journal that stands at `at`.
#[derive(Debug, Clone, Copy)]
pub struct Journal<'z> {
    words: &'z [AtomicU64],
    at: usize,
}

impl<'z> Journal<'z> {
    /// The journal of these words.
    pub fn new(words: &'z [AtomicU64], at: usize) -> Self {
        Journal { words, at }
    }

    /// A word.
    pub fn get(&self, at: usize) -> u64 {
        self.words.get(at).map_or(0, |w| w.load(Ordering::Relaxed))
    }

    /// Changes a word that nothing refers to yet.
    pub fn fill(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at)
            && seam::step()
        {
            #[cfg(test)]
            fault::point();
            word.store(value, Ordering::Relaxed);
            // A killed process has done all before the point where it was killed, and nothing after it; only
            // the compiler must keep the order. The same holds below.
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Changes a word, for now: until [`Journal::commit`] it can be undone.
    pub fn set(&self, at: usize, value: u64) {
        // A change takes fewer writes; only a word that was spoilt says otherwise.
        let n = (self.get(self.at) as usize).min(NOTES - 1);
        let note = self.at + 1 + 2 * n;
        self.fill(note, at as u64);
        self.fill(note + 1, self.get(at));
        self.fill(self.at, n as u64 + 1);
        self.fill(at, value);
    }

    /// The change is whole.
    pub fn commit(&self) {
        self.fill(self.at, 0);
    }

    /// A change is under way, or was when its writer ended.
    pub fn is_open(&self) -> bool {
        self.get(self.at) != 0
    }

    /// Puts back what was changed since the last commit. Killed in between, it is simply done again.
    pub fn undo(&self) {
        let mut n = (self.get(self.at) as usize).min(NOTES);
        while n > 0 {
            n -= 1;
            let note = self.at + 1 + 2 * n;
            let (at, before) = (self.get(note) as usize, self.get(note + 1));
            // The lock and the journal itself are never noted.
            if at >= self.at + WORDS {
                self.fill(at, before);
            }
            self.fill(self.at, n as u64);
        }
    }
}

/// Ends a change at any of its writes, as a signal would.
#[cfg(test)]
pub mod fault {
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// The write after this many panics.
    pub fn after(writes: u32) {
        LEFT.set(Some(writes));
    }

    /// No write panics; false if one has.
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
