//! Which operations are slow, how often, and for how long.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// An operation that can be delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Operation {
    /// open() of a file that is there
    Open,
    /// open() that creates
    Create,
    /// Reading from the disk
    Read,
    /// Writing
    Write,
    /// rename()
    Rename,
    /// unlink()
    Unlink,
    /// Asking what a name is, or what is known of a file
    Getattr,
}

/// The probability that an operation is slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(f64);

/// The distribution of delays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spread {
    /// A constant delay.
    Fixed(Duration),
    /// Uniformly distributed between two delays.
    Uniform(Duration, Duration),
    /// The first delay, or the second in this share of cases.
    Either(Duration, Duration, f64),
    /// Exponentially distributed with this mean.
    Exponential(Duration),
}

/// The delays of a slow disk.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Delays {
    /// The operations that may be slow.
    pub(crate) operations: Vec<Operation>,
    /// The probability of a delay.
    pub(crate) share: Share,
    /// The distribution of delays.
    pub(crate) time: Spread,
    /// The seed of the random numbers.
    pub(crate) seed: u64,
}

impl Delays {
    /// Delays every open() of a file.
    pub(crate) fn each_open(time: Spread) -> Delays {
        let operations = vec![Operation::Open];
        Delays { operations, share: Share(1.0), time, seed: 1 }
    }
}

impl Share {
    /// One in `n` operations.
    pub(crate) fn one_in(n: u32) -> Share {
        Share(1.0 / f64::from(n.max(1)))
    }
}

/// `1/500` or `0.002`
impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let share = match text.split_once('/') {
            Some((part, whole)) => number(part).zip(number(whole)).map(|(p, w)| p / w),
            None => number(text),
        };
        let share = share.filter(|share| (0.0..=1.0).contains(share));
        share.map(Share).ok_or_else(|| format!("{text:?} is no share, such as 1/500 or 0.002"))
    }
}

/// `100ms`, `50ms..200ms` or `exp:100ms`
impl FromStr for Spread {
    type Err = String;

    fn from_str(text: &str) -> Result<Spread, String> {
        let spread = if let Some(mean) = text.strip_prefix("exp:") {
            duration(mean).map(Spread::Exponential)
        } else if let Some((least, most)) = text.split_once("..") {
            let both = duration(least).zip(duration(most)).filter(|(least, most)| least <= most);
            both.map(|(least, most)| Spread::Uniform(least, most))
        } else {
            duration(text).map(Spread::Fixed)
        };
        spread
            .ok_or_else(|| format!("{text:?} is no time, such as 100ms, 50ms..200ms or exp:100ms"))
    }
}

fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    Duration::try_from_secs_f64(number * seconds).ok()
}

/// The delays of a mounted disk, drawn in order of the operations.
#[derive(Debug)]
pub(crate) struct Faults {
    delays: Delays,
    slow: AtomicBool,
    drawn: AtomicU64,
    delayed: AtomicU64,
}

impl Faults {
    pub(crate) fn new(delays: Delays) -> Faults {
        let (drawn, delayed) = Default::default();
        Faults { delays, slow: AtomicBool::new(true), drawn, delayed }
    }

    pub(crate) fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::Relaxed);
    }

    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// The number of delayed operations, and of draws.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.delayed.load(Ordering::Relaxed), self.drawn.load(Ordering::Relaxed))
    }

    /// Draws the delay of an operation. `None` if it is not delayed.
    pub(crate) fn draw(&self, operation: Operation) -> Option<Duration> {
        if !self.is_slow() || !self.delays.operations.contains(&operation) {
            return None;
        }
        let turn = self.drawn.fetch_add(1, Ordering::Relaxed);
        let word = mix(self.delays.seed ^ mix(turn));
        if unit(word) >= self.delays.share.0 {
            return None;
        }
        self.delayed.fetch_add(1, Ordering::Relaxed);
        Some(self.delays.time.at(unit(mix(word))))
    }
}

impl Spread {
    /// The quantile of the distribution for a number from 0 to 1.
    fn at(self, place: f64) -> Duration {
        match self {
            Spread::Fixed(time) => time,
            Spread::Uniform(least, most) => least + most.saturating_sub(least).mul_f64(place),
            Spread::Either(usual, rare, share) => {
                if place < share {
                    rare
                } else {
                    usual
                }
            }
            Spread::Exponential(mean) => mean.mul_f64(-(1.0 - place).max(1e-9).ln()),
        }
    }
}

/// A number from 0 to 1, 1 excluded.
fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

/// The output function of SplitMix64 (Steele, Lea, Flood 2014). Adjacent words give unrelated
/// values.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
