//! The alerts of the package ask for metrics that weir shows, and fire when they should.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_metrics::{Column, MetricKind, MetricTable, TABLES};

fn place() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/monitoring")
}

fn read(name: &str) -> String {
    let path = place().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// What `promtool` of Debian's package `prometheus` says; none where it is missing.
fn promtool(args: &[&str]) -> Option<Result<String, String>> {
    let Ok(out) = Command::new("promtool").args(args).current_dir(place()).output() else {
        eprintln!("skipped: no promtool here");
        return None;
    };
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    Some(if out.status.success() { Ok(said) } else { Err(said) })
}

/// Every name that Prometheus sees, with its table and column.
fn names() -> HashMap<String, (&'static MetricTable, &'static Column)> {
    let mut names = HashMap::new();
    for table in TABLES {
        for column in table.columns.iter().filter(|column| column.kind != MetricKind::Shown) {
            let name = table.metric(column);
            let ends: &[&str] = match column.kind {
                MetricKind::Histogram | MetricKind::Coarse => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            names.extend(ends.iter().map(|end| (format!("{name}{end}"), (*table, column))));
        }
    }
    names
}

/// The metrics of weir that an expression asks for.
fn asked(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("weir_"))
}

/// The alerts, each with its expression.
fn alerts() -> Vec<(String, String)> {
    let (text, mut alerts) = (read("alerts.yml"), Vec::<(String, String)>::new());
    let mut is_expression = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            alerts.push((name.to_owned(), String::new()));
        }
        is_expression |= line.starts_with("expr:");
        is_expression &= !line.starts_with("for:") && !line.starts_with("labels:");
        if let Some((_, expression)) = alerts.last_mut().filter(|_| is_expression) {
            expression.push_str(line);
            expression.push('\n');
        }
    }
    alerts
}

#[test]
fn alerts_ask_for_metrics_that_are_there() {
    let (names, alerts) = (names(), alerts());
    assert!(alerts.len() >= 30, "{alerts:?}");
    for (alert, expression) in &alerts {
        for name in asked(expression) {
            assert!(names.contains_key(name), "{alert} asks for {name}, which weir does not show");
        }
        let is_of_weir = asked(expression).count() > 0 || alert == "WeirDown";
        assert!(is_of_weir, "{alert}: {expression}");
    }
}

/// Labels in tests of alerts are made up. They are those that weir writes.
#[test]
fn series_in_tests_of_alerts_have_the_labels_of_weir() {
    let (names, text) = (names(), read("alerts.test.yml"));
    let series = text.split("series: '").skip(1).map(|rest| rest.split_once('\'').unwrap().0);
    let mut seen = 0;
    for series in series.filter(|series| series.starts_with("weir_")) {
        let (name, labels) = series.strip_suffix('}').unwrap().split_once('{').unwrap();
        let (table, column) = names.get(name).unwrap_or_else(|| panic!("no {name}"));
        let labels: HashMap<&str, &str> =
            labels.split(',').map(|label| label.split_once('=').unwrap()).collect();
        let own = table.labels.iter().copied().chain(column.by.map(|(label, _)| label));
        let all: BTreeSet<&str> = own.chain(["instance"]).collect();
        assert_eq!(labels.keys().copied().collect::<BTreeSet<_>>(), all, "{series}");
        if let Some((label, words)) = column.by {
            assert!(words.contains(&labels[label].trim_matches('"')), "{series}");
        }
        seen += 1;
    }
    assert!(seen >= 60, "{seen}");
}

#[test]
fn each_alert_is_tried_both_ways() {
    let text = read("alerts.test.yml");
    for (alert, _) in alerts() {
        for way in ["fires", "is quiet"] {
            assert!(text.contains(&format!("name: {alert} {way}\n")), "no test: {alert} {way}");
        }
    }
}

#[test]
fn alerts_fire_as_their_tests_say() {
    for args in [["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]] {
        if let Some(said) = promtool(&args) {
            assert!(said.as_ref().is_ok_and(|said| said.contains("SUCCESS")), "{args:?}: {said:?}");
        }
    }
}

/// Each alert stands on the page of metrics.
#[test]
fn the_page_names_all_alerts() {
    let page = std::fs::read_to_string(place().join("../../docs/metrics.md")).unwrap();
    for (alert, _) in alerts() {
        assert!(page.contains(&format!("`{alert}`")), "docs/metrics.md does not name {alert}");
    }
}
