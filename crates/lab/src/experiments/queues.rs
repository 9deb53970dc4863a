//! Overload: one queue for all workers, or a queue per worker.

use std::time::Duration;

use weir_bench::{Closing, Figures, Log2Histogram, RunOutcome};

use crate::chart::Chart;
use crate::comparison::Better;
use crate::experiment::Experiment;
use crate::finding::{DoublingHistogram, FindingTable, LabFinding};
use crate::lab::{Lab, Traffic, compared, nearest};
use crate::program::{HandlerWork, Program, ServerSetup, Subject};
use crate::running::RunningServer;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "queues",
    title: "One queue or many",
    question: "Twelve workers, each held up by every request it serves, and 200 clients at a time: \
               how long do clients wait when the workers share one queue, and when each has its own?",
    published: "100,000 requests that need much CPU, no keep-alive, 200 at a time, to an nginx with twelve pinned workers. One \
                queue: avg 30.39, median 30.28, max 72.65, deviation 1.58 ms. A queue per worker \
                (SO_REUSEPORT): avg 31.37, median 24.67, max 144.55, deviation 25.27 ms.",
    run,
};

/// The published histogram of one queue. Its bounds double.
const ONE_QUEUE: Published = Published {
    title: "Duration in ms (the article, one queue)",
    rows: &[0, 0, 1, 16, 67, 91_760, 8155, 1],
    figures: Figures { min: 3.61, mean: 30.39, max: 72.65, deviation: 1.58 },
    median: 30.28,
};
/// The published histogram of a queue per worker.
const MANY_QUEUES: Published = Published {
    title: "Duration in ms (the article, a queue each)",
    rows: &[0, 1023, 5321, 9986, 18_443, 25_852, 27_949, 11_368, 58],
    figures: Figures { min: 1.49, mean: 31.37, max: 144.55, deviation: 25.27 },
    median: 24.67,
};

struct Published {
    title: &'static str,
    rows: &'static [u64],
    figures: Figures,
    median: f64,
}

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let policies = &[
        ("one queue, re-added every 16 accepts", "rotate"),
        ("a queue each (reuseport)", "reuseport"),
        ("fair", "fair"),
    ];
    let nginx: &[fn(&Program) -> Subject] = &[Program::one_queue, Program::reuseport];
    let setup = ServerSetup {
        processes: 12,
        work: Some(HandlerWork::Sleep(Duration::from_millis(2))),
        ..ServerSetup::default()
    };
    let load = Traffic {
        requests: Some(lab.size(100_000, 2_000)),
        ..Traffic::closed(200, Closing::Always, lab.size(Duration::from_secs(30), SHORT))
    };
    let mut table = FindingTable::new(&[
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
        let server = RunningServer::start(&subject, &setup)?;
        let outcome = lab.load(&server, &load, &mut |_| {})?;
        table.row(&row(&subject.label, &outcome));
        outcomes.push((subject.label, outcome));
    }
    let mut finding = LabFinding::default();
    compare(&mut finding, &outcomes);
    finding.table("latency", &table);
    let runs = outcomes.iter().map(|(label, run)| (label.as_str(), run));
    finding.chart(Chart::percentiles("How long clients wait", runs).caption(
        "Dots that stand together are a queue in which all wait alike. Where they lie far apart, some clients go first and others \
         pay for it.",
    ));
    let deviation = ("Deviation of what clients wait", "ms", Better::Less);
    let of = |run: &RunOutcome| run.tally.log2.deviation();
    if let Some(answer) = compared(deviation, &outcomes, "fair", &[&MANY, &ONE], of) {
        finding.verdict(answer, "The smaller it is, the more alike all clients wait.");
    }
    histograms(&mut finding, &outcomes);
    finding.remark(
        "What the models let one expect: with one queue, an idle worker takes the next client, so that all clients wait alike. With a \
         queue each, a client is bound to the queue of one worker, however long it is: clients of a short queue are early, and those of \
         a long one make the p99.",
    );
    Ok(finding)
}

fn row(label: &str, outcome: &RunOutcome) -> Vec<String> {
    let (tally, all) = (&outcome.tally, &outcome.tally.log2);
    let ms = [all.min(), all.mean(), tally.percentile(50.0), tally.percentile(99.0)];
    let ms = ms.into_iter().chain([all.max(), all.deviation()]);
    let mut cells = vec![label.to_owned()];
    cells.extend(ms.map(|ms| format!("{ms:.2}")));
    cells.extend([tally.requests().to_string(), tally.errors().to_string()]);
    cells
}

const ONE: [&str; 2] = [", one queue", "one queue, re-added every 16 accepts"];
const MANY: [&str; 2] = [", reuseport", "a queue each (reuseport)"];

fn compare(finding: &mut LabFinding, outcomes: &[(String, RunOutcome)]) {
    for (what, published, ends) in
        [("one queue", &ONE_QUEUE, ONE), ("a queue each", &MANY_QUEUES, MANY)]
    {
        let Some((label, run)) = nearest(outcomes, &ends) else { continue };
        let (f, all) = (&published.figures, &run.tally.log2);
        let line = |mean, median, max, deviation| {
            format!("avg {mean:.2}, median {median:.2}, max {max:.2}, deviation {deviation:.2} ms")
        };
        let here = line(all.mean(), run.tally.percentile(50.0), all.max(), all.deviation());
        let there = line(f.mean, published.median, f.max, f.deviation);
        finding.beside(what, &there, format!("{here} ({label})"));
    }
    let deviation = ("Deviation", "ms", Better::Less);
    let of = |run: &RunOutcome| run.tally.log2.deviation();
    if let Some((many, _)) = nearest(outcomes, &MANY)
        && let Some(here) = compared(deviation, outcomes, many, &[&ONE], of)
    {
        finding.beside_compared("deviation, a queue each against one", "16 times", here);
    }
    if let Some((_, run)) = nearest(outcomes, &["fair"]) {
        let (all, p50) = (&run.tally.log2, run.tally.percentile(50.0));
        let here = format!(
            "avg {:.2}, median {p50:.2}, max {:.2}, deviation {:.2} ms",
            all.mean(),
            all.max(),
            all.deviation()
        );
        finding.beside("fair", "-", here);
    }
    finding.because(
        "The article's handler computed, on a CPU for each worker. Here it holds its worker for 2 ms without using the CPU \
         (where the server's build allows; else it computes as well), so that twelve workers are twelve servers however few CPUs \
         there are: 200 clients over 12 such workers wait 33 ms on the average at best; the article's waited 30. What the machine does \
         besides adds to the deviation of each way, the more so the fewer CPUs the workers and the client share.",
    );
}

/// Pairs of histograms: each published one, and its counterpart here.
fn histograms(finding: &mut LabFinding, outcomes: &[(String, RunOutcome)]) {
    let here = |label: &str, run: &RunOutcome| {
        let (title, all) = (format!("Duration in ms ({label})"), &run.tally.log2);
        DoublingHistogram::new(&title, all, run.tally.percentile(50.0))
    };
    for (published, ends) in [(&ONE_QUEUE, ONE), (&MANY_QUEUES, MANY)] {
        let there = Log2Histogram::of(published.rows, &published.figures);
        let mut pair = vec![DoublingHistogram::new(published.title, &there, published.median)];
        pair.extend(nearest(outcomes, &ends).map(|(label, run)| here(label, run)));
        finding.histograms(pair);
    }
    let shown: Vec<&str> =
        [ONE, MANY].iter().filter_map(|ends| Some(nearest(outcomes, ends)?.0)).collect();
    let rest = outcomes.iter().filter(|(label, _)| !shown.contains(&label.as_str()));
    finding.histograms(rest.map(|(label, run)| here(label, run)).collect());
}

const SHORT: Duration = Duration::from_secs(3);
