//! A limit for repeated messages: a client that causes the same message repeatedly must not fill a
//! disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::Level;

/// The most messages of one kind that are written within a second. The others are counted.
pub(crate) const MOST: u32 = 100;

/// The number of counters, which kinds share by their hash.
const PLACES: usize = 64;

/// Messages that this process has left out of all its logs.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// How many messages this process has left out of its error logs since the last call, because there
/// were too many of a kind.
#[inline]
pub fn take_left_out() -> u64 {
    match LEFT_OUT.load(Ordering::Relaxed) {
        0 => 0,
        _ => LEFT_OUT.swap(0, Ordering::Relaxed),
    }
}

/// Counts the messages of one log by their kind.
///
/// Texts of one kind are equal up to their first digit or quote, so that paths, clients and numbers
/// make no difference. Two kinds that share a counter share its limit.
#[derive(Debug)]
pub(crate) struct Flood(Mutex<Second>);

#[derive(Debug)]
struct Second {
    /// Which second it is.
    number: i64,
    places: [u32; PLACES],
    left_out: u64,
}

/// What to do with a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FloodDecision {
    /// The message is above the limit.
    pub(crate) leave_out: bool,
    /// How many messages were left out in past seconds. The log reports that before this message.
    pub(crate) report: u64,
}

impl Flood {
    pub(crate) fn new() -> Flood {
        Flood(Mutex::new(Second { number: 0, places: [0; PLACES], left_out: 0 }))
    }

    /// Judges a message of this second. `emerg`, `alert` and `debug` messages are never left out.
    pub(crate) fn judge(&self, level: Level, text: &[u8], second: i64) -> FloodDecision {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut report = 0;
        if now.number != second {
            report = now.left_out;
            *now = Second { number: second, places: [0; PLACES], left_out: 0 };
        }
        if matches!(level, Level::Emerg | Level::Alert | Level::Debug) {
            return FloodDecision { leave_out: false, report };
        }
        let place = kind(level, text) as usize % PLACES;
        let Some(count) = now.places.get_mut(place) else { return FloodDecision::default() };
        if *count < MOST {
            *count += 1;
            return FloodDecision { leave_out: false, report };
        }
        now.left_out += 1;
        LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        FloodDecision { leave_out: true, report }
    }
}

/// The hash of a message's kind (FNV-1a).
fn kind(level: Level, text: &[u8]) -> u64 {
    let fixed = text.iter().take_while(|byte| !byte.is_ascii_digit() && **byte != b'"');
    [level as u8].iter().chain(fixed).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of these messages of one second are written.
    fn written(flood: &Flood, level: Level, texts: impl Iterator<Item = String>, at: i64) -> usize {
        texts.filter(|text| !flood.judge(level, text.as_bytes(), at).leave_out).count()
    }

    fn not_found(from: u32, to: u32) -> impl Iterator<Item = String> {
        (from..to).map(|n| format!("open() \"/srv/{n:x}\" failed (2: No such file)"))
    }

    #[test]
    fn one_kind_is_bounded_and_others_come_through() {
        let flood = Flood::new();
        assert_eq!(written(&flood, Level::Error, not_found(0, 1000), 7), MOST as usize);
        let other = ["connect() failed (111: Connection refused)".to_owned()];
        assert_eq!(written(&flood, Level::Error, other.into_iter(), 7), 1);
    }

    #[test]
    fn the_next_second_begins_anew_and_tells() {
        let flood = Flood::new();
        written(&flood, Level::Warn, not_found(0, 150), 7);
        assert_eq!(
            flood.judge(Level::Warn, b"x", 8),
            FloodDecision { leave_out: false, report: 50 }
        );
        assert_eq!(flood.judge(Level::Warn, b"x", 8).report, 0);
        assert_eq!(written(&flood, Level::Warn, not_found(0, 1), 8), 1);
    }

    #[test]
    fn alerts_and_what_was_asked_for_are_never_left_out() {
        let flood = Flood::new();
        for level in [Level::Emerg, Level::Alert, Level::Debug] {
            assert_eq!(written(&flood, level, not_found(0, 1000), 7), 1000);
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_lost_without_being_told(seconds in proptest::collection::vec(0..300u32, 1..20)) {
            let flood = Flood::new();
            let (mut seen, mut told) = (0, 0);
            for (second, count) in seconds.iter().enumerate() {
                for text in not_found(0, *count) {
                    let verdict = flood.judge(Level::Error, text.as_bytes(), second as i64);
                    seen += u64::from(!verdict.leave_out);
                    told += verdict.report;
                }
            }
            told += flood.judge(Level::Alert, b"", -1).report;
            proptest::prop_assert_eq!(seen + told, seconds.iter().map(|n| u64::from(*n)).sum::<u64>());
        }
    }
}
