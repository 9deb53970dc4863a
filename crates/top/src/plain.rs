//! The figures as plain text.

use std::fmt::Write;

use crate::figures::{Figures, TextTable};
use crate::words::{age, bytes, count, percent, time};

/// Cells of a full bar.
const BAR: usize = 20;

/// All of it, for a pipe or a file.
pub(crate) fn text(f: &Figures) -> String {
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
            time(l.blocked),
            l.state,
            w = BAR
        );
    }
    let _ = writeln!(out, "\nWoken next: {}", or_no_loop(&f.next));
    if !f.culprits.is_empty() {
        out.push_str("\nWhat held loops up\n");
    }
    for c in &f.culprits {
        let _ = writeln!(
            out,
            "{:>10}  {} ({} times, in {} loops, {} ago)",
            time(c.longest),
            c.what,
            c.times,
            c.loops,
            age(c.last)
        );
    }
    for table in &f.tables {
        let _ = write!(out, "\n{}\n{}", table.title, columns(table));
    }
    out
}

/// One line of what the server does in all.
pub(crate) fn totals(f: &Figures) -> String {
    format!(
        "{} requests/s · {} connections, {} new/s · {} of {} wait to be accepted · {}/s sent",
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

/// A bar of eighths of cells.
pub(crate) fn bar(share: f64, cells: usize) -> String {
    const EIGHTHS: &[char] = &['▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (share.clamp(0.0, 1.0) * cells as f64 * 8.0).round() as usize;
    let mut out = "█".repeat(eighths / 8);
    out.extend((eighths % 8).checked_sub(1).and_then(|at| EIGHTHS.get(at)));
    out
}

/// A table in columns: the first to the left, all others to the right.
pub(crate) fn columns(table: &TextTable) -> String {
    let head: Vec<String> = table.columns.iter().map(|name| (*name).to_owned()).collect();
    let widths: Vec<usize> = (0..head.len())
        .map(|i| {
            let cells = table.rows.iter().chain([&head]).filter_map(|row| row.get(i));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for row in [&head].into_iter().chain(&table.rows) {
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match i {
                0 => write!(out, "  {cell:<width$}"),
                _ => write!(out, "  {cell:>width$}"),
            };
        }
        out.push('\n');
    }
    out
}
