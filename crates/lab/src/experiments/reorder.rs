//! What it costs to give up one's place in the queue of waiters.

use std::time::Duration;

use weir_bench::Closing;

use super::Experiment;
use crate::finding::{Finding, Table};
use crate::lab::{Lab, Load, padded, variation};
use crate::program::{Program, Setup, Subject};
use crate::running::Running;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "reorder",
    title: "Leaving the queue of waiters and coming back",
    question: "A worker that removes and adds its listening socket after every N-th accept goes to the \
               end of the kernel's list. What does that cost, and what does it gain, for each N?",
    published: "17521 requests per second against 16009, the listener re-added every 16 accepts against \
                never.",
    run,
};

const WORKERS: usize = 4;

fn run(lab: &Lab) -> Result<Finding, String> {
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
    let setup = Setup { processes: WORKERS, log: true, ..Setup::default() };
    let time = lab.size(Duration::from_secs(3), Duration::from_millis(300));
    let load = Load::closed(16, Closing::Always, time);
    let mut finding = Finding::default();
    let heads = ["re-add", "requests/s", "per CPU s", "p99 ms", "requests by worker", "CV"];
    let mut table = Table::new(&heads);
    for subject in lab.subjects(policies, nginx, false) {
        lab.step(&subject.label);
        let server = Running::start(&subject, &setup)?;
        let before: Duration = server.cpu().into_iter().sum();
        let outcome = lab.load(&server, &load, &mut |_| {})?;
        let cpu = server.cpu().into_iter().sum::<Duration>().saturating_sub(before);
        let requests = padded(server.served()?.requests.into_values(), WORKERS);
        let shares: Vec<f64> = requests.iter().map(|&n| n as f64).collect();
        let per_cpu = outcome.tally.requests() as f64 / cpu.as_secs_f64().max(1e-9);
        table.row(&[
            subject.label,
            format!("{:.0}", outcome.requests_per_second()),
            format!("{per_cpu:.0}"),
            format!("{:.2}", outcome.tally.percentile(99.0)),
            crate::lab::slashed(&requests),
            format!("{:.3}", variation(&shares)),
        ]);
    }
    finding.table("rates", &table);
    finding.remark(
        "Two system calls per re-adding are little beside the eight or so that a connection costs; what \
         they buy is an even spread, since the first in the list would otherwise always be asked \
         first.",
    );
    Ok(finding)
}
