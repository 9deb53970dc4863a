//! Histograms whose rows double: 0, 1, 2, 4, 8, ...

use std::fmt::Write as _;

/// Width of the longest bar.
const WIDTH: usize = 50;

/// Counts per power of two, with the exact minimum, mean, maximum and deviation.
#[derive(Clone, Debug, Default)]
pub struct Log2 {
    rows: Vec<u64>,
    count: u64,
    min: f64,
    max: f64,
    mean: f64,
    /// Sum of squared distances from the mean.
    squares: f64,
}

/// The exact figures of a histogram.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The least value.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The greatest value.
    pub max: f64,
    /// The standard deviation.
    pub deviation: f64,
}

impl Log2 {
    /// A histogram that somebody else has made: the rows' counts, from 0 on.
    pub fn of(rows: &[u64], figures: &Figures) -> Log2 {
        let count = rows.iter().sum();
        let squares = figures.deviation.powi(2) * count as f64;
        let Figures { min, mean, max, .. } = *figures;
        Log2 { rows: rows.to_vec(), count, min, max, mean, squares }
    }

    /// Nothing counted.
    pub fn new() -> Log2 {
        Log2::default()
    }

    /// Counts a value; below 1 it belongs to the first row.
    #[inline]
    pub fn add(&mut self, value: f64) {
        let row = row_of(value);
        if row >= self.rows.len() {
            self.rows.resize(row + 1, 0);
        }
        if let Some(count) = self.rows.get_mut(row) {
            *count += 1;
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

    /// Adds all that `other` counted.
    pub fn merge(&mut self, other: &Log2) {
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
        let (a, b) = (self.count as f64, other.count as f64);
        let off = other.mean - self.mean;
        self.squares += other.squares + off * off * a * b / (a + b);
        self.mean += off * b / (a + b);
        self.count += other.count;
        (self.min, self.max) = (self.min.min(other.min), self.max.max(other.max));
    }

    /// How many values there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The least value, 0 if there was none.
    pub fn min(&self) -> f64 {
        self.min
    }

    /// The greatest value, 0 if there was none.
    pub fn max(&self) -> f64 {
        self.max
    }

    /// The mean, 0 if there was no value.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// The standard deviation, 0 if there was no value.
    pub fn deviation(&self) -> f64 {
        if self.count == 0 { 0.0 } else { (self.squares / self.count as f64).sqrt() }
    }

    /// The rows as `(lower bound, count)`, from 0 to the last that is not empty.
    pub fn rows(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let bound = |row: usize| row.checked_sub(1).map_or(0, |power| 1u64 << power.min(63));
        self.rows.iter().enumerate().map(move |(row, &count)| (bound(row), count))
    }

    /// One line of figures, the title, and a bar per row. The median is the caller's to know.
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
        let most = self.rows.iter().copied().max().unwrap_or(0).max(1);
        for (bound, count) in self.rows() {
            let bar = "*".repeat((count as u128 * WIDTH as u128 / u128::from(most)) as usize);
            let _ = writeln!(out, "{bound:>6} |{bar:>WIDTH$} {count}");
        }
        out
    }
}

fn row_of(value: f64) -> usize {
    // Casts saturate; what is below 1, or no number, becomes 0.
    let whole = value as u64;
    whole.checked_ilog2().map_or(0, |power| power as usize + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[f64]) -> Log2 {
        let mut all = Log2::new();
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
        let text = Log2::of(&[0, 0, 1, 16, 67, 91_760, 8155, 1], &figures).render("T", 30.28);
        let first = "min:3.61 avg:30.39 med=30.28 max:72.65 dev:1.58 count:100000";
        assert_eq!(text.lines().next(), Some(first));
        assert!(text.ends_with("\n    32 |                                              **** 8155\n    64 |                                                   1\n"));
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
