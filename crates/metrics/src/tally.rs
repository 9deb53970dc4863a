//! A loop's values, for the loop that writes them.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use crate::layout::{
    ACTIVITY, CULPRITS, FILES, OWNER, STALLED, VALUES, lately, load, noted, words_of,
};
use crate::{Culprit, Histogram, Metric, culprits, histogram, history};

/// The writer of a tally.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TallyOwner {
    /// The worker's number, from 0.
    pub worker: u32,
    /// The loop's number within the worker.
    pub index: u32,
    /// The process id; 0 for none.
    pub pid: u32,
    /// The thread id.
    pub tid: u32,
    /// The number of configurations before its own.
    pub generation: u64,
}

/// One loop's values. A tally has one writer at a time, so it is neither `Clone` nor `Sync`.
#[derive(Debug)]
pub struct Tally {
    pub(crate) words: &'static [AtomicU64],
    pub(crate) index: usize,
    pub(crate) one_writer: PhantomData<Cell<()>>,
}

impl Tally {
    /// The tally's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Sets the owner of the tally.
    pub fn set_owner(&self, owner: TallyOwner) {
        let TallyOwner { worker, index, pid, tid, generation } = owner;
        let words = [worker.into(), index.into(), tid.into(), generation, pid.into()];
        for (word, value) in self.words.iter().skip(OWNER).zip(words) {
            word.store(value, SeqCst);
        }
    }

    /// Adds to a counter or gauge.
    #[inline]
    pub fn add(&self, metric: Metric, n: u64) {
        self.update(metric, |value| value.wrapping_add(n));
    }

    /// Subtracts from a gauge.
    #[inline]
    pub fn sub(&self, metric: Metric, n: u64) {
        self.update(metric, |value| value.wrapping_sub(n));
    }

    /// Adds one to a gauge, until the guard is dropped.
    pub fn hold(&self, metric: Metric) -> HeldGauge<'_> {
        self.add(metric, 1);
        HeldGauge { tally: self, metric }
    }

    /// The value in this tally alone.
    pub fn get(&self, metric: Metric) -> u64 {
        load(self.words, metric)
    }

    /// Adds a time to a histogram.
    #[inline]
    pub fn record(&self, histogram: Histogram, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let at = words_of(histogram).start;
        self.update_at(at + histogram::bucket(micros), |n| n.wrapping_add(1));
        self.update_at(at + histogram::COUNT, |n| n.wrapping_add(1));
        self.update_at(at + histogram::SUM, |n| n.wrapping_add(micros));
    }

    /// A turn begins. `at` is the time in nanoseconds by a clock that all processes share, `slept`
    /// the length of the sleep before.
    #[inline]
    pub fn begin_turn(&self, at: u64, slept: u64) {
        let lately = lately(self.words);
        self.add(Metric::Slept, slept);
        if history::is_armed(lately) {
            self.add(Metric::Armed, slept);
        }
        history::begin(lately, at, || noted(self.words));
    }

    /// The turn has ended after `took` nanoseconds.
    #[inline]
    pub fn end_turn(&self, took: u64) {
        self.add(Metric::Busy, took);
        history::end(lately(self.words));
    }

    /// Sets the number of the loop's client connections.
    #[inline]
    pub fn set_open(&self, open: u64) {
        history::set_open(lately(self.words), open);
    }

    /// Adds a handler that stalled the loop.
    pub fn culprit(&self, culprit: &Culprit) {
        culprits::note(self.words.get(CULPRITS..STALLED).unwrap_or_default(), culprit);
    }

    /// The words in which the loop publishes its present activity.
    pub fn activity(&self) -> Option<Activity> {
        let [doing, script] = [0, 1].map(|at| self.words.get(ACTIVITY + at));
        Some(Activity { doing: doing?, script: script? })
    }

    /// The word in which file threads publish when their oldest running operation began.
    pub fn oldest_operation(&self) -> Option<OldestOperation> {
        self.words.get(FILES).map(OldestOperation)
    }

    /// From this time on, new connections may wake the loop, after all loops that were armed
    /// before. None: they may not.
    #[inline]
    pub fn set_armed(&self, at: Option<u64>) {
        history::set_armed(lately(self.words), at);
    }

    #[inline]
    fn update(&self, metric: Metric, change: impl FnOnce(u64) -> u64) {
        self.update_at(VALUES + metric as usize, change);
    }

    /// A load and a store are enough, since only this loop writes here.
    #[inline]
    pub(crate) fn update_at(&self, at: usize, change: impl FnOnce(u64) -> u64) {
        if let Some(word) = self.words.get(at) {
            word.store(change(word.load(Relaxed)), Relaxed);
        }
    }
}

/// Holds one of a gauge until it is dropped. So a task that panics or is cancelled is subtracted,
/// too.
#[derive(Debug)]
pub struct HeldGauge<'a> {
    tally: &'a Tally,
    metric: Metric,
}

impl Drop for HeldGauge<'_> {
    fn drop(&mut self) {
        self.tally.sub(self.metric, 1);
    }
}

/// The word in which file threads of a process publish when their oldest running operation began.
#[derive(Clone, Copy, Debug)]
pub struct OldestOperation(&'static AtomicU64);

impl OldestOperation {
    /// Sets the time; none if no operation runs.
    #[inline]
    pub fn set(self, since: Option<u64>) {
        self.0.store(since.unwrap_or(0), Relaxed);
    }
}

/// The words in which a loop publishes its present activity: two numbers for which its process has
/// names. 0 is none.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    doing: &'static AtomicU64,
    script: &'static AtomicU64,
}

impl Activity {
    /// Sets the number of the activity.
    #[inline]
    pub fn doing(self, number: u32) {
        self.doing.store(number.into(), Relaxed);
    }

    /// Sets the number of the script that runs.
    #[inline]
    pub fn script(self, number: u32) {
        self.script.store(number.into(), Relaxed);
    }
}
