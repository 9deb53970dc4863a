//! The last handlers and operations that stalled each loop, in words that all processes share.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Duration;

/// The number of entries for each loop.
const KEPT: usize = 8;
/// The words of an entry: the time (0 while the entry is written), how long it took, how much of
/// that its thread waited for a processor, whether it was preempted, the length of its name, and
/// the name.
pub(crate) const ENTRY: usize = 32;
const AT: usize = 0;
const TOOK: usize = 1;
const WAITED: usize = 2;
const PREEMPTED: usize = 3;
const LENGTH: usize = 4;
const NAME: usize = 5;
/// The words of all entries, after the number of the next one.
pub(crate) const WORDS: usize = 8 + KEPT * ENTRY;
const FIRST: usize = 8;

/// A handler that took long, and so stalled its loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// When it happened, by the monotonic clock in nanoseconds.
    pub at: u64,
    /// How long it took.
    pub took: Duration,
    /// How long its thread was runnable and waited for a processor in that time.
    pub waited: Duration,
    /// Without that wait it would not have taken long.
    pub preempted: bool,
    /// The operation that took the time. A long name is cut off.
    pub what: String,
}

/// Adds an entry in place of the oldest one.
pub(crate) fn note(words: &[AtomicU64], culprit: &Culprit) {
    let Some((head, entries)) = words.split_at_checked(FIRST) else { return };
    let Some(next) = head.first() else { return };
    let at = next.load(Relaxed);
    next.store(at.wrapping_add(1), Relaxed);
    let Some(entry) = entries.chunks_exact(ENTRY).nth(at as usize % KEPT) else { return };
    write(entry, culprit);
}

/// Writes an entry. Only one thread writes to it.
pub(crate) fn write(entry: &[AtomicU64], culprit: &Culprit) {
    let set =
        |at: usize, value: u64| entry.get(at).into_iter().for_each(|w| w.store(value, Relaxed));
    if let Some(at) = entry.get(AT) {
        at.store(0, SeqCst);
    }
    fence(SeqCst);
    set(TOOK, culprit.took.as_nanos() as u64);
    set(WAITED, culprit.waited.as_nanos() as u64);
    set(PREEMPTED, culprit.preempted.into());
    let name = culprit.what.as_bytes();
    let name = name.get(..name.len().min((ENTRY - NAME) * 8)).unwrap_or_default();
    set(LENGTH, name.len() as u64);
    for (i, piece) in name.chunks(8).enumerate() {
        let mut bytes = [0; 8];
        bytes.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
        set(NAME + i, u64::from_ne_bytes(bytes));
    }
    if let Some(at) = entry.get(AT) {
        at.store(culprit.at.max(1), SeqCst);
    }
}

/// Clears an entry.
pub(crate) fn clear(entry: &[AtomicU64]) {
    entry.get(AT).into_iter().for_each(|at| at.store(0, SeqCst));
}

/// All entries, in any order.
pub(crate) fn all(words: &[AtomicU64]) -> Vec<Culprit> {
    let entries = words.get(FIRST..).unwrap_or_default().chunks_exact(ENTRY);
    entries.filter_map(read).collect()
}

/// Reads an entry. None if it is empty or being written.
pub(crate) fn read(entry: &[AtomicU64]) -> Option<Culprit> {
    let get = |at: usize| entry.get(at).map_or(0, |word| word.load(SeqCst));
    let at = get(AT);
    let bytes: Vec<u8> = (NAME..ENTRY).flat_map(|at| get(at).to_ne_bytes()).collect();
    let name = bytes.get(..(get(LENGTH) as usize).min(bytes.len()))?;
    let culprit = Culprit {
        at,
        took: Duration::from_nanos(get(TOOK)),
        waited: Duration::from_nanos(get(WAITED)),
        preempted: get(PREEMPTED) != 0,
        what: String::from_utf8_lossy(name).into_owned(),
    };
    (at != 0 && get(AT) == at).then_some(culprit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_long_names_cut() {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        assert!(all(&words).is_empty());
        let culprit = |at: u64| Culprit {
            at,
            took: Duration::from_millis(at),
            waited: Duration::from_millis(1),
            preempted: at.is_multiple_of(2),
            what: format!("number {at}"),
        };
        (1..=10).for_each(|at| note(&words, &culprit(at)));
        let mut found = all(&words);
        found.sort_by_key(|culprit| culprit.at);
        assert_eq!(found, (3..=10).map(culprit).collect::<Vec<_>>());
        note(&words, &Culprit { what: "x".repeat(1000), ..culprit(11) });
        let cut = all(&words).into_iter().find(|culprit| culprit.at == 11).unwrap();
        assert_eq!(cut.what, "x".repeat((ENTRY - NAME) * 8));
    }
}
