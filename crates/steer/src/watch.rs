//! Figures of a period, for the output.

use std::fmt::Write;

use crate::shares::WorkerSample;

/// The sums of all samples of each worker.
#[derive(Debug, Clone)]
pub(crate) struct WorkerWatch {
    rows: Vec<WorkerTotals>,
}

#[derive(Debug, Clone, Copy, Default)]
struct WorkerTotals {
    looks: u32,
    waiting: u64,
    most: u32,
    busy: f64,
    share: f64,
}

/// A summary of all workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    /// The mean length of all queues over all samples.
    pub waiting: f64,
    /// The longest queue that was seen.
    pub most: u32,
    /// The coefficient of variation of the workers' processor time.
    pub unevenness: f64,
}

impl WorkerWatch {
    pub(crate) fn new(workers: usize) -> WorkerWatch {
        WorkerWatch { rows: vec![WorkerTotals::default(); workers] }
    }

    /// Adds samples, and the shares that were in force.
    pub(crate) fn add(&mut self, seen: &[WorkerSample], shares: &[f64]) {
        for ((row, seen), share) in self.rows.iter_mut().zip(seen).zip(shares) {
            row.looks += 1;
            row.waiting += u64::from(seen.waiting);
            row.most = row.most.max(seen.waiting);
            row.busy += seen.busy;
            row.share += share;
        }
    }

    /// Formats a table with a row for each worker, under these names.
    pub(crate) fn table(&self, names: &[String]) -> String {
        let mut out = format!(
            "{:>20} {:>6} {:>8} {:>8} {:>6}\n",
            "worker", "cpu", "waiting", "at most", "share"
        );
        for (name, row) in names.iter().zip(&self.rows) {
            let looks = f64::from(row.looks.max(1));
            let (busy, waiting) = (100.0 * row.busy / looks, row.waiting as f64 / looks);
            let share = 100.0 * row.share / looks;
            let _ = writeln!(
                out,
                "{name:>20} {busy:>5.0}% {waiting:>8.2} {:>8} {share:>5.0}%",
                row.most
            );
        }
        out
    }

    pub(crate) fn summary(&self) -> Summary {
        let looks: f64 = self.rows.iter().map(|row| f64::from(row.looks)).sum();
        let waiting: f64 = self.rows.iter().map(|row| row.waiting as f64).sum();
        let busy: Vec<f64> =
            self.rows.iter().map(|row| row.busy / f64::from(row.looks.max(1))).collect();
        let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        let spread =
            busy.iter().map(|b| (b - mean).powi(2)).sum::<f64>() / busy.len().max(1) as f64;
        Summary {
            waiting: waiting / looks.max(1.0),
            most: self.rows.iter().map(|row| row.most).max().unwrap_or(0),
            unevenness: if mean > 0.0 { spread.sqrt() / mean } else { 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_means_and_maxima() {
        let mut watch = WorkerWatch::new(2);
        let seen = |waiting, busy| WorkerSample { waiting, given: 0, busy };
        watch.add(&[seen(0, 1.0), seen(4, 0.0)], &[1.0, 0.0]);
        watch.add(&[seen(2, 1.0), seen(0, 0.0)], &[0.5, 0.5]);
        let summary = watch.summary();
        assert_eq!((summary.waiting, summary.most, summary.unevenness), (1.5, 4, 1.0));
        let table = watch.table(&["a 1".to_owned(), "a 2".to_owned()]);
        assert!(table.contains("a 1   100%     1.00        2    75%"), "{table}");
    }
}
