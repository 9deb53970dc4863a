//! Writes a page in the text format of Prometheus.

use std::collections::HashMap;
use std::fmt::Write;

use crate::Times;
use crate::page::{IdleRows, LoopDetail, MetricRow, MetricValue, MetricsPage, PIECE};
use crate::table::{Column, MetricKind, MetricTable, OF_LOOPS, TABLES};

/// A coarse histogram shows one of this many steps.
const COARSE: usize = 2;

/// The most rows that one piece examines, with or without a value.
const ROWS: usize = 4000;

/// A table with more rows than this may be shown without rows that have counted nothing.
const MANY: usize = 1000;

/// The text in pieces. All lines of a metric must be adjacent, so each column goes through all rows
/// of its table.
pub(crate) struct PrometheusPieces<'p> {
    page: &'p MetricsPage,
    idle: IdleRows,
    tables: std::vec::IntoIter<&'static MetricTable>,
    /// The rows of the present table, and its remaining columns.
    rows: Vec<&'p MetricRow>,
    columns: std::slice::Iter<'static, Column>,
    family: Option<Family<'p>>,
}

/// A column whose lines are being written.
struct Family<'p> {
    table: &'static MetricTable,
    column: &'static Column,
    name: String,
    rows: std::vec::IntoIter<&'p MetricRow>,
    /// Its HELP and TYPE lines are written.
    is_named: bool,
}

impl<'p> PrometheusPieces<'p> {
    pub(crate) fn new(
        page: &'p MetricsPage,
        detail: LoopDetail,
        idle: IdleRows,
    ) -> PrometheusPieces<'p> {
        let is_shown = |table: &&MetricTable| {
            detail == LoopDetail::Each || !OF_LOOPS.iter().any(|other| std::ptr::eq(*other, *table))
        };
        let tables: Vec<_> = TABLES.iter().copied().filter(is_shown).collect();
        let (rows, columns) = (Vec::new(), [].iter());
        PrometheusPieces { page, idle, tables: tables.into_iter(), rows, columns, family: None }
    }

    /// The next column of the table, or the first column of the next table.
    fn next_family(&mut self) -> Option<Family<'p>> {
        loop {
            if let Some(column) = self.columns.find(|column| column.kind != MetricKind::Shown) {
                let table = self.rows.first()?.table;
                let (name, rows) = (table.metric(column), self.rows.clone().into_iter());
                return Some(Family { table, column, name, rows, is_named: false });
            }
            let table = self.tables.next()?;
            self.rows = rows(self.page, table);
            if self.idle == IdleRows::LeftOut && self.rows.len() > MANY {
                self.rows.retain(|row| !row.is_idle());
            }
            self.columns = if self.rows.is_empty() { [].iter() } else { table.columns.iter() };
        }
    }
}

impl Iterator for PrometheusPieces<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let (mut out, mut looked) = (String::new(), 0);
        while out.len() < PIECE && looked < ROWS {
            let Some(family) = &mut self.family else {
                match self.next_family() {
                    Some(family) => self.family = Some(family),
                    None if out.is_empty() && looked == 0 => return None,
                    None => break,
                }
                continue;
            };
            match family.rows.next() {
                Some(row) => family.write(row, &mut out),
                None => self.family = None,
            }
            looked += 1;
        }
        Some(out)
    }
}

impl Family<'_> {
    /// Writes a row's lines.
    fn write(&mut self, row: &MetricRow, out: &mut String) {
        let Family { column, name, .. } = self;
        let Some((_, value)) = row.values.iter().find(|(name, _)| *name == column.name) else {
            return;
        };
        let kind = match column.kind {
            MetricKind::Counter => "counter",
            MetricKind::Histogram | MetricKind::Coarse => "histogram",
            MetricKind::Gauge | MetricKind::State | MetricKind::Shown => "gauge",
        };
        if !std::mem::replace(&mut self.is_named, true) {
            // Writing to a String cannot fail.
            let _ = write!(out, "# HELP {name} {}\n# TYPE {name} {kind}\n", column.help);
        }
        let pairs = self.table.labels.iter().zip(&row.labels);
        let labels: Vec<_> = pairs.map(|(label, word)| labelled(label, word)).collect();
        sample(column, name, &labels.join(","), value, out);
    }
}

/// The rows of a table. If two rows have the same labels, the later one counts, since Prometheus
/// allows each metric and labels only once. This happens with a loop of an older configuration,
/// which finishes its requests, and its successor.
fn rows<'p>(page: &'p MetricsPage, table: &MetricTable) -> Vec<&'p MetricRow> {
    let mut last = HashMap::new();
    let all: Vec<_> = page.rows.iter().filter(|row| std::ptr::eq(row.table, table)).collect();
    for (i, row) in all.iter().enumerate() {
        last.insert(&row.labels, i);
    }
    let is_last = |i: usize, row: &MetricRow| last.get(&row.labels) == Some(&i);
    all.iter().enumerate().filter(|(i, row)| is_last(*i, row)).map(|(_, row)| *row).collect()
}

fn sample(column: &Column, name: &str, labels: &str, value: &MetricValue, out: &mut String) {
    let words =
        || column.by.into_iter().flat_map(|(label, words)| words.iter().map(move |w| (label, *w)));
    match value {
        MetricValue::Number(n) => line(name, &[labels], n, out),
        MetricValue::Nanos(n) => line(name, &[labels], seconds(*n), out),
        MetricValue::Ratio(n) => line(name, &[labels], format_args!("{n:.6}"), out),
        MetricValue::Times(times) => histogram(column, name, labels, times, out),
        MetricValue::Each(each) => {
            for ((label, word), n) in words().zip(each) {
                line(name, &[labels, &labelled(label, word)], n, out);
            }
        }
        MetricValue::Word(is) => {
            for (label, word) in words() {
                line(name, &[labels, &labelled(label, word)], u8::from(word == is), out);
            }
        }
        MetricValue::Json(_) => {}
    }
}

fn histogram(column: &Column, name: &str, labels: &str, times: &Times, out: &mut String) {
    let bucket = format!("{name}_bucket");
    let every = if column.kind == MetricKind::Coarse { COARSE } else { 1 };
    for (end, n) in times.steps().skip(every - 1).step_by(every) {
        let le = format!("le=\"{}\"", seconds(end * 1000));
        line(&bucket, &[labels, &le], n, out);
    }
    line(&bucket, &[labels, "le=\"+Inf\""], times.count, out);
    line(&format!("{name}_sum"), &[labels], seconds(times.sum.saturating_mul(1000)), out);
    line(&format!("{name}_count"), &[labels], times.count, out);
}

fn line(name: &str, labels: &[&str], value: impl std::fmt::Display, out: &mut String) {
    let labels: Vec<&str> = labels.iter().copied().filter(|label| !label.is_empty()).collect();
    let _ = match labels.is_empty() {
        true => writeln!(out, "{name} {value}"),
        false => writeln!(out, "{name}{{{}}} {value}", labels.join(",")),
    };
}

fn labelled(label: &str, word: &str) -> String {
    let word = word.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{label}=\"{word}\"")
}

/// Formats nanoseconds as seconds.
fn seconds(nanos: u64) -> String {
    format!("{}.{:06}", nanos / 1_000_000_000, nanos / 1000 % 1_000_000)
}
