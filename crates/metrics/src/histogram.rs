//! Histograms of times with four buckets to each power of two of microseconds. So a value is known
//! to within a quarter.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The number of buckets.
pub(crate) const BUCKETS: usize = 4 * POWERS;
/// The words of a histogram: its buckets, the number of values, and their sum in microseconds.
pub(crate) const WORDS: usize = BUCKETS + 2;
pub(crate) const COUNT: usize = BUCKETS;
pub(crate) const SUM: usize = BUCKETS + 1;

/// The powers of two that have buckets. The last bucket begins at about eight minutes, and has all
/// longer times as well.
const POWERS: usize = 28;

/// The bucket of a time.
#[inline]
pub(crate) fn bucket(micros: u64) -> usize {
    if micros < 4 {
        return micros as usize;
    }
    let power = micros.ilog2() as usize;
    let quarter = (micros >> (power - 2)) as usize & 3;
    (4 * (power - 1) + quarter).min(BUCKETS - 1)
}

/// The shortest time above a bucket.
pub(crate) fn end(bucket: usize) -> u64 {
    let next = bucket as u64 + 1;
    if next < 4 {
        return next;
    }
    let (power, quarter) = (next / 4 + 1, next % 4);
    (4 + quarter) << (power - 2)
}

/// The values of a histogram, of one loop or several.
#[derive(Debug, Clone)]
pub struct Times {
    pub(crate) buckets: Vec<u64>,
    /// The number of values.
    pub count: u64,
    /// Their sum in microseconds.
    pub sum: u64,
}

impl Default for Times {
    fn default() -> Times {
        Times { buckets: vec![0; BUCKETS], count: 0, sum: 0 }
    }
}

impl Times {
    /// Adds the values in the words of a histogram.
    pub(crate) fn add(&mut self, words: &[AtomicU64]) {
        let at = |i: usize| words.get(i).map_or(0, |word| word.load(Relaxed));
        for (i, bucket) in self.buckets.iter_mut().enumerate() {
            *bucket = bucket.saturating_add(at(i));
        }
        self.count = self.count.saturating_add(at(COUNT));
        self.sum = self.sum.wrapping_add(at(SUM));
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Times) {
        for (bucket, n) in self.buckets.iter_mut().zip(&other.buckets) {
            *bucket = bucket.saturating_add(*n);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// The time in microseconds that this share of the values does not exceed, rounded up to the
    /// end of its bucket. 0 without values.
    pub fn quantile(&self, share: f64) -> u64 {
        let total = total(&self.buckets);
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0u64;
        for (i, n) in self.buckets.iter().enumerate() {
            seen = seen.saturating_add(*n);
            if seen >= rank {
                return end(i) - 1;
            }
        }
        0
    }

    /// For each bucket with values: its longest time, and how many values do not exceed it.
    pub fn ends(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut seen = 0u64;
        let held = self.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        held.map(move |(i, n)| {
            seen = seen.saturating_add(*n);
            (end(i) - 1, seen)
        })
    }

    /// For each power of two of microseconds: the power, and how many values are below it. For
    /// formats with cumulative buckets. The last bucket has no end, so it is in no step.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut seen = 0u64;
        self.buckets.chunks(4).take(POWERS - 1).enumerate().map(move |(i, four)| {
            seen = seen.saturating_add(total(four));
            (end(4 * i + 3), seen)
        })
    }
}

/// Saturates, since other processes may have written any numbers.
fn total(buckets: &[u64]) -> u64 {
    buckets.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_lie_one_behind_the_other() {
        for micros in (0..100_000).chain([1 << 26, (1 << 27) + 1]) {
            let at = bucket(micros);
            assert!(micros < end(at), "{micros}");
            assert!(at == 0 || micros >= end(at - 1), "{micros}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn no_step_has_a_time_beyond_it() {
        let hours = [300_000_000, 600_000_000, 7_200_000_000, u64::MAX];
        for micros in hours.into_iter().chain((0..40).map(|power| 1 << power)) {
            let mut times = Times::default();
            (times.buckets[bucket(micros)], times.count) = (1, 1);
            let wrong = times.steps().find(|(end, n)| (*n == 1) != (micros < *end));
            assert_eq!(wrong, None, "{micros}");
        }
    }

    #[test]
    fn quantiles_come_from_the_bucket_that_holds_them() {
        let mut buckets = vec![0; BUCKETS];
        buckets[bucket(3)] = 99;
        buckets[bucket(1000)] = 1;
        let times = Times { buckets, count: 100, sum: 0 };
        assert_eq!(times.quantile(0.5), 3);
        assert_eq!(times.quantile(0.99), 3);
        assert!((1000..1250).contains(&times.quantile(0.999)));
        assert_eq!(times.steps().last().map(|(_, n)| n), Some(100));
        let ends: Vec<_> = times.ends().collect();
        assert_eq!((ends.len(), ends[0]), (2, (3, 99)));
        assert!((1000..1250).contains(&ends[1].0) && ends[1].1 == 100, "{ends:?}");
    }
}
