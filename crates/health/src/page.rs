//! Findings as rows of a status page.

use std::sync::atomic::AtomicU64;

use weir_metrics::{HEALTH, HEALTH_FINDINGS, MetricValue, MetricsPage, quoted};

use crate::{Finding, Level, board};

/// If the last look is older than this, in milliseconds, and the judge does not sleep, the master was stopped or killed.
const SILENT: u64 = 15_000;

/// Adds the board's findings to a page. `now` is in milliseconds since 1970.
pub fn show(words: &[AtomicU64], now: u64, page: &mut MetricsPage) {
    let Some((at, mut findings)) = board::posted(words) else { return };
    if now.saturating_sub(at) > SILENT {
        findings.insert(0, silent(at));
    }
    let worst = findings.iter().map(|finding| finding.level).max().unwrap_or_default();
    let since = findings.first().map_or("null".to_owned(), |first| seconds(first.since));
    let values = vec![
        ("health", MetricValue::Number(worst as u64)),
        ("state", MetricValue::Word(worst.word().to_owned())),
        ("text", MetricValue::Word(headline(&findings))),
        ("since", MetricValue::Json(since)),
        ("findings", MetricValue::Json(list(&findings))),
        ("looks", MetricValue::Number(board::looks(words))),
    ];
    page.add(&HEALTH, Vec::new(), values);
    for finding in findings {
        let labels = vec![finding.rule.into_owned(), finding.subject];
        page.add(
            &HEALTH_FINDINGS,
            labels,
            vec![("finding", MetricValue::Number(finding.level as u64))],
        );
    }
}

fn silent(at: u64) -> Finding {
    Finding {
        rule: "master_silent".into(),
        level: Level::Yellow,
        subject: "master process".to_owned(),
        text: "the master process does not look any more: it was stopped or killed".to_owned(),
        since: at,
    }
}

/// The texts of the worst two findings.
fn headline(findings: &[Finding]) -> String {
    match findings {
        [] => "nothing is wrong".to_owned(),
        [only] => only.text.clone(),
        [one, two] => format!("{}; {}", one.text, two.text),
        [one, two, rest @ ..] => format!("{}; {}; and {} more", one.text, two.text, rest.len()),
    }
}

/// The text behind the master's name in ps(1): empty if nothing is wrong.
pub fn behind_name(findings: &[Finding]) -> String {
    match findings.iter().map(|finding| finding.level).max() {
        None | Some(Level::Green) => String::new(),
        Some(level) => format!(" [{}: {}]", level.word(), headline(findings)),
    }
}

fn list(findings: &[Finding]) -> String {
    let each = findings.iter().map(|finding| {
        let Finding { rule, level, subject, text, since } = finding;
        let (rule, subject, text) = (quoted(rule), quoted(subject), quoted(text));
        let (state, since) = (level.word(), seconds(*since));
        format!(r#"{{"rule":{rule},"state":"{state}","since":{since},"subject":{subject},"text":{text}}}"#)
    });
    format!("[{}]", each.collect::<Vec<_>>().join(",\n"))
}

fn seconds(millis: u64) -> String {
    format!("{}.{:03}", millis / 1000, millis % 1000)
}
