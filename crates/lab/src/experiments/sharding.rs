//! Four workers under a full load.

use std::time::Duration;

use weir_bench::{Closing, RunOutcome};

use crate::chart::{Chart, Scale};
use crate::comparison::Better;
use crate::experiment::Experiment;
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, Traffic, compared, nearest};
use crate::program::{Program, ServerSetup, Subject};
use crate::running::RunningServer;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "sharding",
    title: "Socket sharding",
    question: "Four workers, short answers, as much load as this machine makes: requests per second, latency and \
               CPU of each way to accept.",
    published: "nginx's own figures for socket sharding, four workers on a machine of 36 cores under wrk: with reuseport \
                two to three times the requests per second, and from another host a latency of 12.35 ms with a deviation of 3.15, \
                against 15.65 and 26.59 by default (accept_mutex on) and 15.59 and 26.48 with accept_mutex off.",
    run,
};

const CONNECTIONS: usize = 64;

/// The results of one way to accept.
struct ShardingRun {
    rate: f64,
    per_cpu: f64,
    cpu: f64,
    outcome: RunOutcome,
}

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let policies = &[
        ("re-add every 16 accepts", "rotate"),
        ("EPOLLEXCLUSIVE", "exclusive"),
        ("mutex", "mutex"),
        ("reuseport", "reuseport"),
        ("fair", "fair"),
    ];
    let nginx: &[fn(&Program) -> Subject] =
        &[Program::one_queue, Program::accept_mutex, Program::reuseport];
    let subjects = lab.subjects(policies, nginx, false);
    let kept = measure(lab, &subjects, Closing::Never)?;
    let closing = measure(lab, &subjects, Closing::Always)?;
    let mut finding = LabFinding::default();
    compare(&mut finding, &kept);
    finding.remark("Kept connections, as wrk has them:");
    finding.table("kept", &table(&kept));
    finding.remark("A connection for each request:");
    finding.table("closing", &table(&closing));
    let heads = ["kept connections", "one for each request"];
    let title = "Requests per second of server CPU";
    let mut chart = Chart::new(title, "1/s, more is better", Scale::Linear, &heads);
    for ((label, kept), (_, closing)) in kept.iter().zip(&closing) {
        chart.row(label, [kept.per_cpu, closing.per_cpu]);
    }
    finding.chart(chart.caption("What a second of the server's CPU time is good for."));
    let cost = ("Requests per second of CPU, a connection for each,", "", Better::More);
    let others: &[&[&str]] =
        &[&[", reuseport", "reuseport"], &[", one queue", "re-add every 16 accepts"]];
    if let Some(answer) = compared(cost, &closing, "fair", others, |way| way.per_cpu) {
        finding.verdict(answer, "");
    }
    Ok(finding)
}

fn measure(
    lab: &Lab,
    subjects: &[Subject],
    closing: Closing,
) -> Result<Vec<(String, ShardingRun)>, String> {
    let time = lab.size(Duration::from_secs(3), Duration::from_millis(300));
    let load = Traffic::closed(CONNECTIONS, closing, time);
    let mut all = Vec::new();
    for subject in subjects {
        lab.step(&subject.label);
        let server = RunningServer::start(subject, &ServerSetup::default())?;
        let before: Duration = server.cpu().into_iter().sum();
        let outcome = lab.load(&server, &load, &mut |_| {})?;
        let cpu = server.cpu().into_iter().sum::<Duration>().saturating_sub(before).as_secs_f64();
        let per_cpu = outcome.tally.requests() as f64 / cpu.max(1e-9);
        let rate = outcome.requests_per_second();
        all.push((subject.label.clone(), ShardingRun { rate, per_cpu, cpu, outcome }));
    }
    Ok(all)
}

fn table(all: &[(String, ShardingRun)]) -> FindingTable {
    let heads = ["", "requests/s", "per CPU s", "mean ms", "deviation", "p99", "server CPU s"];
    let mut table = FindingTable::new(&heads);
    for (label, way) in all {
        let times = &way.outcome.tally.log2;
        table.row(&[
            label.clone(),
            format!("{:.0}", way.rate),
            format!("{:.0}", way.per_cpu),
            format!("{:.2}", times.mean()),
            format!("{:.2}", times.deviation()),
            format!("{:.2}", way.outcome.tally.percentile(99.0)),
            format!("{:.2}", way.cpu),
        ]);
    }
    table
}

fn compare(finding: &mut LabFinding, kept: &[(String, ShardingRun)]) {
    for (what, published, ends) in [
        (
            "accept_mutex on (once the default)",
            "15.65 ms, deviation 26.59, CPU load 0.3",
            [", accept_mutex on", "mutex"],
        ),
        (
            "accept_mutex off",
            "15.59 ms, deviation 26.48, CPU load 10",
            [", one queue", "re-add every 16 accepts"],
        ),
        ("reuseport", "12.35 ms, deviation 3.15, CPU load 0.3", [", reuseport", "reuseport"]),
        ("fair", "-", ["fair", "fair"]),
    ] {
        let Some((label, way)) = nearest(kept, &ends) else { continue };
        let times = &way.outcome.tally.log2;
        let (mean, deviation) = (times.mean(), times.deviation());
        finding.beside(
            what,
            published,
            format!(
                "{mean:.2} ms, deviation {deviation:.2}, CPU load {:.1}, {:.0}/s ({label})",
                way.cpu / way.outcome.elapsed.as_secs_f64().max(1e-9),
                way.rate
            ),
        );
    }
    let rate = ("Requests per second", "", Better::More);
    let one: &[&[&str]] = &[&[", one queue", "re-add every 16 accepts"]];
    if let Some((many, _)) = nearest(kept, &[", reuseport", "reuseport"])
        && let Some(here) = compared(rate, kept, many, one, |way| way.rate)
    {
        finding.beside_compared("reuseport against one queue", "2 to 3 times", here);
    }
    finding.because(
        "The published gain came from 36 cores that contended for the lock of one queue, and from an nginx that woke all \
         workers for each connection. EPOLLEXCLUSIVE has ended the second, and the first needs many cores. Besides, a worker with more connections than others \
         answers each of them more slowly, which adds to the deviation. The CPU load here is CPU seconds of the server per second, of two at most on two CPUs that \
         it shares with the client; the published one is the load average of a machine that was far from busy, but for the herd of accept_mutex off.",
    );
}
