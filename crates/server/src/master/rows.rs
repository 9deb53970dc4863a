//! Which rows of the counters are free.

/// Rows that loops may take; each loop that lives has its own.
#[derive(Debug)]
pub struct Rows {
    free: Vec<usize>,
}

impl Rows {
    /// The rows `from..to`, all free.
    pub fn new(from: usize, to: usize) -> Rows {
        Rows { free: (from..to).rev().collect() }
    }

    /// Takes `n` rows, or none when there are fewer.
    pub fn take(&mut self, n: usize) -> Option<Vec<usize>> {
        let at = self.free.len().checked_sub(n)?;
        let mut rows = self.free.split_off(at);
        rows.reverse();
        Some(rows)
    }

    /// Gives rows back.
    pub fn give(&mut self, rows: &[usize]) {
        self.free.extend(rows.iter().rev());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_round() {
        let mut rows = Rows::new(1, 6);
        let first = rows.take(2).unwrap();
        assert_eq!(first, [1, 2]);
        assert_eq!(rows.take(4), None);
        assert_eq!(rows.take(3).unwrap(), [3, 4, 5]);
        rows.give(&first);
        assert_eq!(rows.take(2).unwrap(), [1, 2]);
    }
}
