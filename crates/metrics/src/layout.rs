//! The places of all values in the words that the processes of a server share.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::{
    HISTOGRAMS, Histogram, METRICS, Metric, TallyOwner, culprits, histogram, history, subjects,
};

/// Words of a cache line. Each tally starts on a new line, so that loops do not share lines.
pub(crate) const LINE: usize = 8;

/// The words of the head: the number of used tallies, how often values were moved between tallies
/// (odd during a move), when the server began, the last judgement, and the last configuration.
pub(crate) const HEAD: usize = LINE;
/// Words for the findings about the server.
pub const BOARD: usize = 1 << 10;
/// After the head come the counters under names, then the findings, then the tallies.
pub(crate) const BOARD_AT: usize = HEAD + subjects::WORDS;
pub(crate) const TALLIES: usize = BOARD_AT + BOARD;
pub(crate) const USED: usize = 0;
pub(crate) const MOVES: usize = 1;
/// When the server began, in nanoseconds since 1970.
pub(crate) const STARTED: usize = 2;
/// The last period in which something was judged, and in the lowest bit the result.
pub(crate) const JUDGED: usize = 3;
/// When a configuration was last applied or refused, in milliseconds since 1970, and in the lowest
/// bit whether it was applied.
pub(crate) const CONFIGURED: usize = 4;

/// The words of a tally: its owner, the loop's present activity, its history, its culprits, the
/// handler that stalls it now, the oldest file operation of its process, the operation that a disk
/// blocks, the values, and the histograms.
pub(crate) const WIDTH: usize =
    (TIMES + HISTOGRAMS.len() * histogram::WORDS).next_multiple_of(LINE);
pub(crate) const OWNER: usize = 0;
/// Figures of the process, in the same cache line as the owner.
pub(crate) const PROCESS: usize = OWNER + 5;
/// The numbers of the loop's present activity.
pub(crate) const ACTIVITY: usize = OWNER + LINE;
pub(crate) const LATELY: usize = ACTIVITY + LINE;
pub(crate) const CULPRITS: usize = LATELY + history::WORDS;
pub(crate) const STALLED: usize = CULPRITS + culprits::WORDS;
/// When the oldest running file operation began. It has its own cache line, since file threads
/// write it.
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

/// The counters of which the history keeps values.
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
