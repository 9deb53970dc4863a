//! The summary as text.

use std::fmt::Write as _;
use std::time::Duration;

use crate::report::PERCENTILES;
use crate::{RequestFailure, RunOutcome};

/// A thread with at least this pressure was a bottleneck.
const BUSY_THREAD: f64 = 0.9;
/// A server that answers at least this share of the rate keeps up with it.
const RATE_REACHED: f64 = 0.98;
/// Send lag above this share of the latency distorts the result.
const MUCH_LAG: f64 = 0.1;
/// The client is judged only after a run this long. In a shorter one, threads mostly start.
const MIN_CONCLUSIVE_RUN: Duration = Duration::from_millis(300);

/// The summary as text: rates, times, failures, and the cost of the client.
pub fn text(run: &RunOutcome) -> String {
    let tally = &run.tally;
    let mut out = String::new();
    let seconds = run.elapsed.as_secs_f64();
    let _ = writeln!(
        out,
        "{} requests answered in {seconds:.2} s: {:.0} per second, {} received, {} errors",
        tally.requests(),
        run.requests_per_second(),
        size(tally.bytes),
        tally.errors()
    );
    if tally.requests() > 0 {
        times(&mut out, run);
        let statuses: Vec<String> =
            tally.statuses.iter().map(|(code, count)| format!("{code}: {count}")).collect();
        let _ = writeln!(out, "status      {}", statuses.join(", "));
    }
    for (failure, count) in RequestFailure::ALL.iter().zip(tally.failures).filter(|(_, n)| *n > 0) {
        let reason = tally.reasons.get(failure.name());
        let reason = reason.map_or(String::new(), |reason| format!(" ({reason})"));
        let _ = writeln!(out, "error       {}: {count}{reason}", failure.text());
    }
    client(&mut out, run);
    for warning in warnings(run) {
        let _ = writeln!(out, "warning     {warning}");
    }
    out
}

fn times(out: &mut String, run: &RunOutcome) {
    let tally = &run.tally;
    let names = ["p50", "p75", "p90", "p99", "p99.9", "p99.99", "max"];
    let _ = write!(out, "{:12}", "ms");
    for name in names {
        let _ = write!(out, "{name:>10}");
    }
    out.push('\n');
    row(out, "latency", |p| tally.percentile(p));
    // The first byte and send lag are parts of a latency, so they are at most its exact maximum.
    // Histograms round up. Failed requests have no latency, so the bound holds only without them.
    let is_part = |name| matches!(name, "first byte" | "send lag") && tally.errors() == 0;
    let most = |name| if is_part(name) { tally.log2.max() } else { f64::MAX };
    for (name, times) in [
        ("connect", &tally.connect),
        ("handshake", &tally.handshake),
        ("first byte", &tally.first_byte),
        ("send lag", &tally.lag),
    ] {
        if !times.is_empty() {
            row(out, name, |p| (times.value_at_percentile(p) as f64 / 1e6).min(most(name)));
        }
    }
    let all = &tally.log2;
    let (min, mean, dev) = (all.min(), all.mean(), all.deviation());
    let _ = writeln!(out, "latency     min {min:.3}, mean {mean:.3}, deviation {dev:.3} ms");
}

fn row(out: &mut String, name: &str, ms: impl Fn(f64) -> f64) {
    let _ = write!(out, "{name:12}");
    for p in PERCENTILES {
        let _ = write!(out, "{:>10.3}", ms(p));
    }
    out.push('\n');
}

fn client(out: &mut String, run: &RunOutcome) {
    let busy: Duration = run.threads.iter().map(|t| t.busy).sum();
    let _ = writeln!(
        out,
        "client      {} threads, {:.2} s of CPU, {:.0} requests per CPU second",
        run.threads.len(),
        busy.as_secs_f64(),
        run.requests_per_cpu_second()
    );
}

/// Reasons why the results may depend on the client rather than the server.
pub(crate) fn warnings(run: &RunOutcome) -> Vec<String> {
    let mut all = Vec::new();
    let fullest = run.threads.iter().max_by(|a, b| a.pressure().total_cmp(&b.pressure()));
    if let Some(thread) =
        fullest.filter(|t| t.pressure() >= BUSY_THREAD && run.elapsed >= MIN_CONCLUSIVE_RUN)
    {
        let share = |time: Duration| 100.0 * time.as_secs_f64() / thread.wall.as_secs_f64();
        let (busy, waited) = (share(thread.busy), share(thread.waited));
        all.push(format!(
            "this client was the bottleneck: a thread worked {busy:.0} % of the time and waited \
             {waited:.0} % for a CPU; try more threads, or another machine"
        ));
    }
    let tally = &run.tally;
    if let Some(rate) = run.rate {
        let lag = tally.lag.value_at_percentile(99.0) as f64 / 1e6;
        // Without answers there is no latency to compare it with.
        if tally.requests() > 0 && lag > tally.percentile(99.0) * MUCH_LAG {
            all.push(format!(
                "1 in 100 requests left {lag:.3} ms late: this client was in the way"
            ));
        }
        if tally.waited_for_connection > 0 {
            let (count, kept) = (tally.waited_for_connection, run.requests_per_second());
            all.push(if kept < RATE_REACHED * rate {
                format!(
                    "{count} requests waited for a free connection: the server cannot answer {rate:.0} \
                     a second over so few connections"
                )
            } else {
                format!(
                    "{count} requests waited for a free connection, some of the time; {kept:.0} a second \
                     were answered all the same"
                )
            });
        }
    }
    let exhausted = RequestFailure::ALL
        .iter()
        .zip(tally.failures)
        .any(|(failure, count)| *failure == RequestFailure::Exhausted && count > 0);
    if exhausted {
        all.push("this machine ran out of ports or descriptors".to_owned());
    }
    all
}

fn size(bytes: u64) -> String {
    match bytes as f64 {
        b if b < 1e4 => format!("{bytes} bytes"),
        b if b < 1e7 => format!("{:.1} kB", b / 1e3),
        b if b < 1e10 => format!("{:.1} MB", b / 1e6),
        b => format!("{:.1} GB", b / 1e9),
    }
}
