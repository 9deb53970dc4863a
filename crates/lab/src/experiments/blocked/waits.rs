//! How long requests waited, and how long events waited for their loops.

use weir_bench::Tally;

/// Times to first byte of the requests of a stream.
#[derive(Clone)]
pub(crate) struct FirstByteWaits {
    tally: Tally,
    /// Requests without an answer, or with a status other than 200.
    pub(crate) bad: u64,
}

impl FirstByteWaits {
    pub(crate) fn new(tally: Tally) -> FirstByteWaits {
        let other: u64 =
            tally.statuses.iter().filter(|(code, _)| **code != 200).map(|(_, n)| n).sum();
        FirstByteWaits { bad: tally.errors() + other, tally }
    }

    /// A quantile of the time to first byte, in milliseconds.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        self.tally.first_byte.value_at_quantile(share) as f64 / 1e6
    }

    /// A quantile, without the given number of slowest requests.
    pub(crate) fn quantile_without(&self, slowest: u64, share: f64) -> f64 {
        let all = self.tally.first_byte.len().max(1);
        let rest = all.saturating_sub(slowest) as f64 / all as f64;
        self.quantile(share * rest)
    }

    /// The requests of both streams.
    pub(crate) fn with(&self, other: &FirstByteWaits) -> FirstByteWaits {
        let mut tally = self.tally.clone();
        // Histograms with equal bounds can always be added.
        let _ = tally.first_byte.add(&other.tally.first_byte);
        FirstByteWaits { tally, bad: self.bad + other.bad }
    }
}

/// A histogram of `weir_status`: the cumulative count for each bound.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Buckets(Vec<(f64, u64)>);

impl Buckets {
    /// Parses a histogram in Prometheus' text format. Its bounds are in seconds, the result's in
    /// milliseconds.
    pub(crate) fn read(text: &str, name: &str) -> Option<Buckets> {
        let prefix = format!("{name}_bucket{{le=\"");
        let line = |line: &str| {
            let (bound, count) = line.strip_prefix(&prefix)?.split_once("\"} ")?;
            let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
            Some((bound * 1e3, count.trim().parse().ok()?))
        };
        let all: Vec<_> = text.lines().filter_map(line).collect();
        (!all.is_empty()).then_some(Buckets(all))
    }

    /// The values since an earlier reading.
    pub(crate) fn since(&self, before: &Buckets) -> Buckets {
        let pairs = self.0.iter().zip(&before.0);
        Buckets(pairs.map(|((bound, n), (_, old))| (*bound, n.saturating_sub(*old))).collect())
    }

    /// The least bound that this share of the values does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let all = self.0.last().map_or(0, |(_, n)| *n);
        let wanted = all as f64 * share;
        let found = self.0.iter().find(|(_, n)| *n as f64 >= wanted);
        found.map_or(0.0, |(bound, _)| *bound)
    }
}
