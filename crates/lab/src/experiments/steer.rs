//! A queue per worker, filled by the kernel's hash or by the load of the loops.

use std::time::Duration;

use weir_bench::{Closing, Pace, RunOutcome};

use crate::chart::{Chart, Scale};
use crate::comparison::Better;
use crate::experiment::Experiment;
use crate::finding::{FindingTable, LabFinding};
use crate::hindered::{Hindered, STOPPED, WORKING};
use crate::lab::{Lab, Traffic, compared, padded, variation};
use crate::program::{Family, HandlerWork, Program, ServerSetup, Subject};
use crate::running::RunningServer;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "steer",
    title: "A queue each, steered",
    question: "With SO_REUSEPORT the kernel fills the workers' queues by a hash, whether their workers come to them or not. \
               What is won when a program chooses by what the workers carry, and what does it cost?",
    published: "A hash gives each of four workers a quarter of the connections, and keeps giving it to one that has \
                stopped: a quarter is lost until it goes on. One that is slow holds up its quarter of the clients.",
    run,
};

const POLICIES: &[(&str, &str)] =
    &[("reuseport", "reuseport"), ("reuseport by load", "reuseport_load"), ("fair", "fair")];
/// Workers in the runs with a stopped or slow worker, and with cheap requests.
const FEW: usize = 4;
/// Workers in the runs whose requests block them.
const MANY: usize = 12;
/// Connections beside a stopped worker. One without an answer within `PATIENCE` is lost.
const PROBES: u64 = 200;
const PATIENCE: Duration = Duration::from_secs(1);
/// Connections per second beside a slow worker.
const RATE: f64 = 1500.0;

/// The results of one way to accept.
struct PolicyResult {
    lost: u64,
    slow: RunOutcome,
    overload: (f64, f64),
    light: (f64, f64),
    closing: f64,
    kept: f64,
}

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let nginx: &[fn(&Program) -> Subject] = &[Program::one_queue, Program::reuseport];
    let subjects = lab.subjects(POLICIES, nginx, true);
    let is_own_process = |subject: &Subject| subject.program.family != Family::Haproxy;
    let mut finding = LabFinding::default();
    let mut all = Vec::new();
    for subject in subjects.iter().filter(|subject| is_own_process(subject)) {
        if let Some(why) = fallback_reason(lab, subject)? {
            finding.remark(&why);
        }
        all.push((subject.label.clone(), measure(lab, subject)?));
    }
    compare(&mut finding, &all);
    finding.table("figures", &table(&all));
    charts(&mut finding, &all);
    verdict(&mut finding, &all);
    finding.remark(&format!(
        "Stopped: one of four workers is stopped (SIGSTOP) and {PROBES} clients come at once; who has no answer within a second is \
         lost. Slow: one of four is stopped for {} ms of each {}, and {RATE:.0} connections a second begin on time. Overload: twelve workers that each request holds \
         up for 2 ms, 200 connections at a time, a request each. Light: four at a time. Cheap: four workers, 50 at a time, \
         a request or all requests on a connection. CV: how uneven the requests are, 0 is even.",
        STOPPED.as_millis(),
        (STOPPED + WORKING).as_millis(),
    ));
    Ok(finding)
}

/// If connections are spread by the hash after all, returns the reason.
fn fallback_reason(lab: &Lab, subject: &Subject) -> Result<Option<String>, String> {
    lab.step(&subject.label);
    let server =
        RunningServer::start(subject, &ServerSetup { processes: FEW, ..ServerSetup::default() })?;
    let said = server.error_log_contains("is plain reuseport");
    Ok(said.then(|| {
        format!(
            "{}: this process may not load a program into the kernel (CAP_BPF, CAP_NET_ADMIN), so that connections went by the \
             hash after all.",
            subject.label
        )
    }))
}

fn measure(lab: &Lab, subject: &Subject) -> Result<PolicyResult, String> {
    let few = ServerSetup { processes: FEW, ..ServerSetup::default() };
    let lost = {
        lab.step(&format!("{}, one stopped", subject.label));
        let server = RunningServer::start(subject, &few)?;
        let _stopped = Hindered::stopped(server.any_worker()?)?;
        let probes = Traffic {
            requests: Some(PROBES),
            timeout: PATIENCE,
            ..Traffic::closed(PROBES as usize, Closing::Always, PATIENCE)
        };
        lab.load(&server, &probes, &mut |_| {})?.tally.errors()
    };
    let slow = {
        lab.step(&format!("{}, one slow", subject.label));
        let server = RunningServer::start(subject, &few)?;
        let _slow = Hindered::slow(server.any_worker()?)?;
        lab.load(&server, &open_loop(lab), &mut |_| {})?
    };
    let cheap = |closing| {
        lab.step(&format!("{}, cheap", subject.label));
        let server = RunningServer::start(subject, &few)?;
        let time = lab.size(Duration::from_secs(2), Duration::from_millis(300));
        let outcome = lab.load(&server, &Traffic::closed(50, closing, time), &mut |_| {})?;
        Ok::<_, String>(outcome.requests_per_second())
    };
    let (closing, kept) = (cheap(Closing::Always)?, cheap(Closing::Never)?);
    let overload = blocking_requests(lab, subject, 200, lab.size(20_000, 1000))?;
    let light = blocking_requests(lab, subject, 4, lab.size(4000, 200))?;
    Ok(PolicyResult { lost, slow, overload, light, closing, kept })
}

/// An open loop of connections with one request each.
pub(super) fn open_loop(lab: &Lab) -> Traffic {
    let time = lab.size(Duration::from_secs(4), Duration::from_millis(700));
    Traffic { pace: Pace::Open { rate: RATE }, ..Traffic::closed(400, Closing::Always, time) }
}

/// The p99, and the coefficient of variation over workers, of requests that block their workers.
fn blocking_requests(
    lab: &Lab,
    subject: &Subject,
    at_once: usize,
    n: u64,
) -> Result<(f64, f64), String> {
    lab.step(&format!("{}, {at_once} at a time", subject.label));
    let work = Some(HandlerWork::Sleep(Duration::from_millis(2)));
    let setup = ServerSetup { processes: MANY, work, log: true, ..ServerSetup::default() };
    let server = RunningServer::start(subject, &setup)?;
    let load = Traffic {
        requests: Some(n),
        ..Traffic::closed(at_once, Closing::Always, Duration::from_secs(20))
    };
    let outcome = lab.load(&server, &load, &mut |_| {})?;
    let requests = padded(server.served()?.requests.into_values(), MANY);
    let requests: Vec<f64> = requests.into_iter().map(|n| n as f64).collect();
    Ok((outcome.tally.percentile(99.0), variation(&requests)))
}

fn table(all: &[(String, PolicyResult)]) -> FindingTable {
    let mut table = FindingTable::new(&[
        "",
        "stopped: lost",
        "slow: p50 ms",
        "p90",
        "p99",
        "overload: p99",
        "CV",
        "light: p99",
        "CV",
        "cheap: requests/s",
        "kept",
    ]);
    for (label, seen) in all {
        let slow = [50.0, 90.0, 99.0].map(|percent| seen.slow.tally.percentile(percent));
        let mut cells = vec![label.clone(), seen.lost.to_string()];
        cells.extend(slow.map(|ms| format!("{ms:.2}")));
        for (p99, cv) in [seen.overload, seen.light] {
            cells.extend([format!("{p99:.1}"), format!("{cv:.4}")]);
        }
        cells.extend([seen.closing, seen.kept].map(|rate| format!("{rate:.0}")));
        table.row(&cells);
    }
    table
}

fn charts(finding: &mut LabFinding, all: &[(String, PolicyResult)]) {
    let runs = all.iter().map(|(label, seen)| (label.as_str(), &seen.slow));
    finding.chart(Chart::percentiles("Beside a worker that is slow", runs).caption(
        "A hash sends a quarter of the clients to the slow worker, whether or not others sleep.",
    ));
    let mut chart = Chart::new(
        "Connections lost while one of four workers is stopped",
        "of 200, less is better",
        Scale::Linear,
        &["lost"],
    );
    all.iter().for_each(|(label, seen)| chart.row(label, [seen.lost as f64]));
    finding.chart(chart.caption("A dot at the left end is none lost."));
    let title = "Cheap requests over connections of their own";
    let mut chart =
        Chart::new(title, "requests a second, more is better", Scale::Linear, &["requests/s"]);
    all.iter().for_each(|(label, seen)| chart.row(label, [seen.closing]));
    finding.chart(chart.caption("What the choice costs where there is nothing to choose."));
}

const STEERED: [&str; 1] = ["reuseport by load"];
const HASHED: [&str; 2] = ["reuseport", ", reuseport"];

fn verdict(finding: &mut LabFinding, all: &[(String, PolicyResult)]) {
    let lost = ("Connections lost while one of four workers is stopped", "of 200", Better::Less);
    let others: &[&[&str]] = &[&HASHED, &[", one queue"], &["fair"]];
    if let Some(answer) = compared(lost, all, STEERED[0], others, |seen| seen.lost as f64) {
        finding.verdict(answer, "A hash gives the stopped worker a quarter of them.");
    }
}

/// The label of a row, the name, unit and better end of its value, and the function that reads it.
type RowFigure = (&'static str, (&'static str, &'static str, Better), fn(&PolicyResult) -> f64);

fn compare(finding: &mut LabFinding, all: &[(String, PolicyResult)]) {
    for (label, seen) in all {
        let published = if label.ends_with("reuseport") { "a quarter" } else { "none" };
        let here = format!("{} of {PROBES} lost", seen.lost);
        finding.beside(&format!("one of four stopped, {label}"), published, here);
    }
    let [own] = STEERED;
    let figures: [RowFigure; 4] = [
        ("p99 beside a slow worker", ("p99", "ms", Better::Less), |seen| {
            seen.slow.tally.percentile(99.0)
        }),
        ("CV under overload", ("CV", "", Better::Less), |seen| seen.overload.1),
        ("CV of a light load", ("CV", "", Better::Less), |seen| seen.light.1),
        ("cheap requests, by load", ("Requests per second", "", Better::More), |seen| seen.closing),
    ];
    for (what, figure, of) in figures {
        if let Some(here) = compared(figure, all, own, &[&HASHED], of) {
            finding.beside_compared(what, "-", here);
        }
    }
    finding.because(
        "The program reads in the table of the workers who is in a turn that lasts, who does not stir, and who carries least; what waits for one \
         that does not come to its queue is accepted by the others.",
    );
}
