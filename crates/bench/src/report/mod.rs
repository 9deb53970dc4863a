//! The report of a run: as text, as JSON and as a chart.

mod hdr;
mod json;
mod text;

pub(crate) use hdr::hdr;
pub use json::json;
pub use text::text;

use crate::RunOutcome;
use crate::plot::{self, DrawingError};

/// The percentiles in the tables.
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// Draws latency by percentile, with a line per run.
///
/// # Errors
///
/// An error of the drawing library.
pub fn svg(runs: &[(&str, &RunOutcome)]) -> Result<String, DrawingError> {
    let series: Vec<_> = runs.iter().map(|(name, run)| (*name, curve(run))).collect();
    plot::percentiles("Latency by percentile", &series)
}

/// Points `(nines, ms)`: 0 is the minimum's end, 1 the 90th percentile, 2 the 99th, 4 the 99.99th.
fn curve(run: &RunOutcome) -> Vec<(f64, f64)> {
    let answered = run.tally.requests().max(1) as f64;
    // A percentile finer than one request of all has no meaning.
    let most = answered.log10().clamp(1.0, 6.0);
    let steps = 200;
    let nines = (0..=steps).map(|i| f64::from(i) / f64::from(steps) * most);
    nines.map(|n| (n, run.tally.percentile(100.0 - 100.0 / 10f64.powf(n)))).collect()
}
