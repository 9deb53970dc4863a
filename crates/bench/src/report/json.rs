//! The summary as one JSON object.

use std::fmt::Write as _;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::report::text::warnings;
use crate::{RequestFailure, RunOutcome};

/// The summary as one JSON object and a newline.
pub fn json(run: &RunOutcome) -> String {
    let tally = &run.tally;
    let mut out = String::from("{");
    field(&mut out, "requests", tally.requests());
    field(&mut out, "errors", tally.errors());
    field(&mut out, "requests_per_second", number(run.requests_per_second()));
    field(&mut out, "seconds", number(run.elapsed.as_secs_f64()));
    field(&mut out, "bytes_received", tally.bytes);
    field(&mut out, "latency_ms", latency(run));
    field(&mut out, "connect_ms", times(&tally.connect));
    if !tally.handshake.is_empty() {
        field(&mut out, "tls_handshake_ms", times(&tally.handshake));
    }
    field(&mut out, "first_byte_ms", times(&tally.first_byte));
    let statuses = tally.statuses.iter().map(|(code, n)| (code.to_string(), *n));
    field(&mut out, "statuses", map(statuses));
    let failures = RequestFailure::ALL.iter().zip(tally.failures).filter(|(_, n)| *n > 0);
    field(&mut out, "error_kinds", map(failures.map(|(f, n)| (f.name().to_owned(), n))));
    if let Some(rate) = run.rate {
        field(&mut out, "rate", number(rate));
        field(&mut out, "send_lag_ms", times(&tally.lag));
        field(&mut out, "starts_without_free_connection", tally.waited_for_connection);
    }
    field(&mut out, "client", client(run));
    out.push_str("}\n");
    out
}

/// Without answers there is no latency: 0 would be the best one.
const NONE: &str = "null";

fn latency(run: &RunOutcome) -> String {
    let (tally, all) = (&run.tally, &run.tally.log2);
    if tally.requests() == 0 {
        return NONE.to_owned();
    }
    let mut out = String::from("{");
    field(&mut out, "min", number(all.min()));
    let shares = [
        ("p50", 50.0),
        ("p75", 75.0),
        ("p90", 90.0),
        ("p99", 99.0),
        ("p99_9", 99.9),
        ("p99_99", 99.99),
    ];
    shares.iter().for_each(|(name, p)| field(&mut out, name, number(tally.percentile(*p))));
    field(&mut out, "max", number(all.max()));
    field(&mut out, "mean", number(all.mean()));
    field(&mut out, "stdev", number(all.deviation()));
    out + "}"
}

fn times(times: &Histogram<u64>) -> String {
    if times.is_empty() {
        return NONE.to_owned();
    }
    let ms = |p: f64| number(times.value_at_percentile(p) as f64 / 1e6);
    let mut out = String::from("{");
    field(&mut out, "p50", ms(50.0));
    field(&mut out, "p99", ms(99.0));
    field(&mut out, "p99_9", ms(99.9));
    field(&mut out, "max", ms(100.0));
    out + "}"
}

fn client(run: &RunOutcome) -> String {
    let busy: Duration = run.threads.iter().map(|t| t.busy).sum();
    let waited: Duration = run.threads.iter().map(|t| t.waited).sum();
    let mut out = String::from("{");
    field(&mut out, "threads", run.threads.len());
    field(&mut out, "cpu_seconds", number(busy.as_secs_f64()));
    field(&mut out, "cpu_wait_seconds", number(waited.as_secs_f64()));
    field(&mut out, "requests_per_cpu_second", number(run.requests_per_cpu_second()));
    // The texts have no character that JSON escapes.
    let texts: Vec<String> = warnings(run).iter().map(|text| format!("\"{text}\"")).collect();
    field(&mut out, "warnings", format!("[{}]", texts.join(", ")));
    out + "}"
}

fn map(pairs: impl Iterator<Item = (String, u64)>) -> String {
    let mut out = String::from("{");
    pairs.for_each(|(name, n)| field(&mut out, &name, n));
    out + "}"
}

fn field(out: &mut String, name: &str, value: impl std::fmt::Display) {
    let comma = if out.ends_with('{') { "" } else { ", " };
    let _ = write!(out, "{comma}\"{name}\": {value}");
}

fn number(value: f64) -> String {
    if value.is_finite() { format!("{value:.4}") } else { "0".to_owned() }
}
