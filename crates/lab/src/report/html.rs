//! The page: the answers on top, then a section for each finding, then the terms.

use std::fmt::Write as _;

use super::ExperimentRecord;
use super::chart::{chart, histograms};
use crate::chart::amount;
use crate::experiment::Experiment;
use crate::finding::{FindingPart, FindingTable, LabFinding, LabVerdict};

const STYLE: &str = include_str!("style.css");
const INTRODUCTION: &str = include_str!("introduction.html");
const GLOSSARY: &str = include_str!("glossary.html");
const ARTICLES: &str = include_str!("articles.html");

/// The whole page.
pub(super) fn page(found: &[(&Experiment, ExperimentRecord)]) -> String {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>weir lab</title>\n",
    );
    let _ = write!(
        out,
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>\n{STYLE}</style></head><body>\n\
         <main>\n{INTRODUCTION}"
    );
    if found.iter().any(|(_, record)| record.machine.brief) {
        out.push_str(
            "<p class=\"brief\"><b>Short runs.</b> Some of this was measured with --brief, to see that it works; the figures \
             mean little.</p>\n",
        );
    }
    answers(&mut out, found);
    for (experiment, record) in found {
        section(&mut out, experiment, record);
    }
    out + GLOSSARY + ARTICLES + "</main>\n</body></html>\n"
}

/// A line and a figure for each question.
fn answers(out: &mut String, found: &[(&Experiment, ExperimentRecord)]) {
    out.push_str("<nav aria-label=\"The answers\"><ul class=\"answers\">\n");
    for (experiment, record) in found {
        let (name, title) = (experiment.name, escape(experiment.title));
        let _ = write!(out, "<li><a href=\"#{name}\"><h2>{title}</h2>");
        match record.finding.answer() {
            Some(verdict) => out.push_str(&answer(verdict)),
            None => {
                let _ = write!(out, "<p class=\"line\">{}</p>", escape(experiment.question));
            }
        }
        out.push_str("</a></li>\n");
    }
    out.push_str("</ul></nav>\n");
}

fn answer(verdict: &LabVerdict) -> String {
    let LabVerdict { figure, unit, line, .. } = verdict;
    let range = verdict.range().map(|r| format!(" <small>({r})</small>")).unwrap_or_default();
    let (unit, line) = (escape(unit), escape(line));
    format!(
        "<p class=\"figure\"><b>{}</b> {unit}{range}</p><p class=\"line\">{line}</p>",
        amount(*figure)
    )
}

fn section(out: &mut String, experiment: &Experiment, record: &ExperimentRecord) {
    let ExperimentRecord { finding, machine } = record;
    let (name, title) = (experiment.name, escape(experiment.title));
    let _ = writeln!(out, "<section id=\"{name}\"><h2>{title}</h2>");
    let _ = writeln!(out, "<p class=\"question\">{}</p>", escape(experiment.question));
    if let Some(verdict) = finding.answer() {
        let _ = writeln!(out, "<div class=\"answer\">{}</div>", answer(verdict));
    }
    for part in finding.parts() {
        match part {
            FindingPart::Chart(one) => out.push_str(&chart(one)),
            FindingPart::Histograms(all) => out.push_str(&histograms(all)),
            FindingPart::Table(_) | FindingPart::Remark(_) | FindingPart::Blocks(_) => {}
        }
    }
    out.push_str("<h3>What was published</h3>\n");
    let _ = writeln!(out, "<p>{}</p>", escape(experiment.published));
    if let Some(comparison) = finding.comparison() {
        out.push_str(&table(&comparison, "beside"));
    }
    for reason in finding.reasons() {
        let _ = writeln!(out, "<p class=\"because\">{}</p>", escape(reason));
    }
    details(out, finding);
    let _ = writeln!(out, "<p class=\"machine\">{}</p>", escape(&machine.text()));
    if machine.servers.len() > 1 {
        let ways = machine.servers.iter().map(|[name, _, way]| format!("{name}: {way}"));
        let ways: Vec<String> = ways.collect();
        let ways = escape(&ways.join("; "));
        let _ =
            writeln!(out, "<p class=\"machine\">Where a handler holds its worker up: {ways}.</p>");
    }
    out.push_str("</section>\n");
}

/// All figures.
fn details(out: &mut String, finding: &LabFinding) {
    out.push_str("<details><summary>All that was measured</summary>\n");
    for part in finding.parts() {
        match part {
            FindingPart::Table(rows) => out.push_str(&table(rows, "")),
            FindingPart::Remark(text) => {
                let _ = writeln!(out, "<p>{}</p>", escape(text));
            }
            FindingPart::Blocks(blocks) => {
                out.push_str("<div class=\"blocks\">");
                for block in blocks {
                    let _ = writeln!(out, "<pre>{}</pre>", escape(block.trim_end()));
                }
                out.push_str("</div>\n");
            }
            FindingPart::Chart(_) | FindingPart::Histograms(_) => {}
        }
    }
    out.push_str("</details>\n");
}

fn table(table: &FindingTable, class: &str) -> String {
    let mut out = format!("<div class=\"wide\" tabindex=\"0\"><table class=\"{class}\">\n<tr>");
    for head in table.heads() {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escape(head));
    }
    out.push_str("</tr>\n");
    for row in table.rows() {
        out.push_str("<tr>");
        for (n, cell) in row.iter().enumerate() {
            let _ = match n {
                0 => write!(out, "<th scope=\"row\">{}</th>", escape(cell)),
                _ => write!(out, "<td>{}</td>", escape(cell)),
            };
        }
        out.push_str("</tr>\n");
    }
    out + "</table></div>\n"
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
