//! What a page shows: rows of tables, gathered from the code that knows them.

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
    /// Times in buckets.
    Times(Times),
    /// A number for each word of the column's label.
    Each(Vec<u64>),
    /// A word.
    Word(String),
    /// JSON as it is.
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
    /// Whether it has counted nothing: numbers are zero, and states are the first of their words.
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

    /// The columns of which it has a value, in their order.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (&'static Column, &MetricValue)> {
        let value = |column: &'static Column| {
            let found = self.values.iter().find(|(name, _)| *name == column.name);
            found.map(|(_, value)| (column, value))
        };
        self.table.columns.iter().filter_map(value)
    }
}

/// Whether Prometheus sees each loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopDetail {
    /// Sums and extremes of all.
    Sums,
    /// The same, and rows of each.
    Each,
}

/// Whether Prometheus sees each row of a long table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleRows {
    /// Those that have counted anything.
    LeftOut,
    /// All.
    Shown,
}

/// How a page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageForm {
    /// As Prometheus reads it.
    Prometheus(LoopDetail, IdleRows),
    /// As one JSON object.
    Json,
    /// The same, with the buckets of times.
    JsonWithSteps,
    /// What an event of the panel is: the same, without what the panel does not show.
    Panel,
}

/// A piece ends with the row in which it gets longer than this.
pub(crate) const PIECE: usize = 32 << 10;

/// All that a page shows.
#[derive(Debug, Default)]
pub struct MetricsPage {
    pub(crate) rows: Vec<MetricRow>,
    pub(crate) more: Vec<(&'static str, String)>,
}

impl MetricsPage {
    /// A page with nothing on it.
    pub fn new() -> MetricsPage {
        MetricsPage::default()
    }

    /// Adds a row: its labels in the table's order, and values by the names of their columns. What is not known is
    /// left out.
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

    /// Adds a member of the JSON object that is no metric.
    pub fn say(&mut self, name: &'static str, json: String) {
        self.more.push((name, json));
    }

    /// The text.
    pub fn text(&self, form: PageForm) -> String {
        self.pieces(form).collect()
    }

    /// The text in pieces that take a loop less than a millisecond each. Some may be empty.
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
