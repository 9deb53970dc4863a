//! Complete answers that wait to be written. Their number and size are limited here, since no
//! client's pace limits them any more.

use std::sync::atomic::{AtomicU64, Ordering};

/// The most answers that wait.
const ANSWERS: u64 = 512;
/// No answer is added while this many bytes wait.
const BYTES: u64 = 64 << 20;

/// The answers that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    answers: AtomicU64,
    bytes: AtomicU64,
}

/// An answer that waits. Dropping it frees its place.
#[derive(Debug)]
pub(crate) struct BacklogSlot<'b> {
    backlog: &'b Backlog,
    bytes: u64,
}

impl Backlog {
    /// Adds an answer. `None` if the backlog is full.
    pub(crate) fn enter(&self, bytes: u64) -> Option<BacklogSlot<'_>> {
        let answers = self.answers.fetch_add(1, Ordering::Relaxed);
        let waiting = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // If the backlog is full, this is dropped here, which subtracts again.
        let place = BacklogSlot { backlog: self, bytes };
        (answers < ANSWERS && waiting < BYTES).then_some(place)
    }
}

impl Drop for BacklogSlot<'_> {
    fn drop(&mut self) {
        self.backlog.answers.fetch_sub(1, Ordering::Relaxed);
        self.backlog.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_full_at_a_number_and_at_a_length() {
        let backlog = Backlog::default();
        let mut places: Vec<_> = std::iter::from_fn(|| backlog.enter(1)).collect();
        assert_eq!(places.len() as u64, ANSWERS);
        places.truncate(10);
        let large = backlog.enter(BYTES);
        assert!(large.is_some() && backlog.enter(1).is_none());
        drop(large);
        assert!(backlog.enter(1).is_some());
    }
}
