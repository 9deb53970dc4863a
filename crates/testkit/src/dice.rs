//! Random numbers for tests, from one seed.

use std::time::{SystemTime, UNIX_EPOCH};

/// A pseudo-random number generator (splitmix64). A seed always gives the same numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// One of several independent sequences of a seed.
    pub fn salted(seed: u64, salt: &str) -> Dice {
        let mix = |h: u64, b| h.wrapping_mul(0x0100_0000_01b3) ^ u64::from(b);
        Dice(salt.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, mix))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.any()) * n as u128) >> 64) as usize
    }

    /// True with the probability 1/n.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// An element of a slice.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A number from the environment, such as the number of cases.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seed of a run: `$WEIR_SEED`, or the current time. It is printed, so that a failure can be
/// repeated.
pub fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_micros() as u64);
    let seed = number("WEIR_SEED").unwrap_or(now);
    println!("WEIR_SEED={seed}");
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_the_numbers() {
        let fall = |mut dice: Dice| (0..8).map(|_| dice.below(6)).collect::<Vec<_>>();
        assert_eq!(fall(Dice::new(1)), fall(Dice::new(1)));
        assert_ne!(fall(Dice::new(1)), fall(Dice::new(2)));
        assert_ne!(fall(Dice::salted(1, "a")), fall(Dice::salted(1, "b")));
        let mut dice = Dice::new(3);
        let mut seen = [0; 6];
        (0..6000).for_each(|_| seen[dice.below(6)] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }
}
