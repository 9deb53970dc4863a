//! Counters, gauges and times, each declared once; Prometheus and JSON text derive from the tables.
//!
//! Values live in words that all processes of a server share. Each loop writes one [`Tally`] of its
//! own, so counting takes no lock and no locked instruction; readers sum over the tallies. What a
//! loop has counted outlives it: the master adds it to a tally of its own ([`Registry::bury`]).
//! [`MetricsPage`] is what is shown: rows of the tables in `table`, from the code that knows them.
//!
//! - In: numbers, from the loop that counts them.
//! - Out: pages in the text format of Prometheus and in JSON.
//! - Callers: every crate of the server that counts something; `server` and `http` show the pages.

mod culprits;
mod docs;
mod histogram;
mod history;
mod json;
mod layout;
mod loop_tally;
mod page;
mod prometheus;
mod registry;
pub mod subjects;
mod table;
mod tally;
#[cfg(test)]
mod tests;

pub use culprits::Culprit;
pub use docs::tables;
pub use histogram::Times;
pub use history::WINDOW;
pub use json::quoted;
pub use layout::BOARD;
pub use loop_tally::{BlockedOperation, Lately, LoopTally, ProcessFigures, window};
pub use page::{IdleRows, LoopDetail, MetricValue, MetricsPage, PageForm};
pub use registry::Registry;
pub use subjects::{AllCounted, Counting};
pub use table::{
    ACME, BALANCE, BUILD, CACHE_STATES, CACHES, CERTIFICATES, CLASSES, Column, HEALTH,
    HEALTH_FINDINGS, HEALTH_STATES, HISTOGRAM_SUMS, HISTOGRAMS, Histogram, JsonShape, LISTENERS,
    LOOP_STATES, LOOPS, MACHINE, METRICS, Metric, MetricKind, MetricTable, OF_LOOPS,
    PEER_AVAILABILITY, PEER_STATES, POOL_SUMS, POOLS, PROCESSES, QUEUES, SERVER, SHARED,
    STREAM_UPSTREAMS, TABLES, TOTALS, UPSTREAMS, Unit, ZONES,
};
pub use tally::{Activity, HeldGauge, OldestOperation, Tally, TallyOwner};
