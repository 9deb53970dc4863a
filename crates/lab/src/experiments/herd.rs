//! How many workers a connection wakes.

use std::time::Duration;

use weir_bench::{Closing, Pace};

use super::{Experiment, POLICIES};
use crate::finding::{Finding, Table};
use crate::lab::{Lab, Load};
use crate::program::{Program, Setup, Subject};
use crate::running::Running;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "herd",
    title: "The thundering herd",
    question: "One connection comes, one worker is needed: how many wake?",
    published: "A plain registration wakes every waiting worker for every connection; all but one find \
                nothing. EPOLLEXCLUSIVE wakes one, or sometimes a few.",
    run,
};

fn run(lab: &Lab) -> Result<Finding, String> {
    let nginx: &[fn(&Program) -> Subject] =
        &[Program::one_queue, Program::accept_mutex, Program::reuseport];
    let setup = Setup { processes: 8, ..Setup::default() };
    let time = lab.size(Duration::from_secs(2), Duration::from_millis(500));
    let load = Load { pace: Pace::Open { rate: 200.0 }, ..Load::closed(20, Closing::Always, time) };
    let mut finding = Finding::default();
    let mut table = Table::new(&["", "sleeps per connection", "CPU µs per connection"]);
    let mut picture = Vec::new();
    for subject in lab.subjects(POLICIES, nginx, false) {
        lab.step(&subject.label);
        let server = Running::start(&subject, &setup)?;
        let cpu: Duration = server.cpu().into_iter().sum();
        let before = server.sleeps();
        let outcome = lab.load(&server, &load, &mut |_| {})?;
        server.settle()?;
        let connections = outcome.tally.connect.len().max(1) as f64;
        let slept = (server.sleeps() - before) as f64 / connections;
        let cpu = server.cpu().into_iter().sum::<Duration>().saturating_sub(cpu);
        let micros = cpu.as_secs_f64() * 1e6 / connections;
        table.row(&[subject.label.clone(), format!("{slept:.2}"), format!("{micros:.0}")]);
        picture.push((subject.label, vec![slept]));
    }
    finding.table("sleeps", &table);
    let labels = ["eight workers".to_owned()];
    let svg = weir_bench::plot::bars("Sleeps per connection", "sleeps", &labels, &picture);
    finding.picture("sleeps", svg);
    finding.remark(
        "Eight workers, 200 connections a second with a request each. Counted is how often workers went \
         to sleep (the kernel's voluntary context switches of all their threads): a worker that is \
         woken sleeps again afterwards, whether or not it found something. One connection takes one \
         sleep at least, two when its request comes later than itself, and three when a thread of its \
         own accepts.",
    );
    Ok(finding)
}
