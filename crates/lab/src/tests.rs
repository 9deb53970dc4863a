//! Tests of texts, configurations and pages. The tests of the binary run whole experiments.

use crate::chart::{Chart, Scale};
use crate::comparison::{Better, Comparison};
use crate::experiments::ALL;
use crate::finding::{FindingTable, LabFinding, wrap};
use crate::lab::{p99, padded, slashed, variation};
use crate::program::Family;
use crate::report::{self, MachineFacts, Noise};
use crate::running::scratch_dir;

use std::io::{Read, Write};
use std::net::TcpListener;

use weir_bench::{Closing, LoadPlan, RunOutcome, Url};

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
fn a_directory_that_another_user_may_have_made_is_refused() {
    let name = format!("weir-lab-test-scratch-{}", std::process::id());
    let dir = scratch_dir(&name).unwrap();
    let again = scratch_dir(&name).unwrap_err();
    std::fs::remove_dir(&dir).unwrap();
    assert!(again.starts_with("cannot make ") && again.contains(&name), "{again}");
}

/// A server that answers the first requests of a run and no others.
fn partly_answered(answers: u64, requests: u64) -> RunOutcome {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().into();
    std::thread::spawn(move || {
        for (n, stream) in (0..).zip(listener.incoming()) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            if n < answers {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            }
        }
    });
    let mut plan = LoadPlan::get(&[Url::parse("http://a/").unwrap()], Some(&to)).unwrap();
    (plan.requests, plan.closing) = (Some(requests), Closing::Always);
    weir_bench::run(&plan, &mut ()).unwrap()
}

#[test]
fn requests_without_an_answer_are_later_than_all_others() {
    let whole = partly_answered(200, 200);
    assert_eq!(p99(&whole), whole.tally.percentile(99.0));
    let one_lost = partly_answered(199, 200);
    assert_eq!(p99(&one_lost), one_lost.tally.percentile(99.0 * 200.0 / 199.0));
    for answers in [190, 0] {
        assert_eq!(p99(&partly_answered(answers, 200)), f64::INFINITY);
    }
}

#[test]
fn a_directory_named_weir_makes_no_nginx_a_weir() {
    let weir = "weir version: weir/0.1.0\nnginx version: nginx/1.31.5 (weir 0.1.0)\n";
    assert_eq!(Family::of(weir), Some(Family::Weir));
    let nginx = "nginx version: nginx/1.31.5\nconfigure arguments: --prefix=/src/weir/peer\n";
    assert_eq!(Family::of(nginx), Some(Family::Nginx));
    assert_eq!(Family::of("HAProxy version 2.6.12 2023/12/16"), Some(Family::Haproxy));
    assert_eq!(Family::of("Apache/2.4.67"), None);
}

#[test]
fn names_of_experiments_differ() {
    for (n, experiment) in ALL.iter().enumerate() {
        assert!(ALL[..n].iter().all(|other| other.name != experiment.name), "{}", experiment.name);
        assert!(experiment.question.ends_with(['?', '.']), "{}", experiment.name);
    }
}

#[test]
fn the_page_has_all_findings() {
    let dir = std::env::temp_dir().join(format!("weir-lab-test-{}", std::process::id()));
    let mut finding = LabFinding::default();
    let mut table = FindingTable::new(&["", "value"]);
    table.row(&["a < b".to_owned(), "7".to_owned()]);
    finding.table("numbers", &table);
    let mut chart = Chart::new("Who waits", "ms, less is better", Scale::Log, &["p50", "p99"]);
    chart.row("fair", [1.0, 2.0, 3.0]);
    chart.row("other", [10.0, f64::NAN]);
    finding.chart(chart.caption("Less is better."));
    let p99 = |fair, other| {
        Comparison::new("p99 < max", "ms", Better::Less, ("fair", fair)).beside(("other", other))
    };
    finding.verdict(p99(2.0, 1.0), "Least: 1 < 2.");
    finding.beside_compared("p99", "3 times", p99(2.0, 1.0));
    let mut slower = finding.clone();
    slower.verdict(p99(4.0, 1.0), "Least: 1 < 2.");
    let finding = LabFinding::of_rounds(vec![slower.clone(), finding.clone(), slower]).unwrap();
    let experiment = ALL.first().expect("there are some");
    let machine = MachineFacts::look(&[], true);
    let noise = Noise { share: 0.64, longest: 12.0, load: 3.0 };
    report::write(&dir, experiment, &finding, &machine, noise).unwrap();
    let text = std::fs::read_to_string(dir.join(format!("{}.txt", experiment.name))).unwrap();
    let (file, count) = report::write_page(&dir).unwrap();
    let page = std::fs::read_to_string(file).unwrap();
    std::fs::write(dir.join(format!("{}.json", experiment.name)), "{}").unwrap();
    let other = report::write_page(&dir).unwrap_err().to_string();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(count, 1);
    assert!(page.contains("a &lt; b"));
    assert!(page.contains("<figcaption>Less is better.</figcaption></figure>"));
    assert_eq!(page.matches(experiment.question).count(), 1);
    // The answer has the values of all rounds: in the summary, in the line of its experiment, and
    // in its details.
    let answer = "4 times as much as with other, 4 ms (2 to 4) against 1 ms";
    assert_eq!(page.matches(answer).count(), 3, "{page}");
    assert!(page.contains("<b class=\"badge behind\">behind</b> p99 &lt; max with fair: 4 times"));
    assert!(page.contains("Least: 1 &lt; 2.") && page.contains("(3 rounds, with their ranges)"));
    // The machine and its noise are at the top, once.
    let head = page.find("64.0 % of the time").unwrap();
    assert!(head < page.find("<details").unwrap() && page.matches(" CPUs (").count() == 1);
    // No server is listed that could share the machine.
    assert!(!page.contains("Servers and client share") && !text.contains("; ."), "{text}");
    assert!(text.lines().take(6).any(|line| line.contains("64.0 %")), "{text}");
    assert!(text.contains("\np99: published 3 times; here p99 < max with fair: 2 times as much"));
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    // weir's row is marked, a missing value is a dash, and the third dot has no number.
    assert_eq!(page.matches("<tr class=\"own\"><th scope=\"row\">fair</th>").count(), 1);
    assert!(page.contains("<td data-of=\"p99\">-</td>") && page.contains("dot other"));
    assert!(page.contains("Short runs (--brief)") && !page.contains("src="));
    assert!(other.contains("is of another weir"), "{other}");
}

/// A text in an experiment must not state a direction, since the measurement decides it.
#[test]
fn experiments_state_no_direction() {
    let published = [
        "68 -> 7.5: 9.1 times less",
        "152 -> 50.6: 3 times less",
        "33 % less at the peak",
        "9.4 % more",
        "two to three times the requests",
    ];
    let directions = [
        "times less",
        "times lower",
        "times more",
        "times better",
        "times faster",
        "times the requests",
        "% less",
        "% more",
        "% lower",
        "% better",
    ];
    let mut files = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/experiments")];
    let mut seen = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        seen += 1;
        let mut text = std::fs::read_to_string(&path).unwrap();
        published.iter().for_each(|known| text = text.replace(known, ""));
        for words in directions {
            let line = text
                .lines()
                .find(|line| !line.trim_start().starts_with("//") && line.contains(words));
            assert_eq!(line, None, "{}: {words:?}", path.display());
        }
    }
    assert!(seen > 20, "{seen}");
}
