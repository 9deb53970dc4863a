//! The text format of HdrHistogram, which its plotter reads.

use std::fmt::Write as _;

use crate::RunOutcome;

/// Steps per halving of the distance to 100 %.
const STEPS: u32 = 5;

/// Latencies in milliseconds by percentile.
pub(crate) fn hdr(run: &RunOutcome) -> String {
    let times = &run.tally.latency;
    let mut out = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    let mut seen = 0;
    for step in times.iter_quantiles(STEPS) {
        seen += step.count_since_last_iteration();
        let (value, share) = (step.value_iterated_to() as f64 / 1e6, step.quantile_iterated_to());
        let _ = match share >= 1.0 {
            true => writeln!(out, "{value:>12.3} {share:>14.12} {seen:>10}"),
            false => {
                writeln!(
                    out,
                    "{value:>12.3} {share:>14.12} {seen:>10} {:>14.2}",
                    1.0 / (1.0 - share)
                )
            }
        };
    }
    let all = &run.tally.log2;
    let (mean, dev, max) = (all.mean(), all.deviation(), all.max());
    let _ = writeln!(out, "#[Mean    = {mean:>12.3}, StdDeviation   = {dev:>12.3}]");
    let _ = writeln!(out, "#[Max     = {max:>12.3}, Total count    = {:>12}]", all.count());
    let (buckets, digits) = (times.buckets(), times.sigfig());
    let _ = writeln!(out, "#[Buckets = {buckets:>12}, Digits         = {digits:>12}]");
    out
}
