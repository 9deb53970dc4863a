//! The results, counted per thread and merged at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::{Log2Histogram, RequestFailure};

/// Longest recorded time: an hour, in nanoseconds. Longer times count as this.
const LONGEST: u64 = 3_600_000_000_000;
/// Significant decimal digits of recorded times.
const DIGITS: u8 = 3;

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time from the start, in an open loop from the due time, to the last byte.
    pub latency_ms: f32,
    /// The status code.
    pub status: u16,
}

/// Times and counts of completed requests.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Time from the start, in an open loop from the due time, to the last byte. Nanoseconds.
    pub latency: Histogram<u64>,
    /// The latency in milliseconds, as a histogram whose bounds double.
    pub log2: Log2Histogram,
    /// Time to connect, without TLS. Nanoseconds.
    pub connect: Histogram<u64>,
    /// Time of TLS handshakes. Nanoseconds.
    pub handshake: Histogram<u64>,
    /// Time from the last byte sent to the first byte received; over HTTP/2 from the start of
    /// sending. Nanoseconds.
    pub first_byte: Histogram<u64>,
    /// How late requests were sent although a connection was free: the client's fault. Open loop
    /// only; nanoseconds.
    pub lag: Histogram<u64>,
    /// Responses by status code.
    pub statuses: BTreeMap<u16, u64>,
    /// Failures, in the order of [`RequestFailure::ALL`].
    pub failures: [u64; RequestFailure::ALL.len()],
    /// The first error text for failures that need one, by name of the failure.
    pub reasons: BTreeMap<&'static str, String>,
    /// Bytes received.
    pub bytes: u64,
    /// Responses that were complete within the planned duration.
    pub in_time: u64,
    /// Requests that were due while no connection was free. Open loop only.
    pub waited_for_connection: u64,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally {
            latency: times(),
            log2: Log2Histogram::new(),
            connect: times(),
            handshake: times(),
            first_byte: times(),
            lag: times(),
            statuses: BTreeMap::new(),
            failures: [0; RequestFailure::ALL.len()],
            reasons: BTreeMap::new(),
            bytes: 0,
            in_time: 0,
            waited_for_connection: 0,
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

    /// Keeps the error text of a failure, if it is the first of its kind.
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
            // Histograms with equal bounds can always be added.
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
        self.waited_for_connection += other.waited_for_connection;
    }

    /// Complete responses, of any status.
    pub fn requests(&self) -> u64 {
        self.log2.count()
    }

    /// Requests without a complete response.
    pub fn errors(&self) -> u64 {
        self.failures.iter().sum()
    }

    /// A percentile of the latency, in milliseconds.
    pub fn percentile(&self, p: f64) -> f64 {
        // The histogram rounds up. The exact maximum is known.
        (self.latency.value_at_percentile(p) as f64 / 1e6).min(self.log2.max())
    }
}

/// Records a time. Longer ones count as [`LONGEST`].
pub(crate) fn note(times: &mut Histogram<u64>, time: Duration) {
    times.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

fn times() -> Histogram<u64> {
    let made = Histogram::new_with_bounds(1, LONGEST, DIGITS);
    // The crate accepts these constants. A growing histogram is equivalent.
    made.or_else(|_| Histogram::new(DIGITS)).unwrap_or_else(|_| unreachable!("constant bounds"))
}
