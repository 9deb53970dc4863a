//! Charts as HTML tables with a track of dots in each row. A screen reader reads the values, a
//! sighted reader sees positions.

use std::fmt::Write as _;

use super::OWN;
use super::html::escape;
use crate::chart::{Chart, ChartRow, Dot, amount};
use crate::finding::DoublingHistogram;

/// A chart.
pub(super) fn chart(chart: &Chart) -> String {
    let mut out = String::from("<figure>\n<table class=\"dots\">\n");
    let (title, unit) = (escape(&chart.title), escape(&chart.unit));
    let _ = writeln!(out, "<caption>{title} <small>({unit})</small></caption>");
    out.push_str("<thead><tr><td></td><td class=\"track\" aria-hidden=\"true\">");
    for tick in chart.ticks() {
        let place = 100.0 * chart.place(tick);
        let _ =
            write!(out, "<span class=\"tick\" style=\"left:{place:.2}%\">{}</span>", amount(tick));
    }
    out.push_str("</td>");
    for (n, column) in chart.columns.iter().enumerate() {
        let mark = format!("<i class=\"dot d{n}\"></i>");
        let _ = write!(out, "<th scope=\"col\">{mark} {}</th>", escape(column));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &chart.rows {
        self::row(&mut out, chart, row);
    }
    out.push_str("</tbody></table>\n");
    let _ = writeln!(out, "<figcaption>{}</figcaption></figure>", escape(&chart.caption));
    out
}

fn row(out: &mut String, chart: &Chart, row: &ChartRow) {
    let own = if OWN.contains(&row.label.as_str()) { " class=\"own\"" } else { "" };
    let _ = write!(out, "<tr{own}><th scope=\"row\">{}</th>", escape(&row.label));
    out.push_str("<td class=\"track\" aria-hidden=\"true\">");
    for tick in chart.ticks() {
        let _ = write!(out, "<s style=\"left:{:.2}%\"></s>", 100.0 * chart.place(tick));
    }
    // Dots with a number are drawn above those without.
    for (n, dot) in row.dots.iter().enumerate().rev() {
        self::dot(out, chart, n, dot);
    }
    out.push_str("</td>");
    for (column, dot) in chart.columns.iter().zip(&row.dots) {
        let value = dot.value().map_or_else(|| "-".to_owned(), amount);
        let _ = write!(out, "<td data-of=\"{}\">{value}</td>", escape(column));
    }
    out.push_str("</tr>\n");
}

fn dot(out: &mut String, chart: &Chart, n: usize, dot: &Dot) {
    let (Some(value), Some((low, high))) = (dot.value(), dot.range()) else { return };
    let place = |value| 100.0 * chart.place(value);
    if place(high) - place(low) > 0.5 {
        let (left, width) = (place(low), place(high) - place(low));
        let _ = write!(out, "<u style=\"left:{left:.2}%;width:{width:.2}%\"></u>");
    }
    let kind = if n < chart.columns.len() { format!("d{n}") } else { "other".to_owned() };
    let _ = write!(out, "<i class=\"dot {kind}\" style=\"left:{:.2}%\"></i>", place(value));
}

/// Histograms side by side, with a bar per row.
pub(super) fn histograms(all: &[DoublingHistogram]) -> String {
    let mut out = String::from("<div class=\"histograms\">\n");
    for one in all {
        let most = one.rows.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
        let _ = write!(out, "<table class=\"histogram\"><caption>{}</caption>", escape(&one.title));
        out.push_str("<thead><tr><th scope=\"col\">from</th><th scope=\"col\">count</th><td></td></tr></thead>\n");
        for (from, count) in one.rows.iter().skip_while(|(_, count)| *count == 0) {
            let width = 100.0 * *count as f64 / most as f64;
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{from}</th><td>{count}</td><td aria-hidden=\"true\">\
                 <b style=\"width:{width:.2}%\"></b></td></tr>"
            );
        }
        out.push_str("</table>\n");
    }
    out + "</div>\n"
}
