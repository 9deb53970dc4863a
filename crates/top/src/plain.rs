//! The values as plain text.

use std::fmt::Write;

use crate::values::{ShownValues, TextTable};
use crate::words::{age, bytes, count, cut, percent, time, wait};

/// Width of a full bar.
const BAR: usize = 20;

/// All values, for a pipe or a file.
pub(crate) fn text(f: &ShownValues) -> String {
    let mut out = format!("{}\n{}\n{}\n\n", f.about, f.state.0, totals(f));
    let _ = writeln!(
        out,
        "{:>6} {:>8}  {:<w$} {:>6} {:>10} {:>8} {:>9} {:>12}  state",
        "loop",
        "process",
        "at work",
        "",
        "requests/s",
        "open",
        "in flight",
        "longest wait",
        w = BAR
    );
    for l in &f.loops {
        let _ = writeln!(
            out,
            "{:>6} {:>8}  {:<w$} {:>6} {:>10} {:>8} {:>9} {:>12}  {}",
            l.name,
            l.pid,
            bar(l.share, BAR),
            percent(l.share),
            count(l.requests),
            l.open,
            l.inflight,
            wait(l.blocked),
            l.state,
            w = BAR
        );
    }
    let _ = writeln!(out, "\nWoken next: {}", or_no_loop(&f.next));
    if !f.culprits.is_empty() {
        out.push_str("\nWhat held loops up\n");
    }
    for c in &f.culprits {
        let _ = match c.running {
            true => {
                writeln!(out, "{:>10}  {} (so far, in {} loops)", time(c.longest), c.what, c.loops)
            }
            false => writeln!(
                out,
                "{:>10}  {} ({} times, in {} loops, {} ago)",
                time(c.longest),
                c.what,
                c.times,
                c.loops,
                age(c.last)
            ),
        };
    }
    for table in &f.tables {
        let _ = writeln!(out, "\n{}\n{}", table.title, columns(table, usize::MAX).join("\n"));
    }
    out
}

/// One line with the totals of the server.
pub(crate) fn totals(f: &ShownValues) -> String {
    format!(
        "{} requests/s · {} connections, {} new/s · {} of {} wait · {}/s sent",
        count(f.requests),
        count(f.open),
        count(f.accepted),
        f.waiting.0,
        f.waiting.1,
        bytes(f.sent)
    )
}

pub(crate) fn or_no_loop(next: &str) -> &str {
    if next.is_empty() { "no loop sleeps; new connections wait in the queue" } else { next }
}

/// A bar with a resolution of eighths of a cell.
pub(crate) fn bar(share: f64, cells: usize) -> String {
    const EIGHTHS: &[char] = &['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (share.clamp(0.0, 1.0) * cells as f64 * 8.0).round() as usize;
    let mut out = "█".repeat(eighths / 8);
    out.extend((eighths % 8).checked_sub(1).and_then(|at| EIGHTHS.get(at)));
    out
}

/// A table in columns with a header line. If it is too wide, long names are cut, then columns are
/// dropped.
pub(crate) fn columns(table: &TextTable, room: usize) -> Vec<String> {
    const NAME: usize = 20;
    let head: Vec<String> = table.columns.iter().map(|column| column.name.to_owned()).collect();
    let lines = || [&head].into_iter().chain(table.rows.iter().map(|row| &row.cells));
    let cells = |i: usize| lines().filter_map(move |row| row.get(i));
    let width = |i: usize| cells(i).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let mut widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut shown: Vec<usize> = (0..head.len()).collect();
    loop {
        let needed: usize = shown.iter().map(|i| widths[*i] + 2).sum();
        let excess = needed.saturating_sub(room);
        if excess == 0 {
            break;
        }
        let long = widths[0].saturating_sub(NAME).min(excess);
        let least = shown.iter().copied().max_by_key(|i| table.columns[*i].rank);
        match least.filter(|i| table.columns[*i].rank > 0) {
            _ if long > 0 => widths[0] -= long,
            Some(least) => shown.retain(|i| *i != least),
            None => break,
        }
    }
    let line = |row: &Vec<String>| {
        let mut out = String::new();
        for i in &shown {
            let (width, cell) = (widths[*i], row.get(*i).map_or("", |cell| cell));
            let cell = cut(cell, width);
            let _ = match table.columns[*i].words {
                true => write!(out, "  {cell:<width$}"),
                false => write!(out, "  {cell:>width$}"),
            };
        }
        cut(out.trim_end(), room)
    };
    lines().map(line).collect()
}
