//! Connections that stay.

use std::time::Duration;

use weir_bench::Closing;

use super::{Experiment, MAIN};
use crate::finding::{Finding, Table};
use crate::lab::{Lab, Load, padded, slashed};
use crate::program::{Program, Setup, Subject, Work};
use crate::running::Running;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "keepalive",
    title: "Connections that stay",
    question: "Connections that are kept stay with the worker that accepted them. Where do they land, and \
               what latency do they see?",
    published: "Uneven accepting becomes lasting unevenness when connections live long; with nginx and one \
                queue, four kept connections have been seen on one of twelve workers.",
    run,
};

const WORKERS: usize = 12;
/// Between two connections: long enough for the worker that took one to sleep again.
const APART: Duration = Duration::from_millis(5);

fn run(lab: &Lab) -> Result<Finding, String> {
    let nginx: &[fn(&Program) -> Subject] = &[Program::one_queue, Program::reuseport];
    let setup = Setup {
        processes: WORKERS,
        work: Some(Work::Sleep(Duration::from_millis(2))),
        log: true,
        ..Setup::default()
    };
    let time = lab.size(Duration::from_secs(3), Duration::from_millis(400));
    let mut finding = Finding::default();
    let heads = ["", "connections", "by worker", "requests/s", "p50 ms", "p99 ms"];
    let mut table = Table::new(&heads);
    let mut outcomes = Vec::new();
    for subject in lab.subjects(MAIN, nginx, true) {
        for connections in [4, 36] {
            lab.step(&format!("{}, {connections} connections", subject.label));
            let server = Running::start(&subject, &setup)?;
            let load = Load {
                connect_first: Some(APART),
                ..Load::closed(connections, Closing::Never, time)
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
            if connections == 36 {
                outcomes.push((subject.label.clone(), outcome));
            }
        }
    }
    finding.table("latency", &table);
    let runs: Vec<_> = outcomes.iter().map(|(label, run)| (label.as_str(), run)).collect();
    finding.picture("latency-36-connections", weir_bench::svg(&runs));
    finding.remark(
        "The connections come one after another, 5 ms apart, before their first requests. Each request \
         holds its worker for 2 ms. Four connections on four workers see 2 ms; on one worker \
         they see 8. The least for 36 connections is 6 ms: three on each worker.",
    );
    Ok(finding)
}
