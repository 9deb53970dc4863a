//! Histograms whose bounds double: 0, 1, 2, 4, 8, ...

use std::fmt::Write as _;

/// Width of the longest bar, in characters.
const WIDTH: usize = 50;

/// Number of fine rows, which divide the row below 1. The least bound above 0 is 2^-(FINE_ROWS - 1).
const FINE_ROWS: usize = 11;

/// A histogram with a row per power of two, and the exact minimum, mean, maximum and deviation.
#[derive(Clone, Debug, Default)]
pub struct Log2Histogram {
    rows: Vec<u64>,
    /// The values below 1 in rows whose bounds halve. The last row begins at 1/2, the first at 0.
    fine: [u64; FINE_ROWS],
    count: u64,
    min: f64,
    max: f64,
    mean: f64,
    /// Sum of squared differences from the mean (Welford's method).
    squares: f64,
}

/// The exact statistics of a histogram.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The minimum.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The maximum.
    pub max: f64,
    /// The standard deviation.
    pub deviation: f64,
}

impl Log2Histogram {
    /// A histogram with the counts of another program, by row from 0 on.
    pub fn of(rows: &[u64], figures: &Figures) -> Log2Histogram {
        let count = rows.iter().sum();
        let squares = figures.deviation.powi(2) * count as f64;
        let Figures { min, mean, max, .. } = *figures;
        Log2Histogram { rows: rows.to_vec(), fine: [0; FINE_ROWS], count, min, max, mean, squares }
    }

    /// An empty histogram.
    pub fn new() -> Log2Histogram {
        Log2Histogram::default()
    }

    /// Adds a value. Values below 1 belong to the first row.
    #[inline]
    pub fn add(&mut self, value: f64) {
        let row = row_of(value);
        if row >= self.rows.len() {
            self.rows.resize(row + 1, 0);
        }
        if let Some(count) = self.rows.get_mut(row) {
            *count += 1;
        }
        if row == 0 {
            self.fine[fine_row_of(value)] += 1;
        }
        if self.count == 0 {
            (self.min, self.max) = (value, value);
        }
        (self.min, self.max) = (self.min.min(value), self.max.max(value));
        self.count += 1;
        let off = value - self.mean;
        self.mean += off / self.count as f64;
        self.squares += off * (value - self.mean);
    }

    /// Adds all values of `other`.
    pub fn merge(&mut self, other: &Log2Histogram) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = other.clone();
            return;
        }
        self.rows.resize(self.rows.len().max(other.rows.len()), 0);
        for (mine, theirs) in self.rows.iter_mut().zip(&other.rows) {
            *mine += theirs;
        }
        for (mine, theirs) in self.fine.iter_mut().zip(&other.fine) {
            *mine += theirs;
        }
        let (a, b) = (self.count as f64, other.count as f64);
        let off = other.mean - self.mean;
        self.squares += other.squares + off * off * a * b / (a + b);
        self.mean += off * b / (a + b);
        self.count += other.count;
        (self.min, self.max) = (self.min.min(other.min), self.max.max(other.max));
    }

    /// The number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The minimum. 0 without values.
    pub fn min(&self) -> f64 {
        self.min
    }

    /// The maximum. 0 without values.
    pub fn max(&self) -> f64 {
        self.max
    }

    /// The mean. 0 without values.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// The standard deviation. 0 without values.
    pub fn deviation(&self) -> f64 {
        if self.count == 0 { 0.0 } else { (self.squares / self.count as f64).sqrt() }
    }

    /// The rows as `(lower bound, count)`, from 0 to the greatest value's.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let bound = |row: usize| row.checked_sub(1).map_or(0, |power| 1u64 << power.min(63));
        self.rows.iter().enumerate().map(move |(row, &count)| (bound(row), count))
    }

    /// The rows to print. If most values are below 1, fine rows replace the first row. They begin
    /// with the first non-empty one.
    fn shown(&self) -> Vec<(f64, u64)> {
        let rows = self.rows().map(|(bound, count)| (bound as f64, count));
        let first = self.fine.iter().position(|n| *n > 0).unwrap_or(0);
        if 2 * self.fine.iter().skip(1).sum::<u64>() <= self.count {
            return rows.collect();
        }
        let bound = |row: usize| match row {
            0 => 0.0,
            row => 0.5_f64.powi((FINE_ROWS - row) as i32),
        };
        let fine = self.fine.iter().enumerate().map(|(row, n)| (bound(row), *n));
        fine.skip(first).chain(rows.skip(1)).collect()
    }

    /// Renders a line of statistics, the title, and a bar per row. The caller knows the median.
    pub fn render(&self, title: &str, median: f64) -> String {
        let mut out = format!(
            "min:{:.2} avg:{:.2} med={:.2} max:{:.2} dev:{:.2} count:{}\n{title}:\n",
            self.min,
            self.mean,
            median,
            self.max,
            self.deviation(),
            self.count
        );
        let _ = writeln!(out, " value |{} count", "-".repeat(WIDTH));
        let rows = self.shown();
        let most = rows.iter().map(|(_, count)| *count).max().unwrap_or(0).max(1);
        for (bound, count) in rows {
            let bound = match bound {
                small if small > 0.0 && small < 1.0 => format!("{small:.3}"),
                whole => format!("{whole}"),
            };
            let bar = "*".repeat((count as u128 * WIDTH as u128 / u128::from(most)) as usize);
            let _ = writeln!(out, "{bound:>6} |{bar:>WIDTH$} {count}");
        }
        out
    }
}

fn fine_row_of(value: f64) -> usize {
    let halves = -value.log2().floor();
    // Zero, negative values and NaN belong to the first row.
    if halves >= 1.0 { FINE_ROWS.saturating_sub(halves as usize) } else { 0 }
}

fn row_of(value: f64) -> usize {
    // The cast saturates. Values below 1 and NaN become 0.
    let whole = value as u64;
    whole.checked_ilog2().map_or(0, |power| power as usize + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[f64]) -> Log2Histogram {
        let mut all = Log2Histogram::new();
        values.iter().for_each(|&v| all.add(v));
        all
    }

    #[test]
    fn the_published_form() {
        let mut all = of(&[3.0, 5.0]);
        (0..4).for_each(|_| all.add(16.0));
        let want = "min:3.00 avg:12.00 med=16.00 max:16.00 dev:5.69 count:6\n\
                    Duration in ms:\n \
                    value |-------------------------------------------------- count\n     \
                        0 |                                                   0\n     \
                        1 |                                                   0\n     \
                        2 |                                      ************ 1\n     \
                        4 |                                      ************ 1\n     \
                        8 |                                                   0\n    \
                       16 |************************************************** 4\n";
        assert_eq!(all.render("Duration in ms", 16.0), want);
    }

    #[test]
    fn a_published_histogram_is_shown_as_it_was() {
        let figures = Figures { min: 3.61, mean: 30.39, max: 72.65, deviation: 1.58 };
        let text =
            Log2Histogram::of(&[0, 0, 1, 16, 67, 91_760, 8155, 1], &figures).render("T", 30.28);
        let first = "min:3.61 avg:30.39 med=30.28 max:72.65 dev:1.58 count:100000";
        assert_eq!(text.lines().next(), Some(first));
        assert!(text.ends_with("\n    32 |                                              **** 8155\n    64 |                                                   1\n"));
    }

    #[test]
    fn values_mostly_below_one_have_finer_rows() {
        let text = of(&[0.06, 0.07, 0.3, 0.999, 1.5]).render("T", 0.3);
        let bounds = text.lines().skip(3).map(|line| line.split('|').next().unwrap().trim());
        let counts = text.lines().skip(3).map(|line| line.rsplit(' ').next().unwrap());
        assert_eq!(bounds.collect::<Vec<_>>(), ["0.031", "0.062", "0.125", "0.250", "0.500", "1"]);
        assert_eq!(counts.collect::<Vec<_>>(), ["1", "1", "0", "1", "1", "1"]);
        // If no more than half of the values are below 1, the rows are whole numbers.
        let text = of(&[0.1, 0.2, 1.0, 2.0]).render("T", 0.5);
        assert!(text.lines().nth(3).unwrap().starts_with("     0 |"), "{text}");
        let text = of(&[0.0, 0.0, -1.0, 4.0]).render("T", 0.0);
        assert!(text.lines().nth(3).unwrap().starts_with("     0 |"), "{text}");
        assert!(text.contains("\n     1 |"), "{text}");
    }

    #[test]
    fn odd_values_have_a_row() {
        let all = of(&[-3.0, 0.5, 1.0, 1.99, 2.0, f64::MAX]);
        let rows: Vec<_> = all.rows().collect();
        assert_eq!(rows[..3], [(0, 2), (1, 2), (2, 1)]);
        assert_eq!(rows.len(), 65);
        assert_eq!(of(&[]).render("none", 0.0).lines().count(), 3);
    }

    proptest! {
        #[test]
        fn parts_add_up(a in prop::collection::vec(0.0..1e6f64, 0..50),
                        b in prop::collection::vec(0.0..1e6f64, 0..50)) {
            let mut parts = of(&a);
            parts.merge(&of(&b));
            let whole = of(&[a, b].concat());
            prop_assert_eq!(parts.rows().collect::<Vec<_>>(), whole.rows().collect::<Vec<_>>());
            prop_assert!((parts.deviation() - whole.deviation()).abs() < 1e-3);
            prop_assert!((parts.mean() - whole.mean()).abs() < 1e-3);
            prop_assert_eq!(parts.max(), whole.max());
        }
    }
}
