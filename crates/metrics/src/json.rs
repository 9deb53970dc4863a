//! A page as one JSON object.

use std::fmt::Write;

use crate::Times;
use crate::page::{MetricRow, MetricValue, MetricsPage};
use crate::table::{Column, JsonShape, MetricTable, TABLES, Unit};

/// How much is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Times have their percentiles.
    Percentiles,
    /// Times have their buckets as well, for readers that take the difference of two pages.
    Steps,
    /// As [`Detail::Steps`], without percentiles and [`UNSEEN`].
    Panel,
}

/// Values that the panel does not show, by their table. They are more than half of a page with many loops.
const UNSEEN: &[(&str, &[&str])] = &[
    ("histograms", &["event_loop_blocked", "handler", "turn"]),
    (
        "loops",
        &[
            "received",
            "turns",
            "slept",
            "armed",
            "cpu",
            "runqueue",
            "slow_handlers",
            "handler",
            "turn",
        ],
    ),
];

pub(crate) fn text(page: &MetricsPage, detail: Detail) -> String {
    let mut members: Vec<String> =
        page.more.iter().map(|(name, json)| member(name, json)).collect();
    for table in TABLES {
        let rows: Vec<_> = page.rows.iter().filter(|row| std::ptr::eq(row.table, *table)).collect();
        if let Some(json) = shaped(table, &rows, detail) {
            members.push(member(table.name, &json));
        }
    }
    format!("{{{}}}", members.join(",\n"))
}

/// None where an object has nothing in it; lists are there, empty.
fn shaped(table: &MetricTable, rows: &[&MetricRow], detail: Detail) -> Option<String> {
    let all = |rows: &[&MetricRow], skip| {
        let objects: Vec<_> = rows.iter().map(|row| object(row, skip, detail)).collect();
        format!("[{}]", objects.join(",\n"))
    };
    Some(match table.shape {
        JsonShape::Object => object(rows.first()?, 0, detail),
        JsonShape::List => all(rows, 0),
        JsonShape::Absent => return None,
        JsonShape::Named => {
            let named = |row: &&MetricRow| {
                member(row.labels.first().map_or("", |l| l), &object(row, 1, detail))
            };
            let members: Vec<_> = rows.iter().map(named).collect();
            format!("{{{}}}", members.join(",\n"))
        }
        JsonShape::NamedLists => {
            let mut names: Vec<&str> = Vec::new();
            for name in rows.iter().filter_map(|row| row.labels.first()) {
                if !names.contains(&name.as_str()) {
                    names.push(name);
                }
            }
            let list = |name: &&str| {
                let is = |row: &&MetricRow| row.labels.first().is_some_and(|label| label == name);
                let of: Vec<_> = rows.iter().copied().filter(is).collect();
                member(name, &all(&of, 1))
            };
            let members: Vec<_> = names.iter().map(list).collect();
            format!("{{{}}}", members.join(",\n"))
        }
    })
}

/// Labels that are numbers are numbers.
fn object(row: &MetricRow, skip: usize, detail: Detail) -> String {
    let pairs = row.table.labels.iter().zip(&row.labels).skip(skip);
    let labels = pairs.map(|(name, word)| match word.parse::<u64>() {
        Ok(n) => member(name, &n.to_string()),
        Err(_) => member(name, &quoted(word)),
    });
    let unseen =
        UNSEEN.iter().find(|(table, _)| detail == Detail::Panel && *table == row.table.name);
    let is_seen = |name: &str| !unseen.is_some_and(|(_, columns)| columns.contains(&name));
    let values = row
        .columns()
        .filter(|(column, _)| is_seen(column.name))
        .map(|(column, value)| member(&key(column, value), &shown(column, value, detail)));
    format!("{{{}}}", labels.chain(values).collect::<Vec<_>>().join(","))
}

fn key(column: &Column, value: &MetricValue) -> String {
    let micros = column.unit == Unit::Seconds && matches!(value, MetricValue::Nanos(_));
    format!("{}{}", column.name, if micros { "_us" } else { "" })
}

fn shown(column: &Column, value: &MetricValue, detail: Detail) -> String {
    match value {
        MetricValue::Number(n) => n.to_string(),
        MetricValue::Nanos(n) => (n / 1000).to_string(),
        MetricValue::Ratio(n) => format!("{n:.6}"),
        MetricValue::Times(times) => histogram(times, detail),
        MetricValue::Each(each) => {
            let words = column.by.map_or(&[][..], |(_, words)| words);
            let members: Vec<_> =
                words.iter().zip(each).map(|(word, n)| member(word, &n.to_string())).collect();
            let total =
                member("total", &each.iter().fold(0u64, |sum, n| sum.wrapping_add(*n)).to_string());
            format!("{{{},{total}}}", members.join(","))
        }
        MetricValue::Word(word) => quoted(word),
        MetricValue::Json(json) => json.clone(),
    }
}

/// `steps`: the end of each bucket that has values, and how many values are no longer.
fn histogram(times: &Times, detail: Detail) -> String {
    let mut out = format!("{{\"count\":{},\"sum_us\":{}", times.count, times.sum);
    let quantiles = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)];
    for (name, share) in quantiles.into_iter().filter(|_| detail != Detail::Panel) {
        // Writing to a String cannot fail.
        let _ = write!(out, ",\"{name}_us\":{}", times.quantile(share));
    }
    if detail != Detail::Percentiles {
        let all: Vec<_> = times.ends().map(|(end, n)| format!("[{end},{n}]")).collect();
        let _ = write!(out, ",\"steps\":[{}]", all.join(","));
    }
    out.push('}');
    out
}

fn member(name: &str, json: &str) -> String {
    format!("{}:{json}", quoted(name))
}

/// A JSON string.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
