//! All tallies of a server, and their sums.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

use crate::layout::{
    BOARD_AT, CONFIGURED, JUDGED, MOVES, STARTED, TALLIES, USED, VALUES, WIDTH, load, owner,
    words_of,
};
use crate::{
    AllCounted, Counting, HISTOGRAM_SUMS, HISTOGRAMS, Histogram, LoopTally, METRICS, Metric,
    MetricKind, MetricValue, MetricsPage, TOTALS, Tally, Times, Unit, subjects,
};

/// A reader tries again while values are moved, but only this often, since the process that moves
/// them may have died.
pub(crate) const TRIES: usize = 10_000;

/// All tallies of a server.
#[derive(Clone, Copy, Debug)]
pub struct Registry {
    pub(crate) words: &'static [AtomicU64],
}

impl Registry {
    /// The number of words for `tallies` tallies.
    pub const fn words_for(tallies: usize) -> usize {
        TALLIES + tallies * WIDTH
    }

    /// A registry over zeroed words, divided into as many tallies as fit.
    pub fn new(words: &'static [AtomicU64]) -> Registry {
        Registry { words }
    }

    /// Records when the server began, as a time since 1970.
    pub fn set_started(&self, at: Duration) {
        if let Some(word) = self.words.get(STARTED) {
            word.store(at.as_nanos() as u64, SeqCst);
        }
    }

    /// Records when a configuration was applied or refused, as a time since 1970.
    pub fn set_configured(&self, at: Duration, taken: bool) {
        if let Some(word) = self.words.get(CONFIGURED) {
            word.store((at.as_millis() as u64) << 1 | u64::from(taken), SeqCst);
        }
    }

    /// When a configuration was last applied or refused, and whether it was applied.
    pub fn last_configured(&self) -> (Duration, bool) {
        let word = self.words.get(CONFIGURED).map_or(0, |word| word.load(SeqCst));
        (Duration::from_millis(word >> 1), word & 1 == 1)
    }

    /// When the server began.
    pub fn started(&self) -> Duration {
        Duration::from_nanos(self.words.get(STARTED).map_or(0, |word| word.load(SeqCst)))
    }

    /// Calls `judge` in the first loop that calls this in a period. Returns the result if it
    /// differs from the last one.
    pub fn judge(&self, period: u64, judge: impl FnOnce() -> bool) -> Option<bool> {
        let word = self.words.get(JUDGED)?;
        let before = word.load(SeqCst);
        if before >> 1 >= period {
            return None;
        }
        let (was, begun) = (before & 1, period << 1);
        word.compare_exchange(before, begun | was, SeqCst, SeqCst).ok()?;
        let is = judge();
        // If another period has begun meanwhile, its own judgement stands.
        let told = word.compare_exchange(begun | was, begun | u64::from(is), SeqCst, SeqCst);
        (told.is_ok() && is != (was == 1)).then_some(is)
    }

    /// The last result of [`Registry::judge`].
    pub fn judged(&self) -> bool {
        self.words.get(JUDGED).is_some_and(|word| word.load(SeqCst) & 1 == 1)
    }

    /// The words of the findings about the server, in the form of the crate `health`.
    pub fn board(&self) -> &'static [AtomicU64] {
        self.words.get(BOARD_AT..TALLIES).unwrap_or_default()
    }

    /// The number of tallies.
    pub fn tallies(&self) -> usize {
        self.words.len().saturating_sub(TALLIES) / WIDTH
    }

    /// Tally `index`, for its one writer. None if there is no such tally.
    pub fn tally(&self, index: usize) -> Option<Tally> {
        let words = self.tally_words(index)?;
        self.words.get(USED)?.fetch_max(index as u64 + 1, SeqCst);
        Some(Tally { words, index, one_writer: PhantomData })
    }

    /// The sum of a value over all tallies.
    pub fn sum(&self, metric: Metric) -> u64 {
        // Wraps, since single tallies may be "negative" while the sum is right: a connection that
        // moved is subtracted in another tally than it was added to.
        self.steady(|| self.used().map(|tally| load(tally, metric)).fold(0, u64::wrapping_add))
    }

    /// The values of a histogram over all tallies.
    pub fn times(&self, histogram: Histogram) -> Times {
        self.steady(|| {
            let mut all = Times::default();
            self.used()
                .for_each(|tally| all.add(tally.get(words_of(histogram)).unwrap_or_default()));
            all
        })
    }

    /// The tallies that belong to loops.
    pub fn loops(&self) -> Vec<LoopTally> {
        let tallies = self.used().map(|words| LoopTally { words, owner: owner(words) });
        tallies.filter(|tally| tally.owner.pid != 0).collect()
    }

    /// A loop has died. Discards its gauges and moves its counts to tally `to`, which the caller
    /// writes. The loop's tally is then empty.
    pub fn bury(&self, index: usize, to: &Tally) {
        let tally = self.tally_words(index).unwrap_or_default();
        let Some(moves) = self.words.get(MOVES) else { return };
        // Only the master moves values, so the number is even. `| 1` makes it odd even if another
        // process has spoilt it.
        let begun = moves.load(SeqCst) | 1;
        moves.store(begun, SeqCst);
        // The number is odd before any value moves, also on processors that reorder stores.
        fence(SeqCst);
        for (at, word) in tally.iter().enumerate() {
            let value = word.swap(0, Relaxed);
            let metric = at.checked_sub(VALUES).and_then(|at| METRICS.get(at));
            let is_gauge = metric.is_some_and(|metric| metric.column().kind == MetricKind::Gauge);
            if at >= VALUES && !is_gauge {
                to.update_at(at, |n| n.wrapping_add(value));
            }
        }
        subjects::bury(self, index, to.index);
        moves.store(begun.wrapping_add(1), SeqCst);
    }

    /// The counters under names.
    pub fn counted(&self) -> AllCounted {
        let mut counting = Counting::new(*self);
        while counting.more(usize::MAX) {}
        counting.end()
    }

    /// How often values were moved. Odd during a move.
    pub(crate) fn moves(&self) -> u64 {
        self.words.get(MOVES).map_or(0, |word| word.load(SeqCst))
    }

    /// Adds the sums of all loops to a page.
    pub fn show(&self, page: &mut MetricsPage) {
        let value = |metric: &Metric| {
            let (column, n) = (metric.column(), self.sum(*metric));
            (
                column.name,
                if column.unit == Unit::Seconds {
                    MetricValue::Nanos(n)
                } else {
                    MetricValue::Number(n)
                },
            )
        };
        page.add(&TOTALS, Vec::new(), METRICS.iter().map(value).collect());
        let times = |h: &Histogram| (h.name(), MetricValue::Times(self.times(*h)));
        page.add(&HISTOGRAM_SUMS, Vec::new(), HISTOGRAMS.iter().map(times).collect());
    }

    /// Returns what `read` has read while no values were moved.
    fn steady<T>(&self, read: impl Fn() -> T) -> T {
        for _ in 0..TRIES {
            let before = self.moves();
            if before.is_multiple_of(2) {
                let found = read();
                fence(SeqCst);
                if self.moves() == before {
                    return found;
                }
            }
            std::hint::spin_loop();
        }
        read()
    }

    /// The tallies that were ever used. Reading others would make the kernel allocate their memory.
    fn used(&self) -> impl Iterator<Item = &'static [AtomicU64]> {
        let used = self.words.get(USED).map_or(0, |word| word.load(SeqCst)) as usize;
        self.words.get(TALLIES..).unwrap_or_default().chunks_exact(WIDTH).take(used)
    }

    fn tally_words(&self, index: usize) -> Option<&'static [AtomicU64]> {
        let start = index.checked_mul(WIDTH)?.checked_add(TALLIES)?;
        self.words.get(start..start.checked_add(WIDTH)?)
    }
}
