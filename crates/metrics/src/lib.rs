//! Counters, gauges and times, each declared once; Prometheus and JSON text derive from the tables.
//!
//! Values live in words that all processes of a server share. Each loop writes one [`Tally`] of its
//! own, so counting takes no lock and no locked instruction; readers sum over the tallies. What a
//! loop has counted outlives it: the master adds it to a tally of its own ([`Registry::bury`]).
//! [`MetricsPage`] is what is shown: rows of the tables in `table`, from the code that knows them.
//!
//! - In: numbers, from the loop that counts them.
//! - Out: pages in the text format of Prometheus and in JSON.
//! - Callers: every crate of the server that counts something; `server` and `http` show the pages.

mod culprits;
mod docs;
mod histogram;
mod history;
mod json;
mod page;
mod prometheus;
pub mod subjects;
mod table;

pub use culprits::Culprit;
pub use docs::tables;
pub use histogram::Times;
pub use history::WINDOW;
pub use json::quoted;
pub use page::{LoopDetail, MetricValue, MetricsPage, PageForm};
pub use subjects::{AllCounted, Counting};
pub use table::{
    ACME, BALANCE, BUILD, CACHE_STATES, CACHES, CERTIFICATES, CLASSES, Column, HEALTH,
    HEALTH_FINDINGS, HEALTH_STATES, HISTOGRAM_SUMS, HISTOGRAMS, Histogram, JsonShape, LISTENERS,
    LOOP_STATES, LOOPS, MACHINE, METRICS, Metric, MetricKind, MetricTable, OF_LOOPS,
    PEER_AVAILABILITY, PEER_STATES, POOL_SUMS, POOLS, PROCESSES, QUEUES, SERVER, SHARED,
    STREAM_UPSTREAMS, TABLES, TOTALS, UPSTREAMS, Unit, ZONES,
};

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::time::Duration;

/// Words of one cache line; tallies start on a line so that loops do not share one.
const LINE: usize = 8;

/// Words before the tallies: how many tallies have been used; how often values were moved between tallies, which is odd while
/// they are; when the server began; what was judged last; the last configuration.
const HEAD: usize = LINE;
/// Words in which what is wrong with the server is written down.
pub const BOARD: usize = 1 << 10;
/// Behind the head stands what is counted under names, then what is wrong, then the tallies.
const BOARD_AT: usize = HEAD + subjects::WORDS;
const TALLIES: usize = BOARD_AT + BOARD;
const USED: usize = 0;
const MOVES: usize = 1;
/// When the server began, in nanoseconds since 1970.
const STARTED: usize = 2;
/// The period in which something was judged last, and in the lowest bit what came of it.
const JUDGED: usize = 3;
/// When a configuration was last taken into use or refused, in milliseconds since 1970, and in the lowest bit whether it is
/// in use.
const CONFIGURED: usize = 4;

/// Words of one tally: its writer and what the loop is at, what it has been doing lately, what stalled it, what stalls it now,
/// the oldest file operation of its process and what a disk blocks there, its values, its times.
const WIDTH: usize = (TIMES + HISTOGRAMS.len() * histogram::WORDS).next_multiple_of(LINE);
const OWNER: usize = 0;
/// Behind the owner, in the same line: what the system says of its process.
const PROCESS: usize = OWNER + 5;
/// The numbers of what the loop is at.
const ACTIVITY: usize = OWNER + LINE;
const LATELY: usize = ACTIVITY + LINE;
const CULPRITS: usize = LATELY + history::WORDS;
const STALLED: usize = CULPRITS + culprits::WORDS;
/// When the oldest file operation that runs began; in a line of its own, since threads for files write it.
const FILES: usize = STALLED + culprits::ENTRY;
const BLOCKED: usize = FILES + LINE;
const VALUES: usize = BLOCKED + culprits::ENTRY;
const TIMES: usize = (VALUES + METRICS.len()).next_multiple_of(LINE);

/// A reader tries again while values are moved, but not for ever: the process that moves them may
/// have died.
const TRIES: usize = 10_000;

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

/// Every tally of a server's values.
#[derive(Clone, Copy, Debug)]
pub struct Registry {
    words: &'static [AtomicU64],
}

impl Registry {
    /// Words that `tallies` tallies take.
    pub const fn words_for(tallies: usize) -> usize {
        TALLIES + tallies * WIDTH
    }

    /// A registry over zeroed words, which are cut into as many tallies as fit.
    pub fn new(words: &'static [AtomicU64]) -> Registry {
        Registry { words }
    }

    /// The server begins at this time since 1970.
    pub fn begins(&self, at: Duration) {
        if let Some(word) = self.words.get(STARTED) {
            word.store(at.as_nanos() as u64, SeqCst);
        }
    }

    /// At this time since 1970 a configuration was taken into use, or refused.
    pub fn configured(&self, at: Duration, taken: bool) {
        if let Some(word) = self.words.get(CONFIGURED) {
            word.store((at.as_millis() as u64) << 1 | u64::from(taken), SeqCst);
        }
    }

    /// When that was last, and whether the configuration is in use.
    pub fn last_configured(&self) -> (Duration, bool) {
        let word = self.words.get(CONFIGURED).map_or(0, |word| word.load(SeqCst));
        (Duration::from_millis(word >> 1), word & 1 == 1)
    }

    /// When it began.
    pub fn started(&self) -> Duration {
        Duration::from_nanos(self.words.get(STARTED).map_or(0, |word| word.load(SeqCst)))
    }

    /// The first of all loops that comes in a period judges; what came of it, if that is new.
    pub fn judge(&self, period: u64, judge: impl FnOnce() -> bool) -> Option<bool> {
        let word = self.words.get(JUDGED)?;
        let before = word.load(SeqCst);
        if before >> 1 >= period {
            return None;
        }
        let (was, begun) = (before & 1, period << 1);
        word.compare_exchange(before, begun | was, SeqCst, SeqCst).ok()?;
        let is = judge();
        // Should the next period have come meanwhile, its own judgement stands.
        let told = word.compare_exchange(begun | was, begun | u64::from(is), SeqCst, SeqCst);
        (told.is_ok() && is != (was == 1)).then_some(is)
    }

    /// What came of it last.
    pub fn judged(&self) -> bool {
        self.words.get(JUDGED).is_some_and(|word| word.load(SeqCst) & 1 == 1)
    }

    /// The words in which what is wrong with the server stands, in the form of the crate `health`.
    pub fn board(&self) -> &'static [AtomicU64] {
        self.words.get(BOARD_AT..TALLIES).unwrap_or_default()
    }

    /// How many tallies there are.
    pub fn tallies(&self) -> usize {
        self.words.len().saturating_sub(TALLIES) / WIDTH
    }

    /// Tally `index` for its one writer, or nothing when there is no such tally.
    pub fn tally(&self, index: usize) -> Option<Tally> {
        let words = self.tally_words(index)?;
        self.words.get(USED)?.fetch_max(index as u64 + 1, SeqCst);
        Some(Tally { words, index, one_writer: PhantomData })
    }

    /// Sum of a value over all tallies.
    pub fn sum(&self, metric: Metric) -> u64 {
        // A connection that moved is subtracted in another tally than it was added in, so single
        // tallies may be "negative" while the sum is right: hence the wrapping.
        self.steady(|| self.used().map(|tally| load(tally, metric)).fold(0, u64::wrapping_add))
    }

    /// Times of all tallies.
    pub fn times(&self, histogram: Histogram) -> Times {
        self.steady(|| {
            let mut all = Times::default();
            self.used()
                .for_each(|tally| all.add(tally.get(words_of(histogram)).unwrap_or_default()));
            all
        })
    }

    /// The tallies that loops write.
    pub fn loops(&self) -> Vec<LoopTally> {
        let tallies = self.used().map(|words| LoopTally { words, owner: owner(words) });
        tallies.filter(|tally| tally.owner.pid != 0).collect()
    }

    /// A loop has died. What it had open is forgotten, and what it has counted goes to tally `to`,
    /// which the caller writes. The loop's tally is then as new.
    pub fn bury(&self, index: usize, to: &Tally) {
        let tally = self.tally_words(index).unwrap_or_default();
        let Some(moves) = self.words.get(MOVES) else { return };
        // The master alone moves values. A number that it left even may have been spoilt since.
        let begun = moves.load(SeqCst) | 1;
        moves.store(begun, SeqCst);
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

    /// What was counted under names.
    pub fn counted(&self) -> AllCounted {
        let mut counting = Counting::new(*self);
        while counting.more(usize::MAX) {}
        counting.end()
    }

    /// How often values were moved; odd while that goes on.
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

    /// What was read while nothing was moved.
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

    /// Tallies that were written once; to look at others would cost memory.
    fn used(&self) -> impl Iterator<Item = &'static [AtomicU64]> {
        let used = self.words.get(USED).map_or(0, |word| word.load(SeqCst)) as usize;
        self.words.get(TALLIES..).unwrap_or_default().chunks_exact(WIDTH).take(used)
    }

    fn tally_words(&self, index: usize) -> Option<&'static [AtomicU64]> {
        let start = index.checked_mul(WIDTH)?.checked_add(TALLIES)?;
        self.words.get(start..start.checked_add(WIDTH)?)
    }
}

/// A loop's tally as others see it.
#[derive(Clone, Copy, Debug)]
pub struct LoopTally {
    words: &'static [AtomicU64],
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

    /// When its turn began, by the clock of [`Tally::woke`]; none if it sleeps.
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

    /// What it is at: see [`Activity`].
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

    /// The share of the last [`WINDOW`] seconds before `now` in which it was busy.
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

/// What a loop did in the last [`WINDOW`] seconds and in the present one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lately {
    /// Requests served.
    pub requests: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Bytes sent.
    pub sent: u64,
}

/// For how long [`Lately`] is, at a time of the clock of [`Tally::woke`].
pub fn window(now: u64) -> Duration {
    Duration::from_nanos(history::window(now))
}

/// One loop's values. A tally has one writer at a time, hence no `Clone` and no `Sync`.
#[derive(Debug)]
pub struct Tally {
    words: &'static [AtomicU64],
    index: usize,
    one_writer: PhantomData<Cell<()>>,
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
    fn update_at(&self, at: usize, change: impl FnOnce(u64) -> u64) {
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

/// The words of a histogram in a tally.
const fn words_of(histogram: Histogram) -> std::ops::Range<usize> {
    let start = TIMES + histogram as usize * histogram::WORDS;
    start..start + histogram::WORDS
}

fn load(tally: &[AtomicU64], metric: Metric) -> u64 {
    tally.get(VALUES + metric as usize).map_or(0, |word| word.load(Relaxed))
}

/// The counters that the history notes.
fn noted(tally: &[AtomicU64]) -> history::Noted {
    [Metric::Busy, Metric::Requests, Metric::Accepted, Metric::Sent]
        .map(|metric| load(tally, metric))
}

fn lately(tally: &[AtomicU64]) -> &[AtomicU64] {
    tally.get(LATELY..CULPRITS).unwrap_or_default()
}

fn owner(tally: &[AtomicU64]) -> TallyOwner {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(tallies: usize) -> Registry {
        let words: Vec<_> = (0..Registry::words_for(tallies)).map(|_| AtomicU64::new(0)).collect();
        Registry::new(words.leak())
    }

    #[test]
    fn in_each_period_one_judges_and_tells_what_is_new() {
        let all = registry(1);
        let nobody = || -> bool { unreachable!("somebody did in this period") };
        assert_eq!(all.judge(7, || false), None);
        assert_eq!(all.judge(7, nobody), None);
        assert_eq!(all.judge(8, || true), Some(true));
        assert_eq!((all.judge(8, nobody), all.judge(7, nobody)), (None, None));
        assert_eq!(all.judge(20, || true), None);
        assert_eq!(all.judge(21, || false), Some(false));
        let late = all.judge(22, || {
            assert_eq!(all.judge(23, || true), Some(true));
            true
        });
        assert_eq!(late, None, "it was told");
        assert!(all.judged());
    }

    #[test]
    fn tallies_add_up() {
        let all = registry(3);
        all.tally(0).unwrap().add(Metric::Requests, 2);
        all.tally(2).unwrap().add(Metric::Requests, 3);
        assert_eq!(all.sum(Metric::Requests), 5);
        assert!(all.tally(3).is_none());
    }

    #[test]
    fn a_connection_may_end_in_another_row() {
        let all = registry(2);
        all.tally(0).unwrap().add(Metric::Active, 1);
        all.tally(1).unwrap().sub(Metric::Active, 1);
        assert_eq!(all.sum(Metric::Active), 0);
    }

    #[test]
    fn what_a_dead_loop_counted_stays_and_what_it_had_open_does_not() {
        let all = registry(3);
        let (own, tally) = (all.tally(0).unwrap(), all.tally(2).unwrap());
        tally.belongs_to(TallyOwner { pid: 7, ..TallyOwner::default() });
        tally.add(Metric::Accepted, 7);
        tally.add(Metric::Active, 2);
        tally.record(Histogram::Turn, Duration::from_millis(3));
        tally.woke(5_000_000_000, 9);
        tally.turned(11);
        assert_eq!(all.loops().len(), 1);
        all.bury(2, &own);
        all.bury(9, &own);
        assert_eq!((all.sum(Metric::Accepted), own.get(Metric::Accepted)), (7, 7));
        assert_eq!((all.sum(Metric::Active), all.sum(Metric::Busy)), (0, 11));
        assert_eq!(all.times(Histogram::Turn).count, 1);
        assert_eq!((all.loops().len(), tally.get(Metric::Accepted)), (0, 0));
    }

    #[test]
    fn each_name_is_said_once_and_does_not_stutter() {
        let mut names = Vec::new();
        for table in TABLES {
            for column in table.columns {
                assert!(!column.help.is_empty() && !column.help.starts_with(' '));
                if column.kind != MetricKind::Shown {
                    assert!(column.help.ends_with('.'), "{}", column.name);
                    names.push(table.metric(column));
                }
            }
        }
        for name in &names {
            assert!(names.iter().filter(|other| *other == name).count() == 1, "{name}");
            let words: Vec<_> = name.split('_').collect();
            assert!(words.iter().all(|w| words.iter().filter(|o| o == &w).count() == 1), "{name}");
        }
    }

    fn page(all: &Registry) -> MetricsPage {
        let mut page = MetricsPage::new();
        all.show(&mut page);
        page
    }

    #[test]
    fn prometheus_text_names_type_and_help() {
        let all = registry(1);
        all.tally(0).unwrap().add(Metric::Accepted, 4);
        let text = page(&all).text(PageForm::Prometheus(LoopDetail::Each));
        assert!(text.contains("# TYPE weir_accepted_connections_total counter\n"));
        assert!(text.contains("\nweir_accepted_connections_total 4\n"));
        assert!(text.contains("# TYPE weir_active_connections gauge\n"));
        assert!(text.lines().all(|l| l.starts_with("# ") || l.starts_with("weir_")));
    }

    #[test]
    fn rows_of_a_table_stand_together_in_any_order_of_additions() {
        let mut page = MetricsPage::new();
        for n in [0u64, 1] {
            let state = MetricValue::Word("armed".into());
            let values = vec![("requests", MetricValue::Number(n)), ("state", state)];
            page.add(&LOOPS, vec![n.to_string(), "a\"b\\".into()], values);
            page.add(
                &LISTENERS,
                vec![format!("[::1]:{n}")],
                vec![("queue", MetricValue::Number(3))],
            );
        }
        let text = page.text(PageForm::Prometheus(LoopDetail::Each));
        let labels = "loop=\"a\\\"b\\\\\"";
        let lines = format!(
            "{{worker=\"0\",{labels}}} 0\nweir_loop_requests_total{{worker=\"1\",{labels}}} 1\n"
        );
        assert!(
            text.contains(&format!(
                "# TYPE weir_loop_requests_total counter\nweir_loop_requests_total{lines}"
            )),
            "{text}"
        );
        assert!(
            text.contains(&format!("weir_loop_state{{worker=\"1\",{labels},state=\"armed\"}} 1\n"))
        );
        assert!(
            text.contains(&format!("weir_loop_state{{worker=\"1\",{labels},state=\"awake\"}} 0\n"))
        );
        let json = page.text(PageForm::Json);
        assert!(
            json.contains(r#"{"worker":0,"loop":"a\"b\\","state":"armed","requests":0}"#),
            "{json}"
        );
        assert!(json.contains(r#""listeners":[{"address":"[::1]:0","queue":3},"#), "{json}");
    }

    #[test]
    fn of_rows_with_the_same_labels_prometheus_sees_the_last() {
        let mut page = MetricsPage::new();
        for n in 1..=2 {
            page.add(&LISTENERS, vec!["a".into()], vec![("queue", MetricValue::Number(n))]);
        }
        let text = page.text(PageForm::Prometheus(LoopDetail::Each));
        assert_eq!(text.matches("weir_listener_queue{").count(), 1, "{text}");
        assert!(text.contains("weir_listener_queue{address=\"a\"} 2\n"), "{text}");
        assert_eq!(page.text(PageForm::Json).matches("\"queue\"").count(), 2);
    }

    #[test]
    fn times_of_tallies_add_up() {
        let all = registry(2);
        all.tally(0).unwrap().record(Histogram::Blocked, Duration::from_micros(9));
        all.tally(1).unwrap().record(Histogram::Blocked, Duration::from_millis(7));
        all.tally(1).unwrap().record(Histogram::Turn, Duration::from_secs(1000));
        let times = all.times(Histogram::Blocked);
        assert_eq!((times.count, times.sum), (2, 7009));
        assert_eq!(all.times(Histogram::Handler).count, 0);
        assert_eq!(all.sum(Metric::Accepted), 0);
        let text = page(&all).text(PageForm::Prometheus(LoopDetail::Each));
        assert!(text.contains("\nweir_event_loop_blocked_seconds_count 2\n"), "{text}");
        assert!(text.contains("weir_event_loop_blocked_seconds_bucket{le=\"+Inf\"} 2\n"));
        assert!(text.contains("\nweir_event_loop_blocked_seconds_sum 0.007009\n"), "{text}");
    }

    #[test]
    fn json_has_each_value_once() {
        let all = registry(1);
        all.tally(0).unwrap().add(Metric::Reading, 1);
        let text = page(&all).text(PageForm::Json);
        assert!(text.contains(r#""reading_connections":1,"#), "{text}");
        assert!(text.contains(r#""busy_us":0,"#), "{text}");
        assert!(text.starts_with('{') && text.ends_with('}'));
    }
}
