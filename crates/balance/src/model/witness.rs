//! The observations of a simulation.

use std::time::Duration;

/// What was observed from outside.
#[derive(Debug, Default)]
pub struct Witness {
    /// The time from the connect to the answer; on a kept connection, from the request.
    pub latencies: Vec<Duration>,
    /// Answered requests, by loop.
    pub answered: Vec<u64>,
    /// Accepted connections, by loop.
    pub accepted: Vec<u64>,
    /// Wake-ups that found the queue empty.
    pub empty: u64,
    /// Connections that a killed loop held.
    pub lost: u64,
    /// The longest time for which one connection waited in a shared queue while a living, unstopped
    /// loop slept. All sleeps of that loop in this time count together, since it could have
    /// accepted whenever it woke up for its own work.
    pub waited_beside_sleeper: Duration,
    /// The longest time for which every living loop slept and none was armed.
    pub nobody_armed: Duration,
    pub(super) unarmed_since: Option<Duration>,
    /// The connection that has waited longest, and how long each loop has slept meanwhile.
    pub(super) beside: Option<((usize, Duration), Vec<Duration>)>,
}

impl Witness {
    /// The latency that this share (0 to 1) of the requests did not exceed.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() as f64 * share) as usize;
        sorted.get(rank.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    /// The coefficient of variation of the answered requests over the loops.
    #[must_use]
    pub fn variation(&self) -> f64 {
        let n = self.answered.len().max(1) as f64;
        let mean = self.answered.iter().sum::<u64>() as f64 / n;
        let square = |&a: &u64| (a as f64 - mean).powi(2);
        (self.answered.iter().map(square).sum::<f64>() / n).sqrt() / mean
    }
}
