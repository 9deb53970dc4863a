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
const APART: Duration = Duration::from_millis(10);
/// Clients for each loop under overload, and connections that stay.
const CROWD: usize = 16;
const KEPT: usize = 3;
/// Each way is measured so often.
const ROUNDS: usize = 2;
/// More loops than this would need more clients than a small machine can play.
const MOST: usize = 32;

/// What a configuration says about its loops.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    /// The policy that it comes to, by weir's name.
    pub(crate) policy: String,
    /// The words that say so; none: the default.
    pub(crate) said: Option<&'static str>,
}

/// One way to accept, measured.
struct Measured {
    label: String,
    policy: String,
    overload: f64,
    deviation: f64,
    kept: f64,
    /// Connections of the loop that has most of those that stay.
    most: u64,
}

impl Measured {
    /// The better of both in each situation: what a machine does beside makes things only worse.
    fn better(self, other: Measured) -> Measured {
        Measured {
            overload: self.overload.min(other.overload),
            deviation: self.deviation.min(other.deviation),
            kept: self.kept.min(other.kept),
            most: self.most.min(other.most),
            ..self
        }
    }
}

/// Measures, and says what to use and why.
pub(crate) fn advise(lab: &Lab, conf: &Path) -> Result<String, String> {
    let path = conf.canonicalize().map_err(|e| format!("{}: {e}", conf.display()))?;
    let tree = weir_conf::read(&path, None);
    if let Some(error) = &tree.broken {
        return Err(tree.sources.first_line(error));
    }
    let shape = shape(&tree.main);
    let asked = shape.processes * shape.threads;
    if asked < 2 {
        return Ok("There is one loop, so nothing is to be spread.\n".to_owned());
    }
    let mut ways = MAIN.to_vec();
    if !ways.iter().any(|(_, policy)| *policy == shape.policy) {
        ways.insert(0, ("as it is", &shape.policy));
    }
    let mut measured = Vec::new();
    for (label, policy) in ways {
        let mut way = measure(lab, &shape, label, policy)?;
        for _ in 1..lab.size(ROUNDS, 1) {
            way = way.better(measure(lab, &shape, label, policy)?);
        }
        measured.push(way);
    }
    let loops = played(&shape);
    let mut finding = Finding::default();
    finding.table("doctor", &table(&shape, &measured));
    finding.remark(&format!(
        "The better of {ROUNDS} runs each. Overload: {} clients, each request holds its loop for 2 ms, a connection for each request; the deviation says how far \
         clients are from waiting alike. Kept: {} connections that stay, {KEPT} for each loop if they are spread evenly. \
         * is what the configuration comes to{}.",
        loops.0 * loops.1 * CROWD,
        loops.0 * loops.1 * KEPT,
        shape.said.map_or(" by default".to_owned(), |said| format!(" ({said})")),
    ));
    if loops.0 * loops.1 < asked {
        finding.remark(&format!("The configuration has {asked} loops; {MOST} were measured."));
    }
    finding.remark(&verdict(&shape, &measured));
    let (processes, threads) = (shape.processes, shape.threads);
    Ok(format!("{processes} processes with {threads} loops each\n\n{}", finding.text()))
}

fn table(shape: &Shape, measured: &[Measured]) -> Table {
    let mut table = Table::new(&[
        "accept_balance",
        "known as",
        "overload p99 ms",
        "deviation",
        "kept p99 ms",
        "most on one loop",
    ]);
    for way in measured {
        let mark = if way.policy == shape.policy { " *" } else { "" };
        table.row(&[
            format!("{}{mark}", way.policy),
            way.label.clone(),
            format!("{:.2}", way.overload),
            format!("{:.2}", way.deviation),
            format!("{:.2}", way.kept),
            way.most.to_string(),
        ]);
    }
    table
}

/// Processes and loops of each, as many as a small machine can play.
fn played(shape: &Shape) -> (usize, usize) {
    let processes = shape.processes.min(MOST);
    (processes, shape.threads.min((MOST / processes).max(1)))
}

fn measure(lab: &Lab, shape: &Shape, label: &str, policy: &str) -> Result<Measured, String> {
    let subject = lab.weir()?.policy(label, policy);
    let (processes, threads) = played(shape);
    let loops = processes * threads;
    let work = Some(Work::Sleep(WORK));
    let setup = Setup { processes, threads, work, log: true, ..Setup::default() };
    let time = lab.size(Duration::from_secs(3), Duration::from_millis(300));
    lab.step(&format!("{label}: overload"));
    let server = Running::start(&subject, &setup)?;
    let load = Load::closed(loops * CROWD, Closing::Always, time);
    let tally = lab.load(&server, &load, &mut |_| {})?.tally;
    let (overload, deviation) = (tally.percentile(99.0), tally.log2.deviation());
    drop(server);
    lab.step(&format!("{label}: connections that stay"));
    let server = Running::start(&subject, &setup)?;
    server.warm_up(loops + 2)?;
    let load =
        Load { connect_first: Some(APART), ..Load::closed(loops * KEPT, Closing::Never, time) };
    let kept = lab.load(&server, &load, &mut |_| {})?.tally.percentile(99.0);
    let most = server.served()?.connections.into_values().max().unwrap_or(0);
    let (label, policy) = (label.to_owned(), policy.to_owned());
    Ok(Measured { label, policy, overload, deviation, kept, most })
}

/// The best is the one whose worse situation is the least bad, each taken against the best there.
fn verdict(shape: &Shape, measured: &[Measured]) -> String {
    let least =
        |of: fn(&Measured) -> f64| measured.iter().map(of).fold(f64::INFINITY, f64::min).max(1e-9);
    let (overload, kept) = (least(|m| m.overload), least(|m| m.kept));
    let badness = |m: &Measured| (m.overload / overload).max(m.kept / kept);
    let best = measured.iter().min_by(|a, b| badness(a).total_cmp(&badness(b)));
    let Some(best) = best else { return String::new() };
    let mut out = format!(
        "Use accept_balance {}: its p99 is {:.1} times the best of the table under overload and {:.1} \
         times for connections that stay, and no other is as near to the best in its worse one.",
        best.policy,
        best.overload / overload,
        best.kept / kept
    );
    let now = measured.iter().find(|m| m.policy == shape.policy && m.policy != best.policy);
    match now {
        None => out += " That is what the configuration has.",
        Some(now) => {
            let (a, b) = (now.overload / best.overload, now.kept / best.kept);
            out += &format!(
                " With {} as it is, the p99 is {a:.1} times that under overload, and {b:.1} times for connections that stay, of \
                 which one loop has {} ({}: {}).",
                now.policy, now.most, best.policy, best.most
            );
            if (0.9..1.1).contains(&badness(now)) {
                out += " The difference is small.";
            }
        }
    }
    out += " For an nginx of these workers, choose between the rows rotate (as it comes) and reuseport: the first where \
            requests are uneven or many, the second where connections stay long.";
    out
}

/// Reads a configuration as weir would: `accept_balance`, or nginx's own words for the same.
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
    let (policy, said) = match find(events, "accept_balance") {
        Some(policy) => (policy, Some("accept_balance")),
        None if has_reuseport(main) => ("reuseport".to_owned(), Some("listen ... reuseport")),
        None if find(events, "accept_mutex").as_deref() == Some("on") => {
            ("mutex".to_owned(), Some("accept_mutex on"))
        }
        None => ("fair".to_owned(), None),
    };
    Shape { processes: count("worker_processes"), threads: count("worker_threads"), policy, said }
}

/// A `listen` in some server asks for a queue for each worker.
fn has_reuseport(list: &[Directive]) -> bool {
    list.iter().any(|d| match d.name.is("listen") {
        true => d.args.iter().any(|word| word.is("reuseport")),
        false => has_reuseport(d.block()),
    })
}
