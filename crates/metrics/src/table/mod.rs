//! The declarations of all values: those that loops count, and those that pages show.

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

/// How a value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows while the server runs.
    Counter,
    /// The present amount.
    Gauge,
    /// A histogram of times.
    Histogram,
    /// A histogram with fewer buckets, for tables with many rows.
    Coarse,
    /// One of several words: a gauge for each word, one of which is 1.
    State,
    /// Only for JSON; it is no metric.
    Shown,
}

/// The unit of a value, as its name shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things that the name says.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds, kept in nanoseconds.
    Seconds,
    /// A share from 0 to 1.
    Ratio,
}

/// A value that each row of a table has.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The short name, in lower case.
    pub name: &'static str,
    /// How it changes.
    pub kind: MetricKind,
    /// Its unit.
    pub unit: Unit,
    /// A sentence of help.
    pub help: &'static str,
    /// A label with its words, if there is a value for each word.
    pub by: Option<(&'static str, &'static [&'static str])>,
}

/// How rows are written in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonShape {
    /// An object: the table has one row.
    Object,
    /// A list of objects.
    List,
    /// A map by the first label.
    Named,
    /// A map of lists by the first label.
    NamedLists,
    /// Not written: the rows are only for Prometheus, and another table has the same values.
    Absent,
}

/// A table of values for one kind of thing.
#[derive(Debug)]
pub struct MetricTable {
    /// The key in JSON.
    pub name: &'static str,
    /// What the rows are.
    pub help: &'static str,
    /// The prefix of Prometheus names; empty for those of the server itself.
    pub prefix: &'static str,
    /// The labels that distinguish the rows.
    pub labels: &'static [&'static str],
    /// How rows are written in JSON.
    pub shape: JsonShape,
    /// The values of each row.
    pub columns: &'static [Column],
}

impl MetricTable {
    /// A column's name for Prometheus, by its naming guide: the thing, the unit, and `_total` for
    /// counters.
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

/// The tables with rows for each loop or worker. Prometheus gets them only on demand, since they
/// grow with the machine.
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
