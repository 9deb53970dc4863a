//! The cost of leaving the wait list and joining it again.

use std::time::Duration;

use weir_bench::Closing;

use crate::chart::{Chart, Scale};
use crate::comparison::Better;
use crate::experiment::Experiment;
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, Traffic, compared, nearest, padded, slashed, variation};
use crate::program::{Program, ServerSetup, Subject};
use crate::running::RunningServer;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "reorder",
    title: "Leaving the queue of waiters and coming back",
    question: "A worker that removes and adds its listening socket after every N-th accept goes to the \
               end of the kernel's list. What does that cost, and what does it gain, for each N?",
    published: "nginx on two CPUs under wrk with 500 kept connections, mean of nine runs: 17521 requests per second and 38.65 ms \
                with its listening socket re-added every 16 accepts, 16009 and 45.67 ms without.",
    run,
};

const WORKERS: usize = 4;

/// The results for one interval of rejoining.
struct ReorderRun {
    rate: f64,
    mean: f64,
    per_cpu: f64,
    p99: f64,
    /// Requests by worker, in descending order.
    requests: Vec<u64>,
}

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let policies = &[
        ("every accept", "rotate=1"),
        ("every 4", "rotate=4"),
        ("every 16", "rotate=16"),
        ("every 64", "rotate=64"),
        ("every 256", "rotate=256"),
        ("never", "exclusive"),
        ("fair", "fair"),
    ];
    let nginx: &[fn(&Program) -> Subject] = &[Program::one_queue];
    let subjects = lab.subjects(policies, nginx, false);
    let time = lab.size(Duration::from_secs(2), Duration::from_millis(300));
    let connections = lab.size(500, 50);
    let kept = measure(lab, &subjects, &Traffic::closed(connections, Closing::Never, time))?;
    let closing = measure(lab, &subjects, &Traffic::closed(16, Closing::Always, time))?;
    let mut finding = LabFinding::default();
    compare(&mut finding, &kept);
    finding.remark(&format!("{connections} kept connections, as in the article:"));
    finding.table("kept", &table(&kept));
    finding.remark("16 clients, a connection for each request:");
    finding.table("closing", &table(&closing));
    let heads = ["kept connections", "one for each request"];
    let title = "Requests per second of server CPU";
    let mut chart = Chart::new(title, "1/s, more is better", Scale::Linear, &heads);
    for ((label, kept), (_, closing)) in kept.iter().zip(&closing) {
        chart.row(label, [kept.per_cpu, closing.per_cpu]);
    }
    finding.chart(
        chart.caption("What leaving the list and coming back costs, after every N-th accept."),
    );
    let cost = ("Requests per second of CPU, a connection for each,", "", Better::More);
    let others: &[&[&str]] = &[&["never"], &["every 16"], &["fair"]];
    if let Some(answer) = compared(cost, &closing, "every accept", others, |way| way.per_cpu) {
        finding.verdict(answer, "A re-adding takes two system calls, a connection about eight.");
    }
    finding.remark(
        "Without re-adding, the kernel asks the first worker of the list first for every connection. So re-adding is meant to spread \
         connections evenly: the column CV says how even the requests came out.",
    );
    Ok(finding)
}

fn measure(
    lab: &Lab,
    subjects: &[Subject],
    load: &Traffic,
) -> Result<Vec<(String, ReorderRun)>, String> {
    let setup = ServerSetup { processes: WORKERS, log: true, ..ServerSetup::default() };
    let mut all = Vec::new();
    for subject in subjects {
        lab.step(&subject.label);
        let server = RunningServer::start(subject, &setup)?;
        let before: Duration = server.cpu().into_iter().sum();
        let outcome = lab.load(&server, load, &mut |_| {})?;
        let cpu = server.cpu().into_iter().sum::<Duration>().saturating_sub(before);
        let measured = ReorderRun {
            rate: outcome.requests_per_second(),
            mean: outcome.tally.log2.mean(),
            per_cpu: outcome.tally.requests() as f64 / cpu.as_secs_f64().max(1e-9),
            p99: outcome.tally.percentile(99.0),
            requests: padded(server.served()?.requests.into_values(), WORKERS),
        };
        all.push((subject.label.clone(), measured));
    }
    Ok(all)
}

fn table(all: &[(String, ReorderRun)]) -> FindingTable {
    let heads =
        ["re-add", "requests/s", "per CPU s", "mean ms", "p99 ms", "requests by worker", "CV"];
    let mut table = FindingTable::new(&heads);
    for (label, way) in all {
        let shares: Vec<f64> = way.requests.iter().map(|&n| n as f64).collect();
        table.row(&[
            label.clone(),
            format!("{:.0}", way.rate),
            format!("{:.0}", way.per_cpu),
            format!("{:.2}", way.mean),
            format!("{:.2}", way.p99),
            slashed(&way.requests),
            format!("{:.3}", variation(&shares)),
        ]);
    }
    table
}

fn compare(finding: &mut LabFinding, kept: &[(String, ReorderRun)]) {
    let find = |label| nearest(kept, &[label]).map(|(_, way)| way);
    let line = |way: &ReorderRun| format!("{:.0}/s, {:.2} ms", way.rate, way.mean);
    let (Some(with), Some(without)) = (find("every 16"), find("never")) else { return };
    finding.beside("re-added every 16 accepts", "17521/s, 38.65 ms", line(with));
    finding.beside("never", "16009/s, 45.67 ms", line(without));
    let rate = ("Requests per second", "", Better::More);
    if let Some(here) = compared(rate, kept, "every 16", &[&["never"]], |way| way.rate) {
        finding.beside_compared("re-adding against none", "9.4 % more", here);
    }
    if let Some(way) = nearest(kept, &[", one queue"]).map(|(_, way)| way) {
        finding.beside("nginx as it is (every 16)", "17521/s, 38.65 ms", line(way));
    }
    finding.because(
        "Without re-adding, the connections that came while the first worker was free are all its own. With a CPU for each worker the \
         others' CPUs then stay idle. With fewer CPUs than workers the scheduler gives a loaded worker what the others do not use, so \
         that less is to be gained.",
    );
}
