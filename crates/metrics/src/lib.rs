//! Counters and gauges, each declared once; Prometheus and JSON text derive from the table.
//!
//! Values live in words that all processes of a server share. Each loop writes one [`Row`] of
//! its own, so counting takes no lock and no locked instruction; readers sum over the rows. A
//! row outlives the loop that wrote it: counters go on from where a predecessor stopped, gauges
//! of a loop that died are cleared by the master.

mod histogram;
mod table;
mod text;

pub use histogram::Times;
pub use table::{DECLARATIONS, Declaration, HISTOGRAMS, Histogram, Kind, Metric, TimesDeclaration};

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Words of one cache line; rows start on a line so that loops do not share one.
const LINE: usize = 8;

/// Words of one row.
const WIDTH: usize = (TIMES + HISTOGRAMS.len() * histogram::WORDS).next_multiple_of(LINE);

/// Where the histograms of a row begin.
const TIMES: usize = DECLARATIONS.len().next_multiple_of(LINE);

/// Every row of a server's values.
#[derive(Clone, Copy, Debug)]
pub struct Registry {
    words: &'static [AtomicU64],
}

impl Registry {
    /// Words that `rows` rows take.
    pub const fn words_for(rows: usize) -> usize {
        rows * WIDTH
    }

    /// A registry over zeroed words, which are cut into as many rows as fit.
    pub fn new(words: &'static [AtomicU64]) -> Registry {
        Registry { words }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.words.len() / WIDTH
    }

    /// Row `index` for its one writer, or nothing when there is no such row.
    pub fn row(&self, index: usize) -> Option<Row> {
        Some(Row { words: self.row_words(index)?, one_writer: PhantomData })
    }

    /// Sum of a value over all rows.
    pub fn sum(&self, metric: Metric) -> u64 {
        // A connection that moved is subtracted in another row than it was added in, so single
        // rows may be "negative" while the sum is right: hence the wrapping.
        self.words
            .chunks_exact(WIDTH)
            .map(|row| load(row, metric))
            .fold(0, |sum, value| sum.wrapping_add(value))
    }

    /// A value of one row, 0 when there is no such row.
    pub fn of_row(&self, index: usize, metric: Metric) -> u64 {
        self.row_words(index).map_or(0, |row| load(row, metric))
    }

    /// Times of all rows.
    pub fn times(&self, histogram: Histogram) -> Times {
        let mut buckets = vec![0u64; histogram::BUCKETS];
        let (mut count, mut sum) = (0, 0);
        for row in self.words.chunks_exact(WIDTH) {
            let words = row.get(words_of(histogram)).unwrap_or_default();
            for (bucket, word) in buckets.iter_mut().zip(words) {
                *bucket += word.load(Ordering::Relaxed);
            }
            count += words.get(histogram::COUNT).map_or(0, |w| w.load(Ordering::Relaxed));
            sum += words.get(histogram::SUM).map_or(0, |w| w.load(Ordering::Relaxed));
        }
        Times { buckets, count, sum }
    }

    /// Forgets what a dead loop had open: sets the gauges of its row to 0.
    pub fn clear_gauges(&self, index: usize) {
        let row = self.row_words(index).unwrap_or_default();
        for (word, declaration) in row.iter().zip(DECLARATIONS) {
            if declaration.kind == Kind::Gauge {
                word.store(0, Ordering::Relaxed);
            }
        }
    }

    /// All sums in the text format of Prometheus, names starting with `weir_`.
    pub fn prometheus(&self) -> String {
        text::prometheus(self)
    }

    /// All sums as one JSON object: name to type, unit and value.
    pub fn json(&self) -> String {
        text::json(self)
    }

    fn row_words(&self, index: usize) -> Option<&'static [AtomicU64]> {
        let start = index.checked_mul(WIDTH)?;
        self.words.get(start..start.checked_add(WIDTH)?)
    }
}

/// One loop's values. A row has one writer at a time, hence no `Clone` and no `Sync`.
#[derive(Debug)]
pub struct Row {
    words: &'static [AtomicU64],
    one_writer: PhantomData<Cell<()>>,
}

impl Row {
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
    pub fn hold(&self, metric: Metric) -> Held<'_> {
        self.add(metric, 1);
        Held { row: self, metric }
    }

    /// The value of this row alone.
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

    #[inline]
    fn update(&self, metric: Metric, change: impl FnOnce(u64) -> u64) {
        self.update_at(metric as usize, change);
    }

    /// Load and store are enough, since nobody else writes here.
    #[inline]
    fn update_at(&self, at: usize, change: impl FnOnce(u64) -> u64) {
        if let Some(word) = self.words.get(at) {
            word.store(change(word.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }
}

/// One of a gauge, given back when it is dropped: a task that panics or is given up leaves nothing behind.
#[derive(Debug)]
pub struct Held<'a> {
    row: &'a Row,
    metric: Metric,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.row.sub(self.metric, 1);
    }
}

/// The words of a histogram in a row.
const fn words_of(histogram: Histogram) -> std::ops::Range<usize> {
    let start = TIMES + histogram as usize * histogram::WORDS;
    start..start + histogram::WORDS
}

fn load(row: &[AtomicU64], metric: Metric) -> u64 {
    row.get(metric as usize).map_or(0, |word| word.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(rows: usize) -> Registry {
        let words: Vec<_> = (0..Registry::words_for(rows)).map(|_| AtomicU64::new(0)).collect();
        Registry::new(words.leak())
    }

    #[test]
    fn rows_add_up() {
        let all = registry(3);
        all.row(0).unwrap().add(Metric::Requests, 2);
        all.row(2).unwrap().add(Metric::Requests, 3);
        assert_eq!(all.sum(Metric::Requests), 5);
        assert_eq!(all.of_row(2, Metric::Requests), 3);
        assert!(all.row(3).is_none());
    }

    #[test]
    fn a_connection_may_end_in_another_row() {
        let all = registry(2);
        all.row(0).unwrap().add(Metric::Active, 1);
        all.row(1).unwrap().sub(Metric::Active, 1);
        assert_eq!(all.sum(Metric::Active), 0);
    }

    #[test]
    fn a_dead_loop_keeps_its_counters_and_loses_its_gauges() {
        let all = registry(1);
        let row = all.row(0).unwrap();
        row.add(Metric::Accepted, 7);
        row.add(Metric::Active, 2);
        row.add(Metric::Waiting, 1);
        all.clear_gauges(0);
        all.clear_gauges(9);
        assert_eq!(all.sum(Metric::Accepted), 7);
        assert_eq!((row.get(Metric::Active), row.get(Metric::Waiting)), (0, 0));
    }

    #[test]
    fn declarations_stand_at_their_own_index_with_names_of_their_own() {
        for (i, d) in DECLARATIONS.iter().enumerate() {
            assert_eq!(d.metric as usize, i);
            assert!(!d.help.is_empty() && !d.help.starts_with(' '));
            assert!(DECLARATIONS.iter().filter(|other| other.name == d.name).count() == 1);
        }
    }

    #[test]
    fn prometheus_text_names_type_and_help() {
        let all = registry(1);
        all.row(0).unwrap().add(Metric::Accepted, 4);
        let text = all.prometheus();
        assert!(text.contains("# TYPE weir_accepted_connections_total counter\n"));
        assert!(text.contains("\nweir_accepted_connections_total 4\n"));
        assert!(text.contains("# TYPE weir_active_connections gauge\n"));
        assert!(text.lines().all(|l| l.starts_with("# ") || l.starts_with("weir_")));
    }

    #[test]
    fn times_of_rows_add_up() {
        let all = registry(2);
        all.row(0).unwrap().record(Histogram::Blocked, Duration::from_micros(9));
        all.row(1).unwrap().record(Histogram::Blocked, Duration::from_millis(7));
        all.row(1).unwrap().record(Histogram::Turn, Duration::from_secs(1000));
        let times = all.times(Histogram::Blocked);
        assert_eq!((times.count, times.sum), (2, 7009));
        assert_eq!(all.times(Histogram::Handler).count, 0);
        assert_eq!(all.sum(Metric::Accepted), 0);
        let text = all.prometheus();
        assert!(text.contains("\nweir_event_loop_blocked_seconds_count 2\n"), "{text}");
        assert!(text.contains("weir_event_loop_blocked_seconds_bucket{le=\"+Inf\"} 2\n"));
        assert!(text.contains("\nweir_event_loop_blocked_seconds_sum 0.007009\n"), "{text}");
    }

    #[test]
    fn json_has_each_value_once() {
        let all = registry(1);
        all.row(0).unwrap().add(Metric::Reading, 1);
        let text = all.json();
        let reading = r#""reading":{"type":"gauge","unit":"connections","value":1}"#;
        assert!(text.contains(reading), "{text}");
        assert_eq!(text.matches("\"value\"").count(), DECLARATIONS.len());
        assert!(text.starts_with('{') && text.ends_with('}'));
    }
}
