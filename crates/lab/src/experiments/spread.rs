//! Six connections to three idle workers.

use std::collections::BTreeMap;

use crate::chart::{Chart, Scale};
use crate::comparison::Better;
use crate::experiment::{Experiment, POLICIES};
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, compared, nearest, padded, slashed};
use crate::program::{Family, Program, ServerSetup, Subject};
use crate::running::RunningServer;

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

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let mut finding = LabFinding::default();
    let nginx: &[fn(&Program) -> Subject] =
        &[Program::one_queue, Program::accept_mutex, Program::reuseport];
    let mut table = FindingTable::new(&["accept model", "processes", "threads"]);
    let (mut lines, mut rows) = (String::new(), Vec::new());
    for subject in lab.subjects(POLICIES, nginx, false) {
        lab.step(&subject.label);
        let processes = ServerSetup { processes: WORKERS, ..ServerSetup::default() };
        let threads = ServerSetup { processes: 1, threads: WORKERS, ..ServerSetup::default() };
        let nothing = || "-".to_owned();
        let (got, by_process, by_thread) = match subject.program.family {
            Family::Weir => {
                let got = spread(&subject, &processes)?;
                let by_thread = slashed(&spread(&subject, &threads)?);
                (got.clone(), slashed(&got), by_thread)
            }
            Family::Nginx => {
                let got = spread(&subject, &processes)?;
                (got.clone(), slashed(&got), nothing())
            }
            Family::Haproxy => {
                let got = spread(&subject, &threads)?;
                (got.clone(), nothing(), slashed(&got))
            }
        };
        lines += &format!("{}: {}\n", subject.label, slashed(&got));
        table.row(&[subject.label.clone(), by_process, by_thread]);
        rows.push((subject.label, got));
    }
    compare(&mut finding, &rows);
    finding.blocks(vec![lines]);
    finding.table("connections", &table);
    let heads = ["the busiest", "the second", "the third"];
    let mut chart = Chart::new("Who got the six connections", "connections", Scale::Linear, &heads);
    for (label, got) in &rows {
        chart.row(label, got.iter().map(|&n| n as f64));
    }
    finding.chart(chart.caption(
        "Even is two for each: three dots in one place. A dot at six is one worker that took all while two slept.",
    ));
    let most = ("Connections on the busiest worker", "of 6", Better::Less);
    let others: &[&[&str]] =
        &[&["EPOLLEXCLUSIVE"], &[", one queue"], &[", reuseport", "reuseport"]];
    let busiest = |got: &Vec<u64>| got.first().map_or(f64::NAN, |most| *most as f64);
    if let Some(answer) = compared(most, &rows, "fair", others, busiest) {
        finding.verdict(answer, "Two on each of the three workers is even.");
    }
    finding.remark(
        "Connections per worker, the busiest first. A queue with several waiters is served from one \
         end: blocked accepts stand at its end again afterwards, epoll waiters keep their place \
         unless they leave it and come back. With plain epoll every connection wakes all, and \
         the faster one wins; reuseport leaves the choice to a hash of the addresses.",
    );
    Ok(finding)
}

fn compare(finding: &mut LabFinding, rows: &[(String, Vec<u64>)]) {
    for (what, published, model) in [
        ("blocking accept()", [2, 2, 2], "blocking accept"),
        ("an epoll of its own for each worker, EPOLLEXCLUSIVE", [6, 0, 0], "EPOLLEXCLUSIVE"),
    ] {
        let Some((_, got)) = nearest(rows, &[model]) else { continue };
        finding.beside(what, &slashed(&published), slashed(got));
        finding.because(match *got == published {
            true => format!("{what}: the same here; the order of the kernel's wait queue has not changed."),
            false => format!(
                "{what}: not the same here. On a busy machine a worker may not be asleep again when \
                 the next connection comes, so that another is woken."
            ),
        });
    }
    if let Some((label, got)) = nearest(rows, &[", one queue"]) {
        finding.beside(
            "nginx, which waits with EPOLLEXCLUSIVE",
            "most on one worker",
            slashed(got),
        );
        finding.because(format!(
            "{label}: since 1.21.6 nginx re-adds its listening socket after a worker's first connection and then after every \
             16th. Freshly started, as here, it gives each worker one connection, and from then on one worker \
             takes one after another; see keepalive."
        ));
    }
    if let Some((_, got)) = nearest(rows, &["fair"]) {
        finding.beside(
            "epoll with a first-in, first-out wait queue",
            "\"best generic solution\", in no kernel",
            format!("{} (fair, without a patch)", slashed(got)),
        );
    }
}

/// How many connections each of three processes got.
pub(super) fn of_three(subject: &Subject) -> Result<Vec<u64>, String> {
    spread(subject, &ServerSetup { processes: WORKERS, ..ServerSetup::default() })
}

/// How many connections each worker got.
fn spread(subject: &Subject, setup: &ServerSetup) -> Result<Vec<u64>, String> {
    let server = RunningServer::start(subject, setup)?;
    let mut got: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..CONNECTIONS {
        *got.entry(server.ask()?).or_default() += 1;
        server.settle()?;
    }
    Ok(padded(got.into_values(), WORKERS))
}
