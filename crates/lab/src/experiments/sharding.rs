//! Four workers under a full load of short connections.

use std::time::Duration;

use weir_bench::Closing;

use super::Experiment;
use crate::finding::{Finding, Table};
use crate::lab::{Lab, Load};
use crate::program::{Program, Setup, Subject};
use crate::running::Running;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "sharding",
    title: "Socket sharding",
    question: "Four workers, short answers, a connection for each request, as much load as this machine \
               makes: requests per second, latency and CPU of each way to accept.",
    published: "nginx's own figures for socket sharding: reuseport served two to three times the \
                requests per second of the other modes, with a lower deviation of latency.",
    run,
};

fn run(lab: &Lab) -> Result<Finding, String> {
    let policies = &[
        ("re-add every 16 accepts", "rotate"),
        ("EPOLLEXCLUSIVE", "exclusive"),
        ("mutex", "mutex"),
        ("reuseport", "reuseport"),
        ("fair", "fair"),
    ];
    let nginx: &[fn(&Program) -> Subject] =
        &[Program::one_queue, Program::accept_mutex, Program::reuseport];
    let time = lab.size(Duration::from_secs(3), Duration::from_millis(300));
    let load = Load::closed(64, Closing::Always, time);
    let mut finding = Finding::default();
    let heads = ["", "requests/s", "per CPU s", "mean ms", "deviation", "p99", "server CPU s"];
    let mut table = Table::new(&heads);
    let mut picture = Vec::new();
    for subject in lab.subjects(policies, nginx, false) {
        lab.step(&subject.label);
        let server = Running::start(&subject, &Setup::default())?;
        let before: Duration = server.cpu().into_iter().sum();
        let outcome = lab.load(&server, &load, &mut |_| {})?;
        let cpu = server.cpu().into_iter().sum::<Duration>().saturating_sub(before);
        let per_cpu = outcome.tally.requests() as f64 / cpu.as_secs_f64().max(1e-9);
        let rate = outcome.requests_per_second();
        let all = &outcome.tally.log2;
        table.row(&[
            subject.label.clone(),
            format!("{rate:.0}"),
            format!("{per_cpu:.0}"),
            format!("{:.2}", all.mean()),
            format!("{:.2}", all.deviation()),
            format!("{:.2}", outcome.tally.percentile(99.0)),
            format!("{:.2}", cpu.as_secs_f64()),
        ]);
        picture.push((subject.label, vec![per_cpu]));
    }
    finding.table("rates", &table);
    let labels = ["a connection for each request".to_owned()];
    let svg = weir_bench::plot::bars("Requests per second of server CPU", "1/s", &labels, &picture);
    finding.picture("rates", svg);
    finding.remark(
        "Client and server share the CPUs, so requests per second of server CPU compare better than \
         requests per second. The published gain came from 36 cores that contended for the lock of \
         one queue; with few cores there is little contention to save.",
    );
    Ok(finding)
}
