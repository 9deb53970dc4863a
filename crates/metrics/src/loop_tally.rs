//! A loop's values and what it does, as others see them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use crate::layout::{
    ACTIVITY, BLOCKED, CULPRITS, FILES, PROCESS, STALLED, VALUES, lately, load, noted, words_of,
};
use crate::{Culprit, Histogram, Metric, TallyOwner, Times, culprits, history};

/// What the system says of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFigures {
    /// Open files and sockets.
    pub descriptors: u64,
    /// How many it may have.
    pub descriptors_limit: u64,
    /// Bytes of memory.
    pub resident: u64,
}

/// A loop's tally as others see it.
#[derive(Clone, Copy, Debug)]
pub struct LoopTally {
    pub(crate) words: &'static [AtomicU64],
    /// The writer.
    pub owner: TallyOwner,
}

impl LoopTally {
    /// A value.
    pub fn get(&self, metric: Metric) -> u64 {
        load(self.words, metric)
    }

    /// What the system says of its process; none if nothing was noted.
    pub fn process(&self) -> Option<ProcessFigures> {
        let of = |at: usize| self.words.get(PROCESS + at).map_or(0, |word| word.load(Relaxed));
        let figures =
            ProcessFigures { descriptors: of(0), descriptors_limit: of(1), resident: of(2) };
        (figures != ProcessFigures::default()).then_some(figures)
    }

    /// Notes what the system says of its process. One process does that for all.
    pub fn note_process(&self, figures: ProcessFigures) {
        let ProcessFigures { descriptors, descriptors_limit, resident } = figures;
        for (at, value) in [descriptors, descriptors_limit, resident].into_iter().enumerate() {
            if let Some(word) = self.words.get(PROCESS + at) {
                word.store(value, Relaxed);
            }
        }
    }

    /// A gauge: a connection may have come from another tally, where it stays counted.
    pub fn gauge(&self, metric: Metric) -> u64 {
        self.get(metric).cast_signed().max(0).cast_unsigned()
    }

    /// Its times.
    pub fn times(&self, histogram: Histogram) -> Times {
        let mut all = Times::default();
        all.add(self.words.get(words_of(histogram)).unwrap_or_default());
        all
    }

    /// Its open client connections, as of its last turn's end. [`Metric::Active`] of the tally counts those that it has
    /// accepted, wherever they are now.
    pub fn open(&self) -> u64 {
        history::open(lately(self.words))
    }

    /// When its turn began, by the clock of [`Tally::woke`](crate::Tally::woke); none if it sleeps.
    pub fn awake_since(&self) -> Option<u64> {
        Some(history::began(lately(self.words))).filter(|at| *at != 0)
    }

    /// Whether new connections may wake it, or could when it slept last.
    pub fn is_armed(&self) -> bool {
        history::is_armed(lately(self.words))
    }

    /// Since when; the longest is woken first.
    pub fn armed_since(&self) -> u64 {
        history::armed_since(lately(self.words))
    }

    /// What stalled the loop lately, in no order.
    pub fn culprits(&self) -> Vec<Culprit> {
        culprits::all(self.words.get(CULPRITS..STALLED).unwrap_or_default())
    }

    /// What it is at: see [`Activity`](crate::Activity).
    pub fn activity(&self) -> [u32; 2] {
        [0, 1].map(|at| self.words.get(ACTIVITY + at).map_or(0, |w| w.load(SeqCst) as u32))
    }

    /// Shows what it is at in a turn that does not end. The loop's own process alone calls this, from one thread.
    pub fn stalls(&self, culprit: &Culprit) {
        culprits::write(self.words.get(STALLED..FILES).unwrap_or_default(), culprit);
    }

    /// What its present turn is at, once the turn has lasted for about a second; `at` is the turn's begin.
    pub fn stalled(&self) -> Option<Culprit> {
        let stalled = culprits::read(self.words.get(STALLED..FILES).unwrap_or_default())?;
        (self.awake_since() == Some(stalled.at)).then_some(stalled)
    }

    /// When the oldest file operation that runs in its process began; the process's first loop has it.
    pub fn oldest_operation(&self) -> Option<u64> {
        Some(self.words.get(FILES)?.load(Relaxed)).filter(|at| *at != 0)
    }

    /// Shows the file operation of its process that a disk blocks. The process alone calls this, from one thread.
    pub fn blocks(&self, blocked: Option<&BlockedOperation>) {
        let words = self.words.get(BLOCKED..VALUES).unwrap_or_default();
        let Some(BlockedOperation { since, reads, what }) = blocked else {
            return culprits::clear(words);
        };
        let (took, waited) = (Duration::ZERO, Duration::ZERO);
        culprits::write(
            words,
            &Culprit { at: *since, took, waited, preempted: !reads, what: what.clone() },
        );
    }

    /// The file operation of its process that a disk blocks, once it has lasted for about a second.
    pub fn blocked(&self) -> Option<BlockedOperation> {
        let oldest = self.oldest_operation()?;
        let words = self.words.get(BLOCKED..VALUES).unwrap_or_default();
        let Culprit { at: since, preempted, what, .. } = culprits::read(words)?;
        (oldest <= since).then_some(BlockedOperation { since, reads: !preempted, what })
    }

    /// The share of the last [`WINDOW`](crate::WINDOW) seconds before `now` in which it was busy.
    pub fn busy_lately(&self, now: u64) -> f64 {
        history::busy_lately(lately(self.words), self.grown(now)[0], now)
    }

    /// What it did in these seconds.
    pub fn lately(&self, now: u64) -> Lately {
        let [_, requests, accepted, sent] = self.grown(now);
        Lately { requests, accepted, sent }
    }

    fn grown(&self, now: u64) -> history::Noted {
        history::grown(lately(self.words), noted(self.words), now)
    }
}

/// A file operation that does not end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedOperation {
    /// Since when, by the monotonic clock in nanoseconds.
    pub since: u64,
    /// It reads: a request waits for it.
    pub reads: bool,
    /// What it does to which file; the end of a long path is lost.
    pub what: String,
}

/// What a loop did in the last [`WINDOW`](crate::WINDOW) seconds and in the present one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lately {
    /// Requests served.
    pub requests: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Bytes sent.
    pub sent: u64,
}

/// For how long [`Lately`] is, at a time of the clock of [`Tally::woke`](crate::Tally::woke).
pub fn window(now: u64) -> Duration {
    Duration::from_nanos(history::window(now))
}
