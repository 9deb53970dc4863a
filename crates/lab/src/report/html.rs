//! The page: the machine, its noise and a summary, then a folded section per experiment, then the
//! terms.

use std::fmt::Write as _;

use super::chart::{chart, histograms};
use super::{ExperimentRecord, MachineFacts, OWN, take_home};
use crate::comparison::{Comparison, MeasuredWay, Standing};
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
         <main>\n<h1>Who gets the connection, and how long does it wait?</h1>\n"
    );
    machines(&mut out, found);
    out.push_str("<ul class=\"home\">\n");
    for sentence in take_home::sentences(found) {
        let _ = writeln!(out, "<li>{}</li>", escape(&sentence));
    }
    out.push_str("</ul>\n");
    for (experiment, record) in found {
        section(&mut out, experiment, record);
    }
    out.push_str("<h2>To understand it</h2>\n");
    for (title, text) in
        [("The question", INTRODUCTION), ("Terms", GLOSSARY), ("The articles", ARTICLES)]
    {
        let _ =
            write!(out, "<details class=\"terms\"><summary>{title}</summary>\n{text}</details>\n");
    }
    out + "</main>\n</body></html>\n"
}

/// Each run with its machine, servers and noise. A run of all experiments is one paragraph.
fn machines(out: &mut String, found: &[(&Experiment, ExperimentRecord)]) {
    let mut runs: Vec<(&MachineFacts, Vec<&(&Experiment, ExperimentRecord)>)> = Vec::new();
    for one in found {
        let machine = &one.1.machine;
        match runs.iter_mut().find(|(other, _)| *other == machine) {
            Some((_, all)) => all.push(one),
            None => runs.push((machine, vec![one])),
        }
    }
    for (machine, all) in &runs {
        let names = if runs.len() > 1 {
            let titles: Vec<&str> = all.iter().map(|(experiment, _)| experiment.title).collect();
            format!("<b>{}:</b> ", escape(&titles.join(", ")))
        } else {
            String::new()
        };
        let noise = all.iter().max_by(|a, b| a.1.noise.share.total_cmp(&b.1.noise.share));
        let noise = noise.map_or_else(String::new, |(experiment, record)| {
            let most = if all.len() > 1 {
                format!(" (most before \u{201c}{}\u{201d})", experiment.title)
            } else {
                String::new()
            };
            let class = if record.noise.share > take_home::NOISY { " noisy" } else { "" };
            let text = escape(&format!("{}{most}", record.noise.text()));
            format!("<p class=\"machine{class}\">{text}</p>")
        });
        let _ = writeln!(out, "<p class=\"machine\">{names}{}</p>{noise}", escape(&machine.text()));
    }
}

fn section(out: &mut String, experiment: &Experiment, record: &ExperimentRecord) {
    let ExperimentRecord { finding, machine, .. } = record;
    let (name, title) = (experiment.name, escape(experiment.title));
    let _ = writeln!(out, "<details class=\"experiment\" id=\"{name}\"><summary><h2>{title}</h2>");
    match finding.answer() {
        Some(verdict) => out.push_str(&answer(&verdict.comparison)),
        None => {
            let _ = write!(out, "<span class=\"line\">{}</span>", escape(experiment.question));
        }
    }
    out.push_str("</summary>\n");
    let _ = writeln!(out, "<p class=\"question\">{}</p>", escape(experiment.question));
    if let Some(verdict) = finding.answer() {
        answers(out, verdict);
    }
    for part in finding.parts() {
        if let FindingPart::Chart(one) = part {
            out.push_str(&chart(one));
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
    details(out, finding, machine);
    out.push_str("</details>\n");
}

/// The answer of an experiment: the comparison in which weir does worst, or else the first one.
fn answer(comparison: &Comparison) -> String {
    let is_own = OWN.contains(&comparison.own.way.as_str());
    let order = |other: &&MeasuredWay| match comparison.standing(other) {
        _ if !is_own => 0,
        Standing::Behind => 0,
        Standing::Level => 1,
        Standing::Ahead => 2,
        Standing::Unknown => 3,
    };
    let Some(other) = comparison.others.iter().min_by_key(order) else {
        return format!("<span class=\"line\">{}.</span>", escape(&comparison.line()));
    };
    let badge = match comparison.standing(other) {
        _ if !is_own => None,
        Standing::Ahead => Some(("ahead", "better")),
        Standing::Level => Some(("level", "no difference")),
        Standing::Behind => Some(("behind", "behind")),
        Standing::Unknown => None,
    };
    let badge = badge.map(|(kind, text)| format!("<b class=\"badge {kind}\">{text}</b> "));
    let sentence = escape(&comparison.sentence(other));
    format!("<span class=\"line\">{}{sentence}</span>", badge.unwrap_or_default())
}

/// A line for each other way.
fn answers(out: &mut String, verdict: &LabVerdict) {
    let LabVerdict { comparison, note } = verdict;
    let rounds = match comparison.rounds() {
        0 | 1 => "one round, so that its spread is not known".to_owned(),
        rounds => format!("{rounds} rounds, with their ranges"),
    };
    let _ = writeln!(
        out,
        "<div class=\"answer\"><p>{} ({rounds}):</p><ul>",
        escape(&comparison.subject())
    );
    for other in &comparison.others {
        let _ = writeln!(out, "<li>{}</li>", escape(&comparison.beside_other(other)));
    }
    let _ = writeln!(out, "</ul><p>{}</p></div>", escape(note));
}

/// All results of an experiment.
fn details(out: &mut String, finding: &LabFinding, machine: &MachineFacts) {
    out.push_str("<details class=\"all\"><summary>All that was measured</summary>\n");
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
            FindingPart::Histograms(all) => out.push_str(&histograms(all)),
            FindingPart::Chart(_) => {}
        }
    }
    if machine.servers.len() > 1 {
        let ways = machine.servers.iter().map(|s| format!("{}: {}", s.name, s.way_of_work));
        let ways = escape(&ways.collect::<Vec<_>>().join("; "));
        let _ = writeln!(out, "<p>Where a handler holds its worker up: {ways}.</p>");
    }
    out.push_str("</details>\n");
}

/// A table. On a narrow screen each row is a block whose cells name their columns.
fn table(table: &FindingTable, class: &str) -> String {
    let mut out = format!("<table class=\"figures {class}\">\n<thead><tr>");
    for head in table.heads() {
        let _ = match head.as_str() {
            // A screen reader would read an empty header.
            "" => write!(out, "<td></td>"),
            head => write!(out, "<th scope=\"col\">{}</th>", escape(head)),
        };
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in table.rows() {
        out.push_str("<tr>");
        for (n, (cell, head)) in row.iter().zip(table.heads()).enumerate() {
            let _ = match n {
                0 if cell.is_empty() => write!(out, "<td></td>"),
                0 => write!(out, "<th scope=\"row\">{}</th>", escape(cell)),
                _ => write!(out, "<td data-of=\"{}\">{}</td>", escape(head), escape(cell)),
            };
        }
        out.push_str("</tr>\n");
    }
    out + "</tbody></table>\n"
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
