//! One queue or many, under overload.

use std::time::Duration;

use weir_bench::Closing;

use super::Experiment;
use crate::finding::{Finding, Table};
use crate::lab::{Lab, Load};
use crate::program::{Program, Setup, Subject, Work};
use crate::running::Running;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "queues",
    title: "One queue or many",
    question: "Twelve workers, each held up by every request it serves, and 200 clients at a time: \
               how long do clients wait when the workers share one queue, and when each has its own?",
    published: "One queue: avg 30.39, median 30.28, max 72.65, deviation 1.58 ms. A queue per worker \
                (SO_REUSEPORT): avg 31.37, median 24.67, max 144.55, deviation 25.27 ms.",
    run,
};

fn run(lab: &Lab) -> Result<Finding, String> {
    let policies = &[
        ("one queue, re-added every 16 accepts", "rotate"),
        ("a queue each (reuseport)", "reuseport"),
        ("fair", "fair"),
    ];
    let nginx: &[fn(&Program) -> Subject] = &[Program::one_queue, Program::reuseport];
    let setup = Setup {
        processes: 12,
        work: Some(Work::Sleep(Duration::from_millis(2))),
        ..Setup::default()
    };
    let load = Load {
        requests: Some(lab.size(100_000, 2_000)),
        ..Load::closed(200, Closing::Always, lab.size(Duration::from_secs(30), SHORT))
    };
    let mut finding = Finding::default();
    let mut table = Table::new(&[
        "",
        "min ms",
        "avg",
        "median",
        "p99",
        "max",
        "deviation",
        "requests",
        "errors",
    ]);
    let mut outcomes = Vec::new();
    for subject in lab.subjects(policies, nginx, true) {
        lab.step(&subject.label);
        let server = Running::start(&subject, &setup)?;
        let outcome = lab.load(&server, &load, &mut |_| {})?;
        let (tally, all) = (&outcome.tally, &outcome.tally.log2);
        let ms = [all.min(), all.mean(), tally.percentile(50.0), tally.percentile(99.0)];
        let ms = ms.into_iter().chain([all.max(), all.deviation()]);
        let mut cells = vec![subject.label.clone()];
        cells.extend(ms.map(|ms| format!("{ms:.2}")));
        cells.extend([tally.requests().to_string(), tally.errors().to_string()]);
        table.row(&cells);
        outcomes.push((subject.label, outcome));
    }
    finding.table("latency", &table);
    for (label, outcome) in &outcomes {
        let title = format!("Duration in ms ({label})");
        finding.texts.push(outcome.tally.log2.render(&title, outcome.tally.percentile(50.0)));
    }
    let runs: Vec<_> = outcomes.iter().map(|(label, run)| (label.as_str(), run)).collect();
    finding.picture("latency", weir_bench::svg(&runs));
    finding.remark(
        "The handler holds its worker for 2 ms without using the CPU, so that twelve workers are twelve \
         servers however few CPUs there are; 200 clients over 12 such workers must wait 33 ms each on \
         the average. What differs is how evenly they wait. With a queue each, a client \
         is bound to one worker's queue however long that is.",
    );
    Ok(finding)
}

const SHORT: Duration = Duration::from_secs(3);
