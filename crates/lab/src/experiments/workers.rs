//! How a light load is shared among workers.

use std::time::Duration;

use weir_bench::{Closing, Pace};

use crate::chart::{Chart, Scale};
use crate::comparison::Better;
use crate::experiment::{Experiment, POLICIES};
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, Traffic, compared, nearest, padded, variation};
use crate::program::{HandlerWork, Program, ServerSetup, Subject};
use crate::running::RunningServer;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "workers",
    title: "Who works",
    question: "Twelve workers and less work than they could do: what share of the requests and of the \
               CPU time falls to each?",
    published: "With one queue and EPOLLEXCLUSIVE the busiest worker used 30 % of a CPU and the least \
                busy one nothing; with SO_REUSEPORT 13.2 % and 9.3 %.",
    run,
};

const WORKERS: usize = 12;
/// Requests per second. A millisecond each makes a fifth of one CPU.
const RATE: f64 = 200.0;

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let nginx: &[fn(&Program) -> Subject] =
        &[Program::one_queue, Program::accept_mutex, Program::reuseport];
    let time = lab.size(Duration::from_secs(4), Duration::from_millis(500));
    let load =
        Traffic { pace: Pace::Open { rate: RATE }, ..Traffic::closed(50, Closing::Always, time) };
    let setup = ServerSetup {
        processes: WORKERS,
        work: Some(HandlerWork::Spin(Duration::from_millis(1))),
        log: true,
        ..ServerSetup::default()
    };
    let mut finding = LabFinding::default();
    let heads = ["", "CPU % most", "least", "requests most", "least", "CV", "p99 ms"];
    let mut table = FindingTable::new(&heads);
    let mut picture: Vec<(String, Vec<f64>)> = Vec::new();
    let (mut spread, mut slowest) = (Vec::new(), (String::new(), 0.0));
    for subject in lab.subjects(POLICIES, nginx, true) {
        lab.step(&subject.label);
        let server = RunningServer::start(&subject, &setup)?;
        let before = server.cpu();
        let outcome = lab.load(&server, &load, &mut |_| {})?;
        let spent = server.cpu().into_iter().zip(before).map(|(a, b)| a.saturating_sub(b));
        let percent = |t: Duration| 100.0 * t.as_secs_f64() / outcome.elapsed.as_secs_f64();
        let mut cpu: Vec<f64> = spent.map(percent).collect();
        cpu.sort_by(|a, b| b.total_cmp(a));
        let requests = padded(server.served()?.requests.into_values(), WORKERS);
        let shares: Vec<f64> = requests.iter().map(|&n| n as f64).collect();
        let ends = |all: &[f64]| (*all.first().unwrap_or(&0.0), *all.last().unwrap_or(&0.0));
        let ((cpu_most, cpu_least), (most, least)) = (ends(&cpu), ends(&shares));
        table.row(&[
            subject.label.clone(),
            format!("{cpu_most:.1}"),
            format!("{cpu_least:.1}"),
            format!("{most:.0}"),
            format!("{least:.0}"),
            format!("{:.3}", variation(&shares)),
            format!("{:.2}", outcome.tally.percentile(99.0)),
        ]);
        let p99 = outcome.tally.percentile(99.0);
        if p99 > slowest.1 {
            slowest = (subject.label.clone(), p99);
        }
        spread.push((subject.label.clone(), variation(&shares)));
        picture.push((subject.label, cpu));
    }
    compare(&mut finding, &picture);
    finding.table("shares", &table);
    let mut chart =
        Chart::new("CPU of each worker", "% of a CPU", Scale::Linear, &["most", "least"]);
    for (label, cpu) in &picture {
        let ends = [cpu.first(), cpu.last()].map(|end| end.copied().unwrap_or_default());
        let others = cpu.get(1..cpu.len().max(2) - 1).unwrap_or_default();
        chart.row(label, ends.into_iter().chain(others.iter().copied()));
    }
    finding.chart(chart.caption(
        "Each dot is a worker. If all are in one place, the work is spread evenly; one far to the right did most of it.",
    ));
    let cv = ("CV of the requests by worker", "", Better::Less);
    let others: &[&[&str]] = &[&[", one queue", "EPOLLEXCLUSIVE"], &[", reuseport", "reuseport"]];
    if let Some(answer) = compared(cv, &spread, "fair", others, |cv| *cv) {
        finding.verdict(answer, "The CV is 0 if all workers serve as many requests.");
    }
    finding.remark(&format!(
        "{RATE:.0} requests a second, evenly spaced, each of which computes for 1 ms, over connections of \
         their own. The highest p99 is {:.2} ms ({}): what uneven work costs shows when connections \
         stay (see keepalive) or when more comes than one worker can do.",
        slowest.1, slowest.0
    ));
    Ok(finding)
}

/// `cpu` has the CPU time of each subject's workers, in descending order.
fn compare(finding: &mut LabFinding, cpu: &[(String, Vec<f64>)]) {
    let ends = |all: &Vec<f64>| {
        let (most, least) = (all.first().unwrap_or(&0.0), all.last().unwrap_or(&0.0));
        format!("{most:.1} % and {least:.1} %")
    };
    for (what, published, model) in [
        (
            "one queue, EPOLLEXCLUSIVE: busiest and least busy worker's CPU",
            "30 % and 0 %",
            "EPOLLEXCLUSIVE",
        ),
        ("SO_REUSEPORT: the same", "13.2 % and 9.3 %", "reuseport"),
        ("one queue in an nginx of today", "-", ", one queue"),
        ("SO_REUSEPORT in an nginx of today", "-", ", reuseport"),
    ] {
        if let Some((_, all)) = nearest(cpu, &[model]) {
            finding.beside(what, published, ends(all));
        }
    }
    if let Some((_, all)) = nearest(cpu, &["fair"]) {
        finding.beside("fair: the same", "-", ends(all));
    }
    finding.because(format!(
        "The loads differ, so compare the ratios: here {RATE:.0} requests a second compute for 1 ms each, which is \
         {:.1} % of a CPU for each of {WORKERS} workers if it is spread evenly. An nginx from 1.21.6 on gives up its place in the \
         wait queue after every 16th connection, which the article's nginx did not; what it had is the row \
         EPOLLEXCLUSIVE. With SO_REUSEPORT a hash decides: it is even on the average, and the less so the \
         fewer connections there are.",
        RATE / 10.0 / WORKERS as f64
    ));
}
