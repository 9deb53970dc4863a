//! Complete answers that wait for the disk: bounded, since no client's pace limits them any more.

use std::sync::atomic::{AtomicU64, Ordering};

/// So many may wait.
const ANSWERS: u64 = 512;
/// So much of their bodies.
const BYTES: u64 = 64 << 20;

/// What waits to be written.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    answers: AtomicU64,
    bytes: AtomicU64,
}

/// One that waits.
#[derive(Debug)]
pub(crate) struct BacklogSlot<'b> {
    backlog: &'b Backlog,
    bytes: u64,
}

impl Backlog {
    /// A place for an answer, if it need not be the last straw.
    pub(crate) fn enter(&self, bytes: u64) -> Option<BacklogSlot<'_>> {
        let answers = self.answers.fetch_add(1, Ordering::Relaxed);
        let waiting = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Given back when it is dropped, whether it is taken or not.
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
