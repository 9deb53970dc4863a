//! What the world lets be seen of it.

use std::time::Duration;

/// What was observed from outside.
#[derive(Debug, Default)]
pub struct Witness {
    /// From the connect (or, on a kept connection, the request) to the answer.
    pub latencies: Vec<Duration>,
    /// Answered requests, by loop.
    pub answered: Vec<u64>,
    /// Accepted connections, by loop.
    pub accepted: Vec<u64>,
    /// Wake-ups that found no connection in the queue they were for.
    pub empty: u64,
    /// Connections that a killed loop held.
    pub lost: u64,
    /// The longest time for which one connection waited in a shared queue while one loop, alive
    /// and not stopped, slept: all its naps together, since one that wakes up for its own work could
    /// have taken it.
    pub waited_beside_sleeper: Duration,
    /// The longest time for which every loop that lives slept, and none was armed.
    pub nobody_armed: Duration,
    pub(super) unarmed_since: Option<Duration>,
    /// The connection that waits longest, and for how long each loop has slept beside it.
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
