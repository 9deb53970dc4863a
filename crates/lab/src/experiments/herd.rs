//! How many workers a new connection wakes.

use std::time::Duration;

use weir_bench::{Closing, Pace};

use crate::chart::{Chart, Scale};
use crate::comparison::Better;
use crate::experiment::{Experiment, POLICIES};
use crate::finding::{FindingTable, LabFinding};
use crate::lab::{Lab, Traffic, compared, nearest};
use crate::program::{Family, Program, ServerSetup, Subject};
use crate::running::RunningServer;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "herd",
    title: "The thundering herd",
    question: "One connection comes, one worker is needed: how many wake?",
    published: "A plain registration wakes every waiting worker for every connection; all but one find \
                nothing. EPOLLEXCLUSIVE wakes one, or sometimes a few.",
    run,
};

const WORKERS: usize = 8;

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let nginx: &[fn(&Program) -> Subject] =
        &[Program::one_queue, Program::accept_mutex, Program::reuseport];
    let time = lab.size(Duration::from_secs(2), Duration::from_millis(500));
    let load =
        Traffic { pace: Pace::Open { rate: 200.0 }, ..Traffic::closed(20, Closing::Always, time) };
    let mut finding = LabFinding::default();
    let mut table = FindingTable::new(&[
        "per connection",
        "sleeps",
        "accept events",
        "found nothing",
        "CPU µs",
    ]);
    let mut rows = Vec::new();
    for subject in lab.subjects(POLICIES, nginx, false) {
        lab.step(&subject.label);
        let is_weir = subject.program.family == Family::Weir;
        let status = if is_weir { "location = /status { weir_status; }" } else { "" };
        let setup =
            ServerSetup { processes: WORKERS, server: status.to_owned(), ..ServerSetup::default() };
        let server = RunningServer::start(&subject, &setup)?;
        let counters = || {
            let names = ["weir_accept_events_total", "weir_empty_accepts_total"];
            names.map(|name| server.counter(name).filter(|_| is_weir))
        };
        let counted = counters();
        let cpu: Duration = server.cpu().into_iter().sum();
        let before = server.sleeps();
        let outcome = lab.load(&server, &load, &mut |_| {})?;
        server.settle()?;
        let connections = outcome.tally.connect.len().max(1) as f64;
        let slept = (server.sleeps() - before) as f64 / connections;
        let cpu = server.cpu().into_iter().sum::<Duration>().saturating_sub(cpu);
        let micros = cpu.as_secs_f64() * 1e6 / connections;
        let mut cells = vec![subject.label.clone(), format!("{slept:.2}")];
        for (after, before) in counters().into_iter().zip(counted) {
            let grown =
                after.zip(before).map(|(after, before)| (after - before) as f64 / connections);
            cells.push(grown.map_or("-".to_owned(), |n| format!("{n:.2}")));
        }
        cells.push(format!("{micros:.0}"));
        table.row(&cells);
        rows.push((subject.label, slept));
    }
    compare(&mut finding, &rows);
    finding.table("sleeps", &table);
    let title = "How often workers woke and slept again, per connection";
    let mut chart = Chart::new(title, "sleeps, less is better", Scale::Linear, &["sleeps"]);
    for (label, slept) in &rows {
        chart.row(label, [*slept]);
    }
    finding.chart(chart.caption(
        "One or two sleeps are one worker that does the work, eight and more are a herd.",
    ));
    let sleeps = ("Sleeps per connection", "", Better::Less);
    let others: &[&[&str]] =
        &[&["plain epoll"], &[", one queue", "re-add every 16 accepts"], &[", reuseport"]];
    if let Some(answer) = compared(sleeps, &rows, "fair", others, |slept| *slept) {
        finding.verdict(answer, "Each wake-up ends with a sleep; a connection needs one or two.");
    }
    finding.remark(
        "Eight workers, 200 connections a second with a request each. Counted is how often workers went \
         to sleep (the kernel's voluntary context switches of all their threads): a worker that is \
         woken sleeps again afterwards, whether or not it found something. One connection takes one \
         sleep at least, two when its request comes later than itself, and three when a thread of its \
         own accepts. weir also counts itself how often a listening socket woke a loop, and how often \
         that loop then found nothing to accept; nginx and HAProxy have no such counters.",
    );
    Ok(finding)
}

/// `rows` has the sleeps per connection.
fn compare(finding: &mut LabFinding, rows: &[(String, f64)]) {
    for (what, published, ends) in [
        ("plain registration (eight workers)", "all wake", ["plain epoll", "plain epoll"]),
        ("EPOLLEXCLUSIVE", "one, or a few", ["EPOLLEXCLUSIVE", "EPOLLEXCLUSIVE"]),
        (
            "one epoll instance for all",
            "one: epoll_wait is exclusive",
            ["shared epoll", "shared epoll"],
        ),
        ("nginx, accept_mutex on", "one at a time", [", accept_mutex on", "mutex"]),
        (
            "nginx, accept_mutex off",
            "all at the same time (2015)",
            [", one queue", "re-add every 16 accepts"],
        ),
        ("SO_REUSEPORT", "the queue's owner", [", reuseport", "reuseport"]),
        ("fair", "-", ["fair", "fair"]),
    ] {
        let Some((label, slept)) = nearest(rows, &ends) else { continue };
        finding.beside(what, published, format!("{slept:.1} wake-ups per connection ({label})"));
    }
    finding.because(
        "The articles tell how many wake and give no figures. One connection is one wake-up at least, and a second one where the request \
         comes later than its connection. An nginx of 2015 registered plainly, so that accept_mutex off woke all workers; since 1.11.3 it \
         registers with EPOLLEXCLUSIVE. The epoll article's one instance for all is one on which the workers themselves \
         wait. Here each worker has an epoll instance of its own, in which the one for all is: a nested epoll wakes all who watch it.",
    );
}
