//! The tallies that are free.

/// Tallies for loops. Each living loop has its own.
#[derive(Debug)]
pub struct Tallies {
    free: Vec<usize>,
}

impl Tallies {
    /// The tallies `from..to`, all free.
    pub fn new(from: usize, to: usize) -> Tallies {
        Tallies { free: (from..to).rev().collect() }
    }

    /// Takes `n` tallies. None if there are fewer.
    pub fn take(&mut self, n: usize) -> Option<Vec<usize>> {
        let at = self.free.len().checked_sub(n)?;
        let mut tallies = self.free.split_off(at);
        tallies.reverse();
        Some(tallies)
    }

    /// Gives tallies back.
    pub fn give(&mut self, tallies: &[usize]) {
        self.free.extend(tallies.iter().rev());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_go_round() {
        let mut tallies = Tallies::new(1, 6);
        let first = tallies.take(2).unwrap();
        assert_eq!(first, [1, 2]);
        assert_eq!(tallies.take(4), None);
        assert_eq!(tallies.take(3).unwrap(), [3, 4, 5]);
        tallies.give(&first);
        assert_eq!(tallies.take(2).unwrap(), [1, 2]);
    }
}
