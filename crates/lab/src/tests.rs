//! Texts, configurations and pages; whole experiments are run by the binary's tests.

use crate::experiments::ALL;
use crate::finding::{Finding, Table, wrap};
use crate::lab::{padded, slashed, variation};
use crate::report;

#[test]
fn tables_are_aligned() {
    let mut table = Table::new(&["", "a"]);
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
    let mut finding = Finding::default();
    let mut table = Table::new(&["", "value"]);
    table.row(&["a < b".to_owned(), "7".to_owned()]);
    finding.table("numbers", &table);
    finding.picture("drawn", "Less is better.", Ok("<svg></svg>".to_owned()));
    let experiment = ALL.first().expect("there are some");
    report::write(&dir, experiment, &finding).unwrap();
    let (page, count) = report::page(&dir);
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(count, 1);
    assert!(page.contains("a &lt; b"));
    assert!(page.contains("<figure><svg></svg><figcaption>Less is better.</figcaption></figure>"));
    assert_eq!(page.matches(experiment.question).count(), 1);
}
