//! Texts, configurations and pages; the binary's tests run whole experiments.

use crate::chart::{Chart, Scale};
use crate::experiments::ALL;
use crate::finding::{FindingTable, LabFinding, wrap};
use crate::lab::{padded, slashed, variation};
use crate::report::{self, MachineFacts};

#[test]
fn tables_are_aligned() {
    let mut table = FindingTable::new(&["", "a"]);
    table.row(&["long".to_owned(), "1".to_owned()]);
    table.row(&["x".to_owned(), "100".to_owned()]);
    assert_eq!(table.text(), "        a\nlong    1\nx     100\n");
}

#[test]
fn long_texts_are_wrapped() {
    let text = wrap(&"word ".repeat(60));
    assert!(text.lines().all(|line| line.len() <= 100));
    assert_eq!(text.split_whitespace().count(), 60);
}

#[test]
fn idle_workers_count() {
    let all = padded([6], 3);
    assert_eq!(slashed(&all), "6 / 0 / 0");
    assert!((variation(&[6.0, 0.0, 0.0]) - std::f64::consts::SQRT_2).abs() < 1e-9);
    assert_eq!(variation(&[2.0, 2.0]), 0.0);
    assert_eq!(variation(&[]), 0.0);
}

#[test]
fn names_are_told_apart() {
    for (n, experiment) in ALL.iter().enumerate() {
        assert!(ALL[..n].iter().all(|other| other.name != experiment.name), "{}", experiment.name);
        assert!(experiment.question.ends_with(['?', '.']), "{}", experiment.name);
    }
}

#[test]
fn the_page_holds_what_was_found() {
    let dir = std::env::temp_dir().join(format!("weir-lab-test-{}", std::process::id()));
    let mut finding = LabFinding::default();
    let mut table = FindingTable::new(&["", "value"]);
    table.row(&["a < b".to_owned(), "7".to_owned()]);
    finding.table("numbers", &table);
    let mut chart = Chart::new("Who waits", "ms, less is better", Scale::Log, &["p50", "p99"]);
    chart.row("fair", [1.0, 2.0, 3.0]);
    chart.row("other", [10.0, f64::NAN]);
    finding.chart(chart.caption("Less is better."));
    finding.verdict(2.0, "ms with fair", "1.5 < 2".to_owned());
    let mut slower = finding.clone();
    slower.verdict(4.0, "ms with fair", "2 < 4".to_owned());
    let finding = LabFinding::of_rounds(vec![slower.clone(), finding.clone(), slower]).unwrap();
    let experiment = ALL.first().expect("there are some");
    let machine = MachineFacts::look(&[], true);
    report::write(&dir, experiment, &finding, &machine).unwrap();
    let (page, count) = report::page(&dir).unwrap();
    std::fs::write(dir.join(format!("{}.json", experiment.name)), "{}").unwrap();
    let other = report::page(&dir).unwrap_err();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(count, 1);
    assert!(page.contains("a &lt; b"));
    assert!(page.contains("<figcaption>Less is better.</figcaption></figure>"));
    assert_eq!(page.matches(experiment.question).count(), 1);
    // The median round's answer, on top and in its section, with the range of all.
    assert_eq!(
        page.matches("<b>4</b> ms with fair <small>(2 to 4 in 3 rounds)</small>").count(),
        2
    );
    assert!(page.contains("2 &lt; 4") && !page.contains("1.5 &lt; 2"));
    // weir's own row stands out; what was not measured is a dash; the third dot has no figure.
    assert_eq!(page.matches("<tr class=\"own\"><th scope=\"row\">fair</th>").count(), 1);
    assert!(page.contains("<td data-of=\"p99\">-</td>") && page.contains("dot other"));
    assert!(page.contains("Short runs.") && !page.contains("src="));
    assert!(other.contains("is of another weir"), "{other}");
}
