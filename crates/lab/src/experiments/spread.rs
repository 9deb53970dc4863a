//! Six connections to three idle workers.

use std::collections::BTreeMap;

use super::{Experiment, POLICIES};
use crate::finding::{Finding, Table};
use crate::lab::{Lab, padded, slashed};
use crate::program::{Program, Setup, Subject};
use crate::running::Running;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "spread",
    title: "Six connections, three idle workers",
    question: "Six clients connect one after another while three workers are idle. Who gets them?",
    published: "Blocking accept() gave each of three workers two connections; workers that wait in \
                epoll with EPOLLEXCLUSIVE left all six to one of them.",
    run,
};

const CONNECTIONS: usize = 6;
const WORKERS: usize = 3;

fn run(lab: &Lab) -> Result<Finding, String> {
    let mut finding = Finding::default();
    let nginx: &[fn(&Program) -> Subject] =
        &[Program::one_queue, Program::accept_mutex, Program::reuseport];
    let mut table = Table::new(&["accept model", "processes", "threads"]);
    let mut lines = String::new();
    for subject in lab.subjects(POLICIES, nginx, false) {
        lab.step(&subject.label);
        let processes = Setup { processes: WORKERS, ..Setup::default() };
        let by_process = slashed(&spread(&subject, &processes)?);
        lines += &format!("{}: {by_process}\n", subject.label);
        let threads = Setup { processes: 1, threads: WORKERS, ..Setup::default() };
        let by_thread = match subject.program.family {
            crate::program::Family::Weir => slashed(&spread(&subject, &threads)?),
            crate::program::Family::Nginx => "-".to_owned(),
        };
        table.row(&[subject.label, by_process, by_thread]);
    }
    finding.texts.push(lines);
    finding.table("connections", &table);
    finding.remark(
        "Connections per worker, the busiest first. A queue with several waiters is served from one \
         end: blocked accepts stand at its end again afterwards, epoll waiters keep their place \
         unless they leave it and come back. With plain epoll every connection wakes all, and \
         the faster one wins; reuseport leaves the choice to a hash of the addresses.",
    );
    Ok(finding)
}

/// How many connections each worker got.
fn spread(subject: &Subject, setup: &Setup) -> Result<Vec<u64>, String> {
    let server = Running::start(subject, setup)?;
    let mut got: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..CONNECTIONS {
        *got.entry(server.ask()?).or_default() += 1;
        server.settle()?;
    }
    Ok(padded(got.into_values(), WORKERS))
}
