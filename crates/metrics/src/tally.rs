//! A loop's values, as the loop writes them.

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
    /// Its worker, from 0.
    pub worker: u32,
    /// Its number within the worker.
    pub index: u32,
    /// Its process; 0 is none.
    pub pid: u32,
    /// Its thread.
    pub tid: u32,
    /// How many configurations came before its own.
    pub generation: u64,
}

/// One loop's values. A tally has one writer at a time, hence no `Clone` and no `Sync`.
#[derive(Debug)]
pub struct Tally {
    pub(crate) words: &'static [AtomicU64],
    pub(crate) index: usize,
    pub(crate) one_writer: PhantomData<Cell<()>>,
}

impl Tally {
    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// From now on it is this one's.
    pub fn belongs_to(&self, owner: TallyOwner) {
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

    /// Takes from a gauge.
    #[inline]
    pub fn sub(&self, metric: Metric, n: u64) {
        self.update(metric, |value| value.wrapping_sub(n));
    }

    /// Adds one to a gauge, until the guard is dropped.
    pub fn hold(&self, metric: Metric) -> HeldGauge<'_> {
        self.add(metric, 1);
        HeldGauge { tally: self, metric }
    }

    /// The value of this tally alone.
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

    /// The loop begins a turn at this time, in nanoseconds of a clock that all processes share, after so long a sleep.
    #[inline]
    pub fn woke(&self, at: u64, slept: u64) {
        let lately = lately(self.words);
        self.add(Metric::Slept, slept);
        if history::is_armed(lately) {
            self.add(Metric::Armed, slept);
        }
        history::begin(lately, at, || noted(self.words));
    }

    /// The turn is over, and took so many nanoseconds.
    #[inline]
    pub fn turned(&self, took: u64) {
        self.add(Metric::Busy, took);
        history::end(lately(self.words));
    }

    /// The loop has so many client connections.
    #[inline]
    pub fn carries(&self, open: u64) {
        history::carry(lately(self.words), open);
    }

    /// Notes what stalled the loop.
    pub fn culprit(&self, culprit: &Culprit) {
        culprits::note(self.words.get(CULPRITS..STALLED).unwrap_or_default(), culprit);
    }

    /// Where the loop notes what it is at.
    pub fn activity(&self) -> Option<Activity> {
        let [doing, script] = [0, 1].map(|at| self.words.get(ACTIVITY + at));
        Some(Activity { doing: doing?, script: script? })
    }

    /// Where the threads for files note since when the oldest operation runs.
    pub fn oldest_operation(&self) -> Option<OldestOperation> {
        self.words.get(FILES).map(OldestOperation)
    }

    /// From this time on new connections may wake the loop, as the last of those that they may wake; none: they may not.
    #[inline]
    pub fn arms(&self, at: Option<u64>) {
        history::arm(lately(self.words), at);
    }

    #[inline]
    fn update(&self, metric: Metric, change: impl FnOnce(u64) -> u64) {
        self.update_at(VALUES + metric as usize, change);
    }

    /// Load and store are enough, since only this loop writes here.
    #[inline]
    pub(crate) fn update_at(&self, at: usize, change: impl FnOnce(u64) -> u64) {
        if let Some(word) = self.words.get(at) {
            word.store(change(word.load(Relaxed)), Relaxed);
        }
    }
}

/// One of a gauge, given back when it is dropped: a task that panics or is given up leaves nothing behind.
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

/// Where the threads for files of a process note since when the oldest operation runs.
#[derive(Clone, Copy, Debug)]
pub struct OldestOperation(&'static AtomicU64);

impl OldestOperation {
    /// Sets it.
    #[inline]
    pub fn set(self, since: Option<u64>) {
        self.0.store(since.unwrap_or(0), Relaxed);
    }
}

/// Where a loop notes what it is at: two numbers, that its process knows names for; 0 is none.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    doing: &'static AtomicU64,
    script: &'static AtomicU64,
}

impl Activity {
    /// Sets the number of what it does.
    #[inline]
    pub fn doing(self, number: u32) {
        self.doing.store(number.into(), Relaxed);
    }

    /// Sets the number of the script that it runs.
    #[inline]
    pub fn script(self, number: u32) {
        self.script.store(number.into(), Relaxed);
    }
}
