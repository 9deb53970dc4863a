//! The alerts and the dashboard of the package ask for metrics that weir shows. Alerts fire when they
//! should.

// The fuzzing build of the crate's targets links this test, too.
use bolero as _;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
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

fn dashboard() -> Value {
    serde_json::from_str(&read("grafana.json")).unwrap()
}

fn list<'v>(of: &'v Value, name: &str) -> &'v [Value] {
    of[name].as_array().unwrap_or_else(|| panic!("no {name}: {of}"))
}

/// All panels that show something.
fn charts(dashboard: &Value) -> Vec<&Value> {
    list(dashboard, "panels").iter().filter(|panel| panel["type"] != "row").collect()
}

/// Each query of each panel: the panel's title, the expression, and what its lines are called.
fn queries(dashboard: &Value) -> Vec<(&str, &str, &str)> {
    let mut all = Vec::new();
    for panel in charts(dashboard) {
        for target in list(panel, "targets") {
            let word = |name: &str| target[name].as_str().unwrap();
            all.push((panel["title"].as_str().unwrap(), word("expr"), word("legendFormat")));
        }
    }
    all
}

/// What stands between two marks, each time.
fn between<'t>(text: &'t str, begin: &'t str, end: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(begin).skip(1).filter_map(move |rest| rest.split(end).next())
}

#[test]
fn the_dashboard_asks_for_metrics_and_labels_that_are_there() {
    let (names, dashboard) = (names(), dashboard());
    let all = queries(&dashboard);
    assert!(all.len() >= 80, "{}", all.len());
    for (title, expression, legend) in all {
        let mut labels = BTreeSet::from(["le", "job", "instance"]);
        for name in asked(expression) {
            let found = names.get(name);
            let (table, column) = found.unwrap_or_else(|| panic!("{title}: no metric {name}"));
            labels.extend(table.labels);
            if let Some((label, words)) = column.by {
                labels.insert(label);
                let [exact, pattern] = ["=\"", "=~\""].map(|sign| format!("{label}{sign}"));
                let several = between(expression, &pattern, "\"").flat_map(|all| all.split('|'));
                let compared = between(expression, &exact, "\"").chain(several);
                compared.for_each(|word| assert!(words.contains(&word), "{title}: {label} {word}"));
            }
        }
        assert!(asked(expression).next().is_some(), "{title}: {expression}");
        assert!(expression.contains("instance=~\"$instance\""), "{title}: of all servers");
        let by = between(expression, "by (", ")").flat_map(|list| list.split(", "));
        for label in by.chain(between(legend, "{{", "}}")) {
            assert!(labels.contains(label), "{title}: no label {label}: {labels:?}");
        }
    }
}

#[test]
fn the_dashboard_s_queries_are_understood() {
    let (dashboard, mut rules) = (dashboard(), "groups: [{ name: a, rules: [\n".to_owned());
    for (i, (_, expression, _)) in queries(&dashboard).iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "1m");
        assert!(
            !expression.replace("$job", "").replace("$instance", "").contains('$'),
            "{expression}"
        );
        let expression = Value::from(expression);
        rules += &format!("{{ record: \"a:a{i}\", expr: {expression} }},\n");
    }
    rules += "] }]\n";
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("queries.yml");
    #[expect(clippy::disallowed_methods, reason = "a file of a test")]
    std::fs::write(&path, rules).unwrap();
    if let Some(said) = promtool(&["check", "rules", path.to_str().unwrap()]) {
        assert!(said.as_ref().is_ok_and(|said| said.contains("SUCCESS")), "{said:?}");
    }
}

/// Rows come in the order in which a person on call asks. Panels say what they show, fill the grid
/// and do not overlap.
#[test]
fn the_dashboard_is_laid_out() {
    let dashboard = dashboard();
    let panels = list(&dashboard, "panels");
    let rows = panels.iter().filter(|panel| panel["type"] == "row").map(|row| &row["title"]);
    assert_eq!(
        rows.collect::<Vec<_>>(),
        ["Health", "Traffic", "Latency", "Servers behind", "Cache", "Loops"]
    );
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let of = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(of("x") + of("w") <= 24, "{panel}");
        for cell in (0..of("w")).flat_map(|x| (0..of("h")).map(move |y| (x, y))) {
            assert!(taken.insert((of("x") + cell.0, of("y") + cell.1)), "it overlaps: {panel}");
        }
    }
    let titles: BTreeSet<&str> =
        panels.iter().map(|panel| panel["title"].as_str().unwrap()).collect();
    assert_eq!(titles.len(), panels.len());
    for panel in charts(&dashboard) {
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{panel}");
        let sources =
            list(panel, "targets").iter().chain([panel]).map(|of| &of["datasource"]["uid"]);
        sources.for_each(|source| assert_eq!(source, "${datasource}", "{panel}"));
    }
}
