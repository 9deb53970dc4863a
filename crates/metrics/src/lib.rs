//! Counters, gauges and times, each declared once. The text for Prometheus and the JSON are made
//! from the tables.
//!
//! Values are in words that all processes of a server share. Each loop writes a [`Tally`] of its
//! own, so counting needs no lock and no atomic read-modify-write; readers sum over the tallies.
//! The counts of a loop outlive it: the master adds them to its own tally ([`Registry::bury`]). A
//! [`MetricsPage`] is a snapshot of rows of the tables in `table`, from the code that knows the
//! values.
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
