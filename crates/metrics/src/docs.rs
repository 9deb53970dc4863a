//! Writes the lists of docs/metrics.md.

use std::fmt::Write;

use crate::table::{MetricKind, MetricTable, OF_LOOPS, TABLES};

/// All metrics with their labels and meaning, as Markdown.
pub fn tables() -> String {
    let mut out = String::new();
    for table in TABLES {
        let shown = table.columns.iter().filter(|column| column.kind != MetricKind::Shown);
        // Writing to a String cannot fail.
        let _ = write!(out, "\n### `{}`\n\n{}\n\n", table.name, about(table));
        for column in shown {
            // A name that ends in `_total` is a counter.
            let kind = match column.kind {
                MetricKind::Histogram | MetricKind::Coarse => " (histogram)",
                _ => "",
            };
            let labels =
                column.by.map(|(label, words)| format!(" By `{label}`: {}.", words.join(", ")));
            let (name, labels) = (table.metric(column), labels.unwrap_or_default());
            let _ = writeln!(out, "- `{name}`{kind}: {}{labels}", column.help);
        }
    }
    out.push('\n');
    out
}

fn about(table: &MetricTable) -> String {
    let labels: Vec<_> = table.labels.iter().map(|label| format!("`{label}`")).collect();
    let asked = match OF_LOOPS.iter().any(|other| std::ptr::eq(*other, table)) {
        true => " Prometheus sees them with `?loops=1`.",
        false => "",
    };
    match labels.is_empty() {
        true => format!("{}.{asked}", table.help),
        false => format!("{}. Labels: {}.{asked}", table.help, labels.join(", ")),
    }
}
