//! A reload from twelve workers to four, under load.

use std::time::Duration;

use weir_bench::{Closing, RequestFailure};

use crate::chart::{Chart, Scale};
use crate::comparison::Better;
use crate::experiment::Experiment;
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, Traffic, compared};
use crate::program::{HandlerWork, Program, ServerSetup, Subject};
use crate::running::RunningServer;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "reload",
    title: "A reload under load",
    question: "The number of workers goes from twelve to four while clients keep coming. How many \
               connections are refused, reset or dropped?",
    published: "Reducing the number of SO_REUSEPORT sockets drops connections that wait in the queues \
                of those that go.",
    run,
};

const CLIENTS: usize = 200;

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let policies = &[("fair", "fair"), ("reuseport", "reuseport")];
    let nginx: &[fn(&Program) -> Subject] = &[Program::one_queue, Program::reuseport];
    let work = Some(HandlerWork::Sleep(Duration::from_millis(2)));
    let many = ServerSetup { processes: 12, work, ..ServerSetup::default() };
    let few = ServerSetup { processes: 4, ..many.clone() };
    let time = lab.size(Duration::from_secs(4), Duration::from_millis(1200));
    // More clients than the workers can serve, so that connections wait in every queue.
    let load = Traffic::closed(CLIENTS, Closing::Always, time);
    let mut finding = LabFinding::default();
    let mut table = FindingTable::new(&[
        "",
        "answered",
        "refused",
        "reset",
        "closed early",
        "other",
        "p99 ms",
        "max",
    ]);
    let mut losses = Vec::new();
    for subject in lab.subjects(policies, nginx, true) {
        lab.step(&subject.label);
        let server = RunningServer::start(&subject, &many)?;
        let mut reloaded = false;
        let outcome = lab.load(&server, &load, &mut |elapsed| {
            if !reloaded && elapsed >= time / 3 {
                reloaded = true;
                server.reload(&few);
            }
        })?;
        let tally = &outcome.tally;
        let of = |kind: RequestFailure| {
            let counts = RequestFailure::ALL.iter().zip(tally.failures);
            counts.filter(|(failure, _)| **failure == kind).map(|(_, n)| n).sum::<u64>()
        };
        let named =
            [of(RequestFailure::Refused), of(RequestFailure::Reset), of(RequestFailure::Closed)];
        let other = tally.errors() - named.iter().sum::<u64>();
        losses.push((subject.label.clone(), tally.errors()));
        let mut cells = vec![subject.label.clone(), tally.requests().to_string()];
        cells.extend(named.iter().chain([&other]).map(u64::to_string));
        cells.push(format!("{:.2}", tally.percentile(99.0)));
        cells.push(format!("{:.2}", tally.log2.max()));
        table.row(&cells);
    }
    for (label, lost) in &losses {
        let has_many_queues = ["reuseport", "by thread"].iter().any(|way| label.contains(way));
        let published = if has_many_queues { "connections are dropped" } else { "none" };
        finding.beside(&format!("12 to 4 workers, {label}"), published, format!("{lost} lost"));
    }
    finding.because(
        "A queue that a worker takes with it when it goes is lost with the connections in it: nginx and HAProxy close the sockets of \
         the eight that go. weir gives the waiting connections away before it closes a queue, and with one \
         queue there is none to close. What is lost is what waits in the eight queues at that moment.",
    );
    finding.table("failures", &table);
    let title = "Requests lost by a reload from twelve workers to four";
    let mut chart = Chart::new(title, "requests, less is better", Scale::Linear, &["lost"]);
    for (label, lost) in &losses {
        chart.row(label, [*lost as f64]);
    }
    finding.chart(chart.caption("A dot at the left end is none lost."));
    let lost = ("Requests lost by a reload", "", Better::Less);
    let others: &[&[&str]] = &[&[", reuseport", "reuseport"], &[", one queue"]];
    if let Some(answer) = compared(lost, &losses, "fair", others, |lost| *lost as f64) {
        finding.verdict(answer, "");
    }
    finding.remark(
        "200 clients in a closed loop, a connection for each request, each of which holds its worker for 2 ms, so that connections wait \
         at every moment; the configuration is replaced after a third of the time. Every failed one is a visitor who saw an error.",
    );
    Ok(finding)
}
