//! The content of a page: rows of tables, from the code that knows the values.

use crate::Times;
use crate::json::{Detail, JsonPieces};
use crate::prometheus::PrometheusPieces;
use crate::table::MetricKind::{Shown, State};
use crate::table::{Column, MetricTable};

/// One value.
#[derive(Clone, Debug)]
pub enum MetricValue {
    /// A number of things or bytes.
    Number(u64),
    /// Nanoseconds.
    Nanos(u64),
    /// A share.
    Ratio(f64),
    /// The values of a histogram.
    Times(Times),
    /// A number for each word of the column's label.
    Each(Vec<u64>),
    /// A word.
    Word(String),
    /// JSON text, included as it is.
    Json(String),
}

/// A row of a table.
#[derive(Debug)]
pub(crate) struct MetricRow {
    pub(crate) table: &'static MetricTable,
    pub(crate) labels: Vec<String>,
    pub(crate) values: Vec<(&'static str, MetricValue)>,
}

impl MetricRow {
    /// Whether the row has counted nothing: numbers are zero, and states have their first word.
    pub(crate) fn is_idle(&self) -> bool {
        self.columns().all(|(column, value)| match value {
            MetricValue::Number(n) | MetricValue::Nanos(n) => *n == 0 || column.kind == Shown,
            MetricValue::Ratio(ratio) => *ratio == 0.0,
            MetricValue::Times(times) => times.count == 0,
            MetricValue::Each(each) => {
                let calm = usize::from(column.kind == State);
                each.iter().skip(calm).all(|n| *n == 0)
            }
            MetricValue::Word(word) => {
                column.kind == Shown
                    || column.by.is_none_or(|(_, words)| words.first() == Some(&word.as_str()))
            }
            MetricValue::Json(_) => true,
        })
    }

    /// The columns for which the row has a value, in order.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (&'static Column, &MetricValue)> {
        let value = |column: &'static Column| {
            let found = self.values.iter().find(|(name, _)| *name == column.name);
            found.map(|(_, value)| (column, value))
        };
        self.table.columns.iter().filter_map(value)
    }
}

/// How much Prometheus gets to know about each loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopDetail {
    /// Only sums and extremes over all loops.
    Sums,
    /// Rows for each loop, too.
    Each,
}

/// Whether long tables show rows without counts to Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleRows {
    /// Only rows that have counted something.
    LeftOut,
    /// All rows.
    Shown,
}

/// The format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageForm {
    /// The text format of Prometheus.
    Prometheus(LoopDetail, IdleRows),
    /// One JSON object.
    Json,
    /// One JSON object with the buckets of histograms.
    JsonWithSteps,
    /// An event of the panel: as [`PageForm::JsonWithSteps`], without what the panel does not show.
    Panel,
}

/// A piece ends after the row with which it exceeds this many bytes.
pub(crate) const PIECE: usize = 32 << 10;

/// The content of a page.
#[derive(Debug, Default)]
pub struct MetricsPage {
    pub(crate) rows: Vec<MetricRow>,
    pub(crate) more: Vec<(&'static str, String)>,
}

impl MetricsPage {
    /// An empty page.
    pub fn new() -> MetricsPage {
        MetricsPage::default()
    }

    /// Adds a row: its labels in the table's order, and values by the names of their columns.
    /// Unknown values are left out.
    pub fn add(
        &mut self,
        table: &'static MetricTable,
        labels: Vec<String>,
        values: Vec<(&'static str, MetricValue)>,
    ) {
        debug_assert_eq!(labels.len(), table.labels.len(), "{}", table.name);
        let known = |name: &str| table.columns.iter().any(|column| column.name == name);
        debug_assert!(values.iter().all(|(name, _)| known(name)), "{}: {values:?}", table.name);
        self.rows.push(MetricRow { table, labels, values });
    }

    /// Adds a member to the JSON object that is no metric.
    pub fn add_json(&mut self, name: &'static str, json: String) {
        self.more.push((name, json));
    }

    /// Writes the page.
    pub fn text(&self, form: PageForm) -> String {
        self.pieces(form).collect()
    }

    /// Writes the page in pieces, each of which takes a loop less than a millisecond. Pieces may be
    /// empty.
    pub fn pieces(&self, form: PageForm) -> Box<dyn Iterator<Item = String> + '_> {
        let json = |detail| Box::new(JsonPieces::new(self, detail));
        match form {
            PageForm::Prometheus(detail, idle) => {
                Box::new(PrometheusPieces::new(self, detail, idle))
            }
            PageForm::Json => json(Detail::Percentiles),
            PageForm::JsonWithSteps => json(Detail::Steps),
            PageForm::Panel => json(Detail::Panel),
        }
    }
}
