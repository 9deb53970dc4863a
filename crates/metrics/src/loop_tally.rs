//! A loop's values and activity, for readers in any process.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use crate::layout::{
    ACTIVITY, BLOCKED, CULPRITS, FILES, PROCESS, STALLED, VALUES, lately, load, noted, words_of,
};
use crate::{Culprit, Histogram, Metric, TallyOwner, Times, culprits, history};

/// The kernel's figures of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFigures {
    /// Open files and sockets.
    pub descriptors: u64,
    /// The limit of open files and sockets.
    pub descriptors_limit: u64,
    /// Resident memory in bytes.
    pub resident: u64,
}

/// A loop's tally, for readers.
#[derive(Clone, Copy, Debug)]
pub struct LoopTally {
    pub(crate) words: &'static [AtomicU64],
    /// The loop that writes it.
    pub owner: TallyOwner,
}

impl LoopTally {
    /// A value.
    pub fn get(&self, metric: Metric) -> u64 {
        load(self.words, metric)
    }

    /// The kernel's figures of the loop's process. None if they were not recorded.
    pub fn process(&self) -> Option<ProcessFigures> {
        let of = |at: usize| self.words.get(PROCESS + at).map_or(0, |word| word.load(Relaxed));
        let figures =
            ProcessFigures { descriptors: of(0), descriptors_limit: of(1), resident: of(2) };
        (figures != ProcessFigures::default()).then_some(figures)
    }

    /// Records the kernel's figures of the loop's process. One process records those of all.
    pub fn record_process(&self, figures: ProcessFigures) {
        let ProcessFigures { descriptors, descriptors_limit, resident } = figures;
        for (at, value) in [descriptors, descriptors_limit, resident].into_iter().enumerate() {
            if let Some(word) = self.words.get(PROCESS + at) {
                word.store(value, Relaxed);
            }
        }
    }

    /// A gauge, at least 0. A connection that moved to another loop is subtracted in another tally
    /// than it was added to.
    pub fn gauge(&self, metric: Metric) -> u64 {
        self.get(metric).cast_signed().max(0).cast_unsigned()
    }

    /// The values of a histogram.
    pub fn times(&self, histogram: Histogram) -> Times {
        let mut all = Times::default();
        all.add(self.words.get(words_of(histogram)).unwrap_or_default());
        all
    }

    /// The loop's open client connections, as of the end of its last turn. In contrast,
    /// [`Metric::Active`] of a tally counts the connections that the loop has accepted, even if
    /// they have moved.
    pub fn open(&self) -> u64 {
        history::open(lately(self.words))
    }

    /// When the present turn began, by the clock of [`Tally::begin_turn`](crate::Tally::begin_turn). None if
    /// the loop sleeps.
    pub fn awake_since(&self) -> Option<u64> {
        Some(history::began(lately(self.words))).filter(|at| *at != 0)
    }

    /// Whether new connections may wake the loop, or could when it last slept.
    pub fn is_armed(&self) -> bool {
        history::is_armed(lately(self.words))
    }

    /// Since when the loop is armed. The loop that is armed longest is woken first.
    pub fn armed_since(&self) -> u64 {
        history::armed_since(lately(self.words))
    }

    /// The recent culprits of the loop, in any order.
    pub fn culprits(&self) -> Vec<Culprit> {
        culprits::all(self.words.get(CULPRITS..STALLED).unwrap_or_default())
    }

    /// The numbers of the loop's present activity: see [`Activity`](crate::Activity).
    pub fn activity(&self) -> [u32; 2] {
        [0, 1].map(|at| self.words.get(ACTIVITY + at).map_or(0, |w| w.load(SeqCst) as u32))
    }

    /// Publishes what an unfinished turn is doing. Only the loop's own process calls this, from one
    /// thread.
    pub fn publish_stall(&self, culprit: &Culprit) {
        culprits::write(self.words.get(STALLED..FILES).unwrap_or_default(), culprit);
    }

    /// What the present turn is doing, if it has lasted for about a second. `at` is the beginning
    /// of the turn.
    pub fn stalled(&self) -> Option<Culprit> {
        let stalled = culprits::read(self.words.get(STALLED..FILES).unwrap_or_default())?;
        (self.awake_since() == Some(stalled.at)).then_some(stalled)
    }

    /// When the oldest running file operation of the process began. The first loop of the process
    /// has this value.
    pub fn oldest_operation(&self) -> Option<u64> {
        Some(self.words.get(FILES)?.load(Relaxed)).filter(|at| *at != 0)
    }

    /// Publishes the file operation that a disk blocks. Only the process itself calls this, from
    /// one thread.
    pub fn publish_blocked(&self, blocked: Option<&BlockedOperation>) {
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

    /// The file operation of the process that a disk blocks, if it has lasted for about a second.
    pub fn blocked(&self) -> Option<BlockedOperation> {
        let oldest = self.oldest_operation()?;
        let words = self.words.get(BLOCKED..VALUES).unwrap_or_default();
        let Culprit { at: since, preempted, what, .. } = culprits::read(words)?;
        (oldest <= since).then_some(BlockedOperation { since, reads: !preempted, what })
    }

    /// The share of the last [`WINDOW`](crate::WINDOW) seconds before `now` in which the loop was
    /// busy.
    pub fn busy_lately(&self, now: u64) -> f64 {
        history::busy_lately(lately(self.words), self.growth(now)[0], now)
    }

    /// What the loop did in these seconds.
    pub fn lately(&self, now: u64) -> Lately {
        let [_, requests, accepted, sent] = self.growth(now);
        Lately { requests, accepted, sent }
    }

    fn growth(&self, now: u64) -> history::Noted {
        history::growth(lately(self.words), noted(self.words), now)
    }
}

/// A file operation that has not ended for long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedOperation {
    /// When it began, by the monotonic clock in nanoseconds.
    pub since: u64,
    /// It reads, so a request waits for it.
    pub reads: bool,
    /// The operation and the file. A long path is cut off.
    pub what: String,
}

/// What a loop did in the last [`WINDOW`](crate::WINDOW) seconds and the elapsed part of the
/// present one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lately {
    /// Requests served.
    pub requests: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Bytes sent.
    pub sent: u64,
}

/// The length of the period of [`Lately`], at a time by the clock of
/// [`Tally::begin_turn`](crate::Tally::begin_turn).
pub fn window(now: u64) -> Duration {
    Duration::from_nanos(history::window(now))
}
