//! Where each value stands among the words that all processes of a server share.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::{
    HISTOGRAMS, Histogram, METRICS, Metric, TallyOwner, culprits, histogram, history, subjects,
};

/// Words of one cache line; tallies start on a line so that loops do not share one.
pub(crate) const LINE: usize = 8;

/// Words before the tallies: how many tallies have been used; how often values were moved between tallies, which is odd while
/// they are; when the server began; what was judged last; the last configuration.
pub(crate) const HEAD: usize = LINE;
/// Words in which what is wrong with the server is written down.
pub const BOARD: usize = 1 << 10;
/// Behind the head stands what is counted under names, then what is wrong, then the tallies.
pub(crate) const BOARD_AT: usize = HEAD + subjects::WORDS;
pub(crate) const TALLIES: usize = BOARD_AT + BOARD;
pub(crate) const USED: usize = 0;
pub(crate) const MOVES: usize = 1;
/// When the server began, in nanoseconds since 1970.
pub(crate) const STARTED: usize = 2;
/// The period in which something was judged last, and in the lowest bit what came of it.
pub(crate) const JUDGED: usize = 3;
/// When a configuration was last taken into use or refused, in milliseconds since 1970, and in the lowest bit whether it is
/// in use.
pub(crate) const CONFIGURED: usize = 4;

/// Words of one tally: its writer and what the loop is at, what it has been doing lately, what stalled it, what stalls it now,
/// the oldest file operation of its process and what a disk blocks there, its values, its times.
pub(crate) const WIDTH: usize =
    (TIMES + HISTOGRAMS.len() * histogram::WORDS).next_multiple_of(LINE);
pub(crate) const OWNER: usize = 0;
/// Behind the owner, in the same line: what the system says of its process.
pub(crate) const PROCESS: usize = OWNER + 5;
/// The numbers of what the loop is at.
pub(crate) const ACTIVITY: usize = OWNER + LINE;
pub(crate) const LATELY: usize = ACTIVITY + LINE;
pub(crate) const CULPRITS: usize = LATELY + history::WORDS;
pub(crate) const STALLED: usize = CULPRITS + culprits::WORDS;
/// When the oldest file operation that runs began; in a line of its own, since threads for files write it.
pub(crate) const FILES: usize = STALLED + culprits::ENTRY;
pub(crate) const BLOCKED: usize = FILES + LINE;
pub(crate) const VALUES: usize = BLOCKED + culprits::ENTRY;
pub(crate) const TIMES: usize = (VALUES + METRICS.len()).next_multiple_of(LINE);

/// The words of a histogram in a tally.
pub(crate) const fn words_of(histogram: Histogram) -> Range<usize> {
    let start = TIMES + histogram as usize * histogram::WORDS;
    start..start + histogram::WORDS
}

pub(crate) fn load(tally: &[AtomicU64], metric: Metric) -> u64 {
    tally.get(VALUES + metric as usize).map_or(0, |word| word.load(Relaxed))
}

/// The counters that the history notes.
pub(crate) fn noted(tally: &[AtomicU64]) -> history::Noted {
    [Metric::Busy, Metric::Requests, Metric::Accepted, Metric::Sent]
        .map(|metric| load(tally, metric))
}

pub(crate) fn lately(tally: &[AtomicU64]) -> &[AtomicU64] {
    tally.get(LATELY..CULPRITS).unwrap_or_default()
}

pub(crate) fn owner(tally: &[AtomicU64]) -> TallyOwner {
    let word = |i: usize| tally.get(OWNER + i).map_or(0, |word| word.load(SeqCst));
    let pid = word(4) as u32;
    TallyOwner {
        worker: word(0) as u32,
        index: word(1) as u32,
        tid: word(2) as u32,
        generation: word(3),
        pid,
    }
}
