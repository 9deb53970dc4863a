//! The recent activity of a loop: its present turn, whether it is armed, and how busy it was in the
//! last seconds.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Seconds over which loops are compared.
pub const WINDOW: u64 = 10;

const SECOND: u64 = 1_000_000_000;

/// The number of seconds that have an entry, more than the window.
const KEPT: usize = 16;

/// The words of a second's entry: its number and then [`Noted`].
const ENTRY: usize = 1 + NOTED_VALUES;

/// When the present turn began (0 while the loop sleeps), since when the loop is armed (0 if it is
/// not), the last second with an entry, the number of connections, and then an entry for each
/// second.
const BEGAN: usize = 0;
const ARMED: usize = 1;
const NOTED: usize = 2;
const OPEN: usize = 3;
const SECONDS: usize = 8;
pub(crate) const WORDS: usize = SECONDS + ENTRY * KEPT;

/// Counters of a loop at the start of a second: busy time, requests, accepted connections, bytes
/// sent.
pub(crate) type Noted = [u64; NOTED_VALUES];
const NOTED_VALUES: usize = 4;

#[inline]
fn get(words: &[AtomicU64], at: usize) -> u64 {
    words.get(at).map_or(0, |word| word.load(Relaxed))
}

#[inline]
fn set(words: &[AtomicU64], at: usize, value: u64) {
    if let Some(word) = words.get(at) {
        word.store(value, Relaxed);
    }
}

#[inline]
pub(crate) fn begin(words: &[AtomicU64], at: u64, counted: impl FnOnce() -> Noted) {
    set(words, BEGAN, at);
    let second = at / SECOND;
    if get(words, NOTED) != second {
        set(words, NOTED, second);
        let entry = SECONDS + ENTRY * (second as usize % KEPT);
        set(words, entry, second);
        for (i, value) in counted().into_iter().enumerate() {
            set(words, entry + 1 + i, value);
        }
    }
}

#[inline]
pub(crate) fn end(words: &[AtomicU64]) {
    set(words, BEGAN, 0);
}

#[inline]
pub(crate) fn set_open(words: &[AtomicU64], open: u64) {
    set(words, OPEN, open);
}

pub(crate) fn open(words: &[AtomicU64]) -> u64 {
    get(words, OPEN)
}

pub(crate) fn began(words: &[AtomicU64]) -> u64 {
    get(words, BEGAN)
}

#[inline]
pub(crate) fn set_armed(words: &[AtomicU64], at: Option<u64>) {
    set(words, ARMED, at.unwrap_or(0));
}

#[inline]
pub(crate) fn is_armed(words: &[AtomicU64]) -> bool {
    get(words, ARMED) != 0
}

pub(crate) fn armed_since(words: &[AtomicU64]) -> u64 {
    get(words, ARMED)
}

/// The second at which the window that ends at `now` begins.
fn from(now: u64) -> u64 {
    (now / SECOND).saturating_sub(WINDOW)
}

/// The length of the window that ends at `now`, in nanoseconds: [`WINDOW`] whole seconds and the
/// elapsed part of the present one.
pub(crate) fn window(now: u64) -> u64 {
    now.saturating_sub(from(now) * SECOND).max(1)
}

/// How much the counters have grown within the window.
pub(crate) fn growth(words: &[AtomicU64], counted: Noted, now: u64) -> Noted {
    let entries = (0..KEPT).map(|i| SECONDS + ENTRY * i);
    let known = entries.map(|entry| (get(words, entry), entry));
    let oldest = known.filter(|(second, _)| *second >= from(now) && *second > 0).min();
    let Some((_, entry)) = oldest else { return Noted::default() };
    std::array::from_fn(|i| counted[i].saturating_sub(get(words, entry + 1 + i)))
}

/// The share of the window in which the loop was busy; `worked` is the growth of its busy time.
/// That counter grows at the end of a turn, so the present turn is added.
pub(crate) fn busy_lately(words: &[AtomicU64], worked: u64, now: u64) -> f64 {
    let going_on = match began(words) {
        0 => 0,
        at => now.saturating_sub(at),
    };
    (worked.saturating_add(going_on) as f64 / window(now) as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<AtomicU64> {
        (0..WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn only_the_window_counts() {
        let (words, mut busy) = (words(), 0);
        for second in 100..150 {
            begin(&words, second * SECOND + 7, || [busy, second * 3, second, 0]);
            busy += SECOND / 4;
            end(&words);
        }
        let now = 150 * SECOND - 1;
        let grown_by = growth(&words, [busy, 150 * 3, 150, 0], now);
        // The window covers seconds 139 to 149.
        assert_eq!(grown_by, [SECOND / 4 * 11, 33, 11, 0]);
        let share = busy_lately(&words, grown_by[0], now);
        assert!((share - 0.25).abs() < 1e-6, "{share}");
        assert_eq!(growth(&words, [busy; 4], 200 * SECOND), [0; 4]);
        assert_eq!(busy_lately(&words, 0, 200 * SECOND), 0.0);
    }

    #[test]
    fn a_turn_that_does_not_end_is_seen() {
        let words = words();
        begin(&words, 50 * SECOND, || [0; 4]);
        assert_eq!(busy_lately(&words, 0, 53 * SECOND), 0.3);
        assert_eq!(busy_lately(&words, 0, 90 * SECOND), 1.0);
        assert_eq!(began(&words), 50 * SECOND);
    }

    #[test]
    fn armed_is_since_a_time() {
        let words = words();
        assert!(!is_armed(&words));
        set_armed(&words, Some(9));
        assert!(is_armed(&words) && armed_since(&words) == 9);
        set_armed(&words, None);
        assert!(!is_armed(&words));
    }
}
