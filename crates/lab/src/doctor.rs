//! `weir lab doctor`: which way to accept suits a configuration's number of workers.

use std::path::Path;
use std::time::Duration;

use weir_bench::Closing;
use weir_conf::Directive;

use crate::experiments::MAIN;
use crate::finding::{Finding, Table};
use crate::lab::{Lab, Load};
use crate::program::{Setup, Work};
use crate::running::Running;

/// How long a request blocks its loop.
const WORK: Duration = Duration::from_millis(2);
/// Between two connections that stay: long enough for a loop to sleep again.
const APART: Duration = Duration::from_millis(5);
/// More loops than this would need more clients than a small machine can play.
const MOST: usize = 32;

/// What a configuration says about its loops.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    /// The policy that it asks for, if it does.
    pub(crate) policy: Option<String>,
}

/// One way to accept, measured.
struct Measured {
    label: String,
    policy: String,
    overload: f64,
    kept: f64,
}

/// Measures, and says what to use and why.
pub(crate) fn advise(lab: &Lab, conf: &Path) -> Result<String, String> {
    let path = conf.canonicalize().map_err(|e| format!("{}: {e}", conf.display()))?;
    let tree = weir_conf::read(&path, None);
    if let Some(error) = &tree.broken {
        return Err(tree.sources.first_line(error));
    }
    let shape = shape(&tree.main);
    let loops = shape.processes * shape.threads;
    if loops < 2 {
        return Ok("There is one loop, so nothing is to be spread.\n".to_owned());
    }
    let mut measured = Vec::new();
    for (label, policy) in MAIN {
        measured.push(measure(lab, &shape, label, policy)?);
    }
    let mut finding = Finding::default();
    let mut table = Table::new(&["accept_balance", "known as", "overload p99 ms", "kept p99 ms"]);
    for way in &measured {
        let figures = [way.overload, way.kept].map(|ms| format!("{ms:.2}"));
        let cells = [way.policy.clone(), way.label.clone()].into_iter().chain(figures);
        table.row(&cells.collect::<Vec<_>>());
    }
    finding.table("doctor", &table);
    finding.remark(&verdict(&shape, &measured));
    let (processes, threads) = (shape.processes, shape.threads);
    Ok(format!("{processes} processes with {threads} loops each\n\n{}", finding.texts.join("\n")))
}

fn measure(lab: &Lab, shape: &Shape, label: &str, policy: &str) -> Result<Measured, String> {
    let subject = lab.weir()?.policy(label, policy);
    let processes = shape.processes.min(MOST);
    let threads = shape.threads.min((MOST / processes).max(1));
    let loops = processes * threads;
    let setup = Setup { processes, threads, work: Some(Work::Sleep(WORK)), ..Setup::default() };
    let time = lab.size(Duration::from_secs(3), Duration::from_millis(300));
    lab.step(&format!("{label}: overload"));
    let server = Running::start(&subject, &setup)?;
    let load = Load::closed(loops * 16, Closing::Always, time);
    let overload = lab.load(&server, &load, &mut |_| {})?.tally.percentile(99.0);
    drop(server);
    lab.step(&format!("{label}: connections that stay"));
    let server = Running::start(&subject, &setup)?;
    let kept = Load { connect_first: Some(APART), ..Load::closed(loops * 3, Closing::Never, time) };
    let kept = lab.load(&server, &kept, &mut |_| {})?.tally.percentile(99.0);
    Ok(Measured { label: label.to_owned(), policy: policy.to_owned(), overload, kept })
}

/// The best is the one whose worse situation is the least bad, each taken against the best there.
fn verdict(shape: &Shape, measured: &[Measured]) -> String {
    let least =
        |of: fn(&Measured) -> f64| measured.iter().map(of).fold(f64::INFINITY, f64::min).max(1e-9);
    let (overload, kept) = (least(|m| m.overload), least(|m| m.kept));
    let badness = |m: &Measured| (m.overload / overload).max(m.kept / kept);
    let best = measured.iter().min_by(|a, b| badness(a).total_cmp(&badness(b)));
    let Some(best) = best else { return String::new() };
    let now = match &shape.policy {
        Some(policy) => format!("The configuration asks for {policy}."),
        None => "The configuration asks for none, so that it gets fair.".to_owned(),
    };
    format!(
        "Use accept_balance {}: its p99 is {:.1} times the best of the table under overload and {:.1} \
         times for connections that stay, and no other is as near to the best in its worse one. {now}",
        best.policy,
        best.overload / overload,
        best.kept / kept
    )
}

pub(crate) fn shape(main: &[Directive]) -> Shape {
    let find = |list: &[Directive], name: &str| {
        let found = list.iter().find(|d| d.name.is(name));
        found.and_then(|d| d.arg(0)).map(|word| word.lossy().into_owned())
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let count = |name: &str| match find(main, name).as_deref() {
        Some("auto") => cpus,
        Some(number) => number.parse().unwrap_or(1).max(1),
        None => 1,
    };
    let events =
        main.iter().find(|d| d.name.is("events")).map(Directive::block).unwrap_or_default();
    let policy = find(events, "accept_balance");
    Shape { processes: count("worker_processes"), threads: count("worker_threads"), policy }
}
