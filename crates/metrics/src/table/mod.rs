//! The declarations of all values: what each loop writes, and what pages show.

mod counted;
mod loops;
mod server;
mod traffic;

pub use counted::{HISTOGRAMS, Histogram, METRICS, Metric};
pub use loops::{BALANCE, HISTOGRAM_SUMS, LISTENERS, LOOP_STATES, LOOPS, POOL_SUMS, POOLS, TOTALS};
pub use server::{
    ACME, BUILD, CERTIFICATES, HEALTH, HEALTH_FINDINGS, HEALTH_STATES, MACHINE, PROCESSES, SERVER,
    SHARED,
};
pub use traffic::{
    CACHE_STATES, CACHES, CLASSES, PEER_AVAILABILITY, PEER_STATES, QUEUES, STREAM_UPSTREAMS,
    UPSTREAMS, ZONES,
};

/// How a value moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows while the server runs.
    Counter,
    /// How much there is right now.
    Gauge,
    /// Times in buckets.
    Histogram,
    /// The same with fewer buckets, where there are many of them.
    Coarse,
    /// One of several words: a gauge for each of them, of which one is 1.
    State,
    /// For JSON alone: it would be no metric.
    Shown,
}

/// What is counted, as far as names tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things that the name says.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds, kept in nanoseconds.
    Seconds,
    /// A share.
    Ratio,
}

/// A value that a table has of each of its rows.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Short name in lower case.
    pub name: &'static str,
    /// How it moves.
    pub kind: MetricKind,
    /// In what.
    pub unit: Unit,
    /// One sentence for people.
    pub help: &'static str,
    /// A label of its own, and its words: then there is a value for each of them.
    pub by: Option<(&'static str, &'static [&'static str])>,
}

/// How rows stand in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonShape {
    /// There is one row.
    Object,
    /// One behind the other.
    List,
    /// By their first label.
    Named,
    /// By their first label, several of each.
    NamedLists,
    /// They are for Prometheus alone: another table's row has them.
    Absent,
}

/// Values of one kind of thing.
#[derive(Debug)]
pub struct MetricTable {
    /// Its key in JSON.
    pub name: &'static str,
    /// What its rows are.
    pub help: &'static str,
    /// What its names begin with for Prometheus; empty for the server's own.
    pub prefix: &'static str,
    /// What tells its rows apart.
    pub labels: &'static [&'static str],
    /// In JSON.
    pub shape: JsonShape,
    /// What is known of each row.
    pub columns: &'static [Column],
}

impl MetricTable {
    /// A column's name for Prometheus: what it is, in which unit, `_total` for counters, as its naming guide asks.
    pub fn metric(&self, column: &Column) -> String {
        let prefix = if self.prefix.is_empty() { "" } else { "_" };
        let unit = match column.unit {
            Unit::Count => "",
            Unit::Bytes => "_bytes",
            Unit::Seconds => "_seconds",
            Unit::Ratio => "_ratio",
        };
        let end = if column.kind == MetricKind::Counter { "_total" } else { "" };
        format!("weir{prefix}{}_{}{unit}{end}", self.prefix, column.name)
    }
}

const fn column(name: &'static str, kind: MetricKind, unit: Unit, help: &'static str) -> Column {
    Column { name, kind, unit, help, by: None }
}

const fn by(column: Column, label: &'static str, words: &'static [&'static str]) -> Column {
    Column { by: Some((label, words)), ..column }
}

/// Tables with rows for each loop or worker. Prometheus sees them on demand: they grow with the machine.
pub static OF_LOOPS: &[&MetricTable] = &[&LOOPS, &POOLS];

/// All tables, in the order of the pages.
pub static TABLES: &[&MetricTable] = &[
    &BUILD,
    &SERVER,
    &MACHINE,
    &PROCESSES,
    &CERTIFICATES,
    &ACME,
    &HEALTH,
    &HEALTH_FINDINGS,
    &TOTALS,
    &HISTOGRAM_SUMS,
    &BALANCE,
    &LOOPS,
    &LISTENERS,
    &ZONES,
    &UPSTREAMS,
    &QUEUES,
    &STREAM_UPSTREAMS,
    &CACHES,
    &SHARED,
    &POOL_SUMS,
    &POOLS,
];
