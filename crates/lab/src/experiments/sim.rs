//! The same questions to a model of the kernel's queues, for machines that are not here.

use std::time::{Duration, Instant};

use weir_balance::Kind;
use weir_balance::model::{Client, Witness, World};

use super::{Experiment, POLICIES};
use crate::finding::{Finding, Table};
use crate::lab::{Lab, padded, slashed};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "sim",
    title: "A model of the kernel's queues",
    question: "What would 64 or 512 workers see? A model in virtual time answers: wait queues in the order \
               of registration, exclusive and plain wake-ups, sleepers only, accept queues, and the server's own \
               policies, line for line.",
    published: "Nothing: these machines are too large for most laboratories. The first two tables are to be \
                compared with spread, queues and keepalive, which are measured.",
    run,
};

const MS: Duration = Duration::from_millis(1);
/// How long a request blocks its worker.
const WORK: Duration = Duration::from_millis(2);
/// Under heavy tails, one client in so many is slow.
const SLOW_ONE_IN: usize = 100;

/// Workers, and clients for each situation.
struct Size {
    workers: usize,
    overload: usize,
    kept: usize,
    /// Virtual time.
    time: Duration,
}

fn run(lab: &Lab) -> Result<Finding, String> {
    let mut finding = Finding::default();
    finding.table("spread", &spread(lab));
    let sizes = [
        Size { workers: 12, overload: 200, kept: 36, time: MS * lab.size(2000, 200) },
        Size { workers: 64, overload: 1024, kept: 192, time: MS * lab.size(1000, 20) },
        Size { workers: 512, overload: 8192, kept: 1536, time: MS * lab.size(300, 3) },
    ];
    for size in sizes.iter().take(lab.size(3, 2)) {
        finding
            .texts
            .push(format!("{} workers, each request blocks its worker for 2 ms\n", size.workers));
        finding.table(&format!("{}-workers", size.workers), &latencies(lab, size));
    }
    finding.remark(
        "Overload: many clients in a closed loop, a connection for each request. Kept: three connections per \
         worker that stay. Heavy tail: as overload, with half as many clients, one in a hundred of whom sends requests \
         of 50 ms. The model has a CPU for each worker and no network, so its figures are the least that \
         the policy allows; what a measurement adds to them is the machine. Under shared epoll and plain epoll it lets \
         the first waiter win, where real ones race.",
    );
    Ok(finding)
}

fn kinds() -> impl Iterator<Item = (&'static str, Kind)> {
    POLICIES.iter().filter_map(|(label, name)| Some((*label, Kind::parse(name).ok()?)))
}

/// Six connections, one after another, to three idle workers.
fn spread(lab: &Lab) -> Table {
    lab.step("six connections");
    let mut table = Table::new(&["accept model", "6 connections, 3 workers"]);
    for (label, kind) in kinds() {
        let mut world = World::new(kind, 3, Instant::now());
        (1..=6).for_each(|i| world.client(MS * 20 * i, Client::once(Duration::ZERO)));
        let accepted = world.run(MS * 1000).accepted.iter().copied();
        table.row(&[label.to_owned(), slashed(&padded(accepted, 3))]);
    }
    table
}

fn latencies(lab: &Lab, size: &Size) -> Table {
    let heads =
        ["", "overload p50 ms", "p99", "max", "CV", "kept p99", "most on one", "heavy tail p99"];
    let mut table = Table::new(&heads);
    for (label, kind) in kinds() {
        lab.step(&format!("{} workers, {label}", size.workers));
        let mut overload = world(kind, size, size.overload, |_| Client::closing(WORK));
        // The connections come before their first requests, as those of idle visitors do.
        let gap = MS * 4;
        let mut kept = world(kind, size, size.kept, |_| Client { gap, ..Client::keeping(WORK) });
        let mut tail = world(kind, size, size.overload / 2, |i| {
            Client::closing(if i % SLOW_ONE_IN == 0 { MS * 50 } else { WORK })
        });
        table.row(&[
            label.to_owned(),
            quantile(overload.run(size.time), 0.5),
            quantile(overload.run(size.time), 0.99),
            quantile(overload.run(size.time), 1.0),
            format!("{:.3}", overload.run(size.time).variation()),
            quantile(kept.run(size.time), 0.99),
            kept.open().into_iter().max().unwrap_or(0).to_string(),
            quantile(tail.run(size.time), 0.99),
        ]);
    }
    table
}

/// A world with these clients, at its end: running it to the same time again returns what was seen.
fn world(kind: Kind, size: &Size, n: usize, client: impl Fn(usize) -> Client) -> World {
    let mut world = World::new(kind, size.workers, Instant::now());
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    // All have come after a few milliseconds, however many they are.
    let apart = MS * 2 / count(n).max(1);
    (0..n).for_each(|i| world.client(MS + apart * count(i), client(i)));
    world.run(size.time);
    world
}

fn quantile(seen: &Witness, share: f64) -> String {
    format!("{:.1}", seen.quantile(share).as_secs_f64() * 1e3)
}
