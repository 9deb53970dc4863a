//! The report of a run: as text, as JSON and as a picture.

mod hdr;
mod json;
mod text;

pub(crate) use hdr::hdr;
pub use json::json;
pub use text::text;

use crate::RunOutcome;
use crate::plot::{self, DrawingError};

/// The shares of requests that the tables show.
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// Latency by percentile, a line per run.
///
/// # Errors
///
/// What the drawing library says.
pub fn svg(runs: &[(&str, &RunOutcome)]) -> Result<String, DrawingError> {
    let series: Vec<_> = runs.iter().map(|(name, run)| (*name, curve(run))).collect();
    plot::percentiles("Latency by percentile", &series)
}

/// `(nines, ms)`: 0 is the median's side, 2 the 99th percentile, 4 the 99.99th.
fn curve(run: &RunOutcome) -> Vec<(f64, f64)> {
    let answered = run.tally.requests().max(1) as f64;
    // Beyond one request in all there is nothing to see.
    let most = answered.log10().clamp(1.0, 6.0);
    let steps = 200;
    let nines = (0..=steps).map(|i| f64::from(i) / f64::from(steps) * most);
    nines.map(|n| (n, run.tally.percentile(100.0 - 100.0 / 10f64.powf(n)))).collect()
}
