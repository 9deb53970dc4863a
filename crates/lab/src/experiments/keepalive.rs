//! Connections that are kept alive: how they spread over workers.

use std::time::Duration;

use weir_bench::{Closing, RunOutcome};

use crate::chart::Chart;
use crate::comparison::Better;
use crate::experiment::{Experiment, MAIN};
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, Traffic, compared, nearest, padded, slashed};
use crate::program::{HandlerWork, Program, ServerSetup, Subject};
use crate::running::RunningServer;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "keepalive",
    title: "Connections that stay",
    question: "Connections that are kept stay with the worker that accepted them. Where do they land, and \
               what latency do they see?",
    published: "Uneven accepting becomes lasting unevenness when connections live long; with nginx and one \
                queue, four kept connections were seen on one of twelve workers: 466 requests a second and a median \
                of 8.6 ms, where four workers would have given 1,800 and 2.2. In a large cache with 15 workers the \
                busiest took 11 % of the requests, twice its part; SO_REUSEPORT improved the peak p99 by a third.",
    run,
};

const WORKERS: usize = 12;
/// The interval between connections: long enough for the worker that accepted to sleep again.
const CONNECT_INTERVAL: Duration = Duration::from_millis(15);

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let nginx: &[fn(&Program) -> Subject] = &[Program::one_queue, Program::reuseport];
    let setup = ServerSetup {
        processes: WORKERS,
        work: Some(HandlerWork::Sleep(Duration::from_millis(2))),
        log: true,
        ..ServerSetup::default()
    };
    let time = lab.size(Duration::from_secs(3), Duration::from_millis(400));
    let mut finding = LabFinding::default();
    let heads = ["", "connections", "by worker", "requests/s", "p50 ms", "p99 ms"];
    let mut table = FindingTable::new(&heads);
    let (mut outcomes, mut four, mut crowd) = (Vec::new(), Vec::new(), Vec::new());
    for subject in lab.subjects(MAIN, nginx, true) {
        for connections in [4, 36] {
            lab.step(&format!("{}, {connections} connections", subject.label));
            let server = RunningServer::start(&subject, &setup)?;
            server.warm_up(WORKERS + 2)?;
            let load = Traffic {
                connect_first: Some(CONNECT_INTERVAL),
                ..Traffic::closed(connections, Closing::Never, time)
            };
            let outcome = lab.load(&server, &load, &mut |_| {})?;
            let landed = padded(server.served()?.connections.into_values(), WORKERS);
            table.row(&[
                subject.label.clone(),
                connections.to_string(),
                slashed(&landed),
                format!("{:.0}", outcome.requests_per_second()),
                format!("{:.2}", outcome.tally.percentile(50.0)),
                format!("{:.2}", outcome.tally.percentile(99.0)),
            ]);
            match connections {
                4 => four.push((subject.label.clone(), (landed, outcome))),
                _ => {
                    crowd.push((subject.label.clone(), (landed, outcome.tally.percentile(99.0))));
                    outcomes.push((subject.label.clone(), outcome));
                }
            }
        }
    }
    compare(&mut finding, &four);
    compare_crowd(&mut finding, &crowd);
    finding.table("latency", &table);
    let runs = outcomes.iter().map(|(label, run)| (label.as_str(), run));
    finding.chart(
        Chart::percentiles("Thirty-six connections that stay", runs).caption(
            "The further to the left, the fewer of the others share a connection's worker.",
        ),
    );
    let p99 = ("p99 of 36 kept connections", "ms", Better::Less);
    let others: &[&[&str]] =
        &[&[", one queue", "re-add every 16 accepts"], &[", reuseport", "reuseport"]];
    if let Some(answer) = compared(p99, &crowd, "fair", others, |(_, p99)| *p99) {
        finding.verdict(answer, "The least that can be is 6 ms.");
    }
    finding.remark(
        "Each server has served a few requests before, since the first connection of a worker is special: nginx re-adds its \
         listening socket after that one, and then after every 16th. The connections come one after another, 15 ms apart, before their first requests. Each request \
         holds its worker for 2 ms. Four connections on four workers see 2 ms; on one worker \
         they see 8. The least for 36 connections is 6 ms: three on each worker.",
    );
    Ok(finding)
}

/// `four`: the workers that got four connections, and the results of the run.
fn compare(finding: &mut LabFinding, four: &[(String, (Vec<u64>, RunOutcome))]) {
    let one = nearest(four, &[", one queue", "re-add every 16 accepts"]);
    if let Some((label, (landed, seen))) = one {
        let (rate, p50) = (seen.requests_per_second(), seen.tally.percentile(50.0));
        finding.beside(
            "4 kept connections, 12 workers: which have them",
            "4 / 0 / 0 ...",
            format!("{} ({label})", slashed(landed)),
        );
        finding.beside(
            "requests per second, median",
            "466/s, 8.6 ms",
            format!("{rate:.0}/s, {p50:.1} ms"),
        );
        finding.because(match landed.first() {
            Some(4) => "The same: the worker that sleeps first in the kernel's list takes one connection after another, and each \
                        request then waits for those of the other three.",
            _ => "Not all on one worker here: between two connections the first worker in the kernel's list was not \
                  asleep again, as happens on a busy machine.",
        });
    }
    if let Some((label, (landed, seen))) = nearest(four, &["fair"]) {
        let (rate, p50) = (seen.requests_per_second(), seen.tally.percentile(50.0));
        let here = format!("{}: {rate:.0}/s, {p50:.1} ms ({label})", slashed(landed));
        finding.beside("the same, spread over four workers", "1,800/s, 2.2 ms", here);
    }
}

/// `crowd`: the workers that got 36 connections, and the p99.
fn compare_crowd(finding: &mut LabFinding, crowd: &[(String, (Vec<u64>, f64))]) {
    let one = nearest(crowd, &[", one queue", "re-add every 16 accepts"]);
    let Some((label, (landed, _))) = one else { return };
    let times = |landed: &[u64]| {
        let all = landed.iter().sum::<u64>().max(1) as f64;
        landed.first().map_or(0.0, |most| *most as f64 * WORKERS as f64 / all)
    };
    finding.beside(
        "one queue, many connections that stay: the busiest worker has",
        "11 % of the requests with 15 workers, \"twice as many as expected\"",
        format!("{:.1} times its part of 36 ({label})", times(landed)),
    );
    let p99 = ("p99", "ms", Better::Less);
    let to_one = |own: &str| compared(p99, crowd, own, &[&[label]], |(_, p99)| *p99);
    for (ends, what, published) in [
        (
            &[", reuseport", "reuseport"][..],
            "what SO_REUSEPORT does to the p99",
            "33 % less at the peak",
        ),
        (&["fair"], "what fair does to it", "-"),
    ] {
        let Some((own, (spread, _))) = nearest(crowd, ends) else { continue };
        if let Some(here) = to_one(own) {
            finding.beside_compared(what, published, here);
        }
        let here = format!("{:.1} times its part ({own})", times(spread));
        finding.beside("its busiest worker has", "-", here);
    }
    finding.because(
        "The cache of the second article had thousands of connections that came while its workers were busy, so that several took some. Here 36 \
         come to idle workers, the worst case for one queue, and each of their requests holds its worker up, so that more is to be gained. A hash \
         of 36 addresses is a draw with few dice: now and then one worker gets as many as with one queue.",
    );
}
