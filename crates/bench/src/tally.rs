//! The results, counted per thread and added up at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::{Log2, RequestFailure};

/// Longest time that is told apart: an hour, in nanoseconds.
const LONGEST: u64 = 3_600_000_000_000;
/// Decimal digits that are kept of each time.
const DIGITS: u8 = 3;

/// One answered request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// From the start, or the intended start, to the last byte.
    pub latency_ms: f32,
    /// The status code.
    pub status: u16,
}

/// Times and counts.
#[derive(Clone, Debug)]
pub struct Tally {
    /// From the start, or the intended start, to the last byte; nanoseconds.
    pub latency: Histogram<u64>,
    /// The same in milliseconds, in rows that double.
    pub log2: Log2,
    /// Establishing connections, without TLS; nanoseconds.
    pub connect: Histogram<u64>,
    /// TLS handshakes; nanoseconds.
    pub handshake: Histogram<u64>,
    /// From the last byte sent to the first received; nanoseconds.
    pub first_byte: Histogram<u64>,
    /// How late requests left although a connection was free: this client's fault. Open loop
    /// only; nanoseconds.
    pub lag: Histogram<u64>,
    /// Answers by status code.
    pub statuses: BTreeMap<u16, u64>,
    /// Failures in the order of [`RequestFailure::ALL`].
    pub failures: [u64; RequestFailure::ALL.len()],
    /// For failures of kinds that say too little, what the first of them said.
    pub reasons: BTreeMap<&'static str, String>,
    /// Bytes received.
    pub bytes: u64,
    /// Answers that were complete before the time was over.
    pub in_time: u64,
    /// Starts that had to wait for a free connection. Open loop only.
    pub crowded: u64,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally {
            latency: times(),
            log2: Log2::new(),
            connect: times(),
            handshake: times(),
            first_byte: times(),
            lag: times(),
            statuses: BTreeMap::new(),
            failures: [0; RequestFailure::ALL.len()],
            reasons: BTreeMap::new(),
            bytes: 0,
            in_time: 0,
            crowded: 0,
        }
    }

    pub(crate) fn answered(&mut self, latency: Duration, status: u16) -> Sample {
        note(&mut self.latency, latency);
        let ms = latency.as_secs_f64() * 1e3;
        self.log2.add(ms);
        *self.statuses.entry(status).or_default() += 1;
        Sample { latency_ms: ms as f32, status }
    }

    pub(crate) fn failed(&mut self, failure: RequestFailure, times: u64) {
        let at = RequestFailure::ALL.iter().position(|f| *f == failure);
        if let Some(count) = at.and_then(|at| self.failures.get_mut(at)) {
            *count += times;
        }
    }

    /// Keeps what a failure said, if it is the first of its kind.
    pub(crate) fn explain(&mut self, failure: RequestFailure, reason: &str) {
        self.reasons.entry(failure.name()).or_insert_with(|| reason.to_owned());
    }

    pub(crate) fn merge(&mut self, other: &Tally) {
        let pairs = [
            (&mut self.latency, &other.latency),
            (&mut self.connect, &other.connect),
            (&mut self.handshake, &other.handshake),
            (&mut self.first_byte, &other.first_byte),
            (&mut self.lag, &other.lag),
        ];
        for (mine, theirs) in pairs {
            // All have the same bounds, so nothing can be out of them.
            let _ = mine.add(theirs);
        }
        self.log2.merge(&other.log2);
        for (status, count) in &other.statuses {
            *self.statuses.entry(*status).or_default() += count;
        }
        for (mine, theirs) in self.failures.iter_mut().zip(&other.failures) {
            *mine += theirs;
        }
        for (name, reason) in &other.reasons {
            self.reasons.entry(name).or_insert_with(|| reason.clone());
        }
        self.bytes += other.bytes;
        self.in_time += other.in_time;
        self.crowded += other.crowded;
    }

    /// Complete answers, whatever their status.
    pub fn requests(&self) -> u64 {
        self.log2.count()
    }

    /// Requests without a complete answer.
    pub fn errors(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// A percentile of the latency, in milliseconds.
    pub fn percentile(&self, p: f64) -> f64 {
        // The histogram rounds up within its precision; the exact maximum is known.
        (self.latency.value_at_percentile(p) as f64 / 1e6).min(self.log2.max())
    }
}

/// Records a time; longer ones count as the longest.
pub(crate) fn note(times: &mut Histogram<u64>, time: Duration) {
    times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

fn times() -> Histogram<u64> {
    let made = Histogram::new_with_bounds(1, LONGEST, DIGITS);
    // The bounds are constants that the crate accepts; a histogram that grows is the same thing.
    made.or_else(|_| Histogram::new(DIGITS)).unwrap_or_else(|_| unreachable!("constant bounds"))
}
