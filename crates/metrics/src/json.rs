//! Writes a page as one JSON object.

use std::collections::HashMap;
use std::fmt::Write;

use crate::Times;
use crate::page::{MetricRow, MetricValue, MetricsPage, PIECE};
use crate::table::{Column, JsonShape, MetricTable, TABLES, Unit};

/// How detailed the JSON is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Histograms have their percentiles.
    Percentiles,
    /// Histograms have their buckets, too, for readers that compare two pages.
    Steps,
    /// As [`Detail::Steps`], but without percentiles and [`NOT_IN_PANEL`].
    Panel,
}

/// Values that the panel does not show, by their tables. They are more than half of a page with
/// many loops.
const NOT_IN_PANEL: &[(&str, &[&str])] = &[
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

/// The JSON object in pieces.
pub(crate) struct JsonPieces<'p> {
    parts: std::vec::IntoIter<Part<'p>>,
    detail: Detail,
}

/// A part of the object.
enum Part<'p> {
    Text(String),
    /// A row's object, without its first labels.
    Row(&'p MetricRow, usize),
}

impl<'p> JsonPieces<'p> {
    pub(crate) fn new(page: &'p MetricsPage, detail: Detail) -> JsonPieces<'p> {
        let mut members: Vec<Vec<Part<'p>>> =
            page.more.iter().map(|(name, json)| vec![Part::Text(member(name, json))]).collect();
        let mut left_out = Vec::new();
        for table in TABLES {
            let mut rows: Vec<_> =
                page.rows.iter().filter(|row| std::ptr::eq(row.table, *table)).collect();
            if detail == Detail::Panel && rows.len() > PANEL_ROWS {
                left_out.push(member(table.name, &(rows.len() - PANEL_ROWS).to_string()));
                rows = most_important(rows);
            }
            members.extend(in_shape(table, rows));
        }
        if !left_out.is_empty() {
            members
                .push(vec![Part::Text(member("left_out", &format!("{{{}}}", left_out.join(","))))]);
        }
        let parts = joined("{", members, "}");
        JsonPieces { parts: parts.into_iter(), detail }
    }
}

impl Iterator for JsonPieces<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut out = String::new();
        while out.len() < PIECE {
            match self.parts.next() {
                Some(Part::Text(text)) => out += &text,
                Some(Part::Row(row, skip)) => out += &object(row, skip, self.detail),
                None => break,
            }
        }
        (!out.is_empty()).then_some(out)
    }
}

/// The most rows of a table in the panel. People read no more.
const PANEL_ROWS: usize = 300;

/// The most important rows: failing ones first, then the busiest. They keep their order.
fn most_important(rows: Vec<&MetricRow>) -> Vec<&MetricRow> {
    let is_bad = |word: &str| word == "failing" || word == "down";
    let rank = |row: &MetricRow| {
        let of = |name: &str| row.columns().find(|(column, _)| column.name == name);
        let fails = match of("state") {
            Some((_, MetricValue::Word(word))) => is_bad(word),
            Some((Column { by: Some((_, words)), .. }, MetricValue::Each(each))) => {
                words.iter().zip(each).any(|(word, n)| *n > 0 && is_bad(word))
            }
            _ => false,
        };
        let work = match of("requests").or_else(|| of("sessions")).map(|(_, value)| value) {
            Some(MetricValue::Each(each)) => {
                each.iter().fold(0, |sum: u64, n| sum.wrapping_add(*n))
            }
            Some(MetricValue::Number(n)) => *n,
            _ => 0,
        };
        (fails, work)
    };
    let mut ranked: Vec<_> = rows.iter().enumerate().map(|(at, row)| (rank(row), at)).collect();
    ranked.sort_unstable_by_key(|(rank, at)| (std::cmp::Reverse(*rank), *at));
    let mut kept: Vec<usize> = ranked.into_iter().take(PANEL_ROWS).map(|(_, at)| at).collect();
    kept.sort_unstable();
    kept.into_iter().filter_map(|at| rows.get(at).copied()).collect()
}

/// Joins lists with commas, between two words.
fn joined<'p>(begin: &str, lists: Vec<Vec<Part<'p>>>, end: &str) -> Vec<Part<'p>> {
    let mut parts = vec![Part::Text(begin.to_owned())];
    for (at, list) in lists.into_iter().enumerate() {
        if at > 0 {
            parts.push(Part::Text(",\n".to_owned()));
        }
        parts.extend(list);
    }
    parts.push(Part::Text(end.to_owned()));
    parts
}

/// A member with these parts as its value.
fn member_of<'p>(name: &str, mut value: Vec<Part<'p>>) -> Vec<Part<'p>> {
    value.insert(0, Part::Text(member(name, "")));
    value
}

/// The rows in the table's JSON shape. None for an object or map without rows; lists may be empty.
fn in_shape<'p>(table: &MetricTable, rows: Vec<&'p MetricRow>) -> Option<Vec<Part<'p>>> {
    let all = |rows: Vec<&'p MetricRow>, skip| {
        joined("[", rows.into_iter().map(|row| vec![Part::Row(row, skip)]).collect(), "]")
    };
    let label = |row: &'p MetricRow| row.labels.first().map_or("", |label| label.as_str());
    let value = match table.shape {
        JsonShape::Object => vec![Part::Row(rows.first()?, 0)],
        JsonShape::List => all(rows, 0),
        JsonShape::Absent => return None,
        JsonShape::Named => {
            let members =
                rows.into_iter().map(|row| member_of(label(row), vec![Part::Row(row, 1)]));
            joined("{", members.collect(), "}")
        }
        JsonShape::NamedLists => {
            let (mut places, mut lists) = (HashMap::new(), Vec::<(&str, Vec<&MetricRow>)>::new());
            for row in rows {
                let at = *places.entry(label(row)).or_insert_with(|| {
                    lists.push((label(row), Vec::new()));
                    lists.len() - 1
                });
                lists.get_mut(at)?.1.push(row);
            }
            let members = lists.into_iter().map(|(name, rows)| member_of(name, all(rows, 1)));
            joined("{", members.collect(), "}")
        }
    };
    Some(member_of(table.name, value))
}

/// A row as an object. Labels that are numbers become JSON numbers.
fn object(row: &MetricRow, skip: usize, detail: Detail) -> String {
    let pairs = row.table.labels.iter().zip(&row.labels).skip(skip);
    let labels = pairs.map(|(name, word)| match word.parse::<u64>() {
        Ok(n) => member(name, &n.to_string()),
        Err(_) => member(name, &quoted(word)),
    });
    let unseen =
        NOT_IN_PANEL.iter().find(|(table, _)| detail == Detail::Panel && *table == row.table.name);
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

/// A histogram as an object. `steps` has the end of each bucket with values, and how many values do
/// not exceed it.
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
