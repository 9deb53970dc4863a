//! `weir lab doctor`: which way to accept suits a configuration's number of workers.

mod advice;
mod measure;
mod shape;

use std::fmt::Write as _;
use std::path::Path;

use weir_conf::Sources;

use self::measure::{CROWD, KEPT, Measured, Way, measure};
use self::shape::{Shape, shape};
use crate::experiments::MAIN;
use crate::finding::{Finding, Table};
use crate::lab::Lab;
use crate::program::{Family, Program, Subject};

/// Each way is measured so often.
const ROUNDS: usize = 2;
/// More loops than this would need more clients than a small machine can play.
const MOST: usize = 32;

/// A way of nginx, what to write for it, and the policy of weir that it comes to.
type OfNginx = (fn(&Program) -> Subject, &'static str, &'static str);

const OF_NGINX: &[OfNginx] = &[
    (Program::one_queue, "as it comes", "rotate"),
    (Program::accept_mutex, "accept_mutex on", "mutex"),
    (Program::reuseport, "listen ... reuseport", "reuseport"),
];

/// Measures, and says what to use and why.
pub(crate) fn advise(lab: &Lab, conf: &Path) -> Result<String, String> {
    let path = conf.canonicalize().map_err(|e| format!("{}: {e}", conf.display()))?;
    let tree = weir_conf::read(&path, None);
    if let Some(error) = &tree.broken {
        return Err(tree.sources.first_line(error));
    }
    let shape = shape(&tree.main);
    let mut out = told(&shape, &tree.sources, &path);
    if shape.processes * shape.threads < 2 {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let _ = writeln!(
            out,
            "There is one loop, so nothing is to be spread, and all ways to accept are the same. With worker_processes auto there \
             would be as many as CPUs, {cpus} on this machine."
        );
        return Ok(out);
    }
    let ways = ways(lab, &shape)?;
    let mut measured = Vec::new();
    for way in &ways {
        let mut best = measure(lab, played(&shape), way)?;
        for _ in 1..lab.size(ROUNDS, 1) {
            best = best.better(measure(lab, played(&shape), way)?);
        }
        measured.push(best);
    }
    out += &finding(&shape, &measured, |to| change(&shape, &tree.sources, &path, to)).text();
    Ok(out)
}

/// What was read from the configuration.
fn told(shape: &Shape, sources: &Sources, conf: &Path) -> String {
    let said = match &shape.said {
        Some(said) => format!("{}, {}", said.words, said.place(sources, conf)),
        None => "weir's default; nothing else is said".to_owned(),
    };
    format!(
        "{}: {} with {} each; accept_balance {} ({said})\n\n",
        conf.display(),
        counted(shape.processes, "worker process", "es"),
        counted(shape.threads, "loop", "s"),
        shape.policy,
    )
}

fn counted(n: usize, one: &str, more: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}{more}") }
}

/// What to compare: of weir the policies that differ most and its own, of nginx all it has.
fn ways(lab: &Lab, shape: &Shape) -> Result<Vec<Way>, String> {
    let mut all = Vec::new();
    for program in &lab.programs {
        match program.family {
            Family::Weir => {
                let mut policies = MAIN.to_vec();
                if !policies.iter().any(|(_, policy)| *policy == shape.policy) {
                    policies.insert(0, ("as it is", &shape.policy));
                }
                all.extend(policies.into_iter().map(|(label, policy)| Way {
                    subject: program.policy(label, policy),
                    label: label.to_owned(),
                    policy: policy.to_owned(),
                    setting: format!("accept_balance {policy}"),
                }));
            }
            Family::Nginx if program.can_work() => {
                all.extend(OF_NGINX.iter().map(|(subject, setting, policy)| Way {
                    subject: subject(program),
                    label: program.name.clone(),
                    policy: (*policy).to_owned(),
                    setting: (*setting).to_owned(),
                }));
            }
            Family::Nginx => {
                let name = &program.name;
                return Err(format!(
                    "{name} has no handler that holds up a worker; see docs/lab.md"
                ));
            }
            Family::Haproxy => {
                let name = &program.name;
                return Err(format!(
                    "{name} does not read an nginx.conf; weir lab run tells how it spreads connections"
                ));
            }
        }
    }
    Ok(all)
}

/// Processes and loops of each, as many as a small machine can play.
fn played(shape: &Shape) -> (usize, usize) {
    let processes = shape.processes.min(MOST);
    (processes, shape.threads.min((MOST / processes).max(1)))
}

fn finding(shape: &Shape, all: &[Measured], change: impl Fn(&Measured) -> String) -> Finding {
    let mut finding = Finding::default();
    finding.table("doctor", &table(shape, all));
    let (processes, threads) = played(shape);
    let (loops, asked) = (processes * threads, shape.processes * shape.threads);
    finding.remark(&format!(
        "* is what the configuration has. Overload: {} clients, each request holds its loop for 2 ms, a connection for each \
         request; p99 is the time that 99 of 100 requests did not exceed, and the deviation says how far clients are from waiting \
         alike. Kept: {} connections that stay, {KEPT} for each loop if they are spread evenly. \
         The better of {ROUNDS} runs each.",
        loops * CROWD,
        loops * KEPT,
    ));
    if loops < asked {
        finding.remark(&format!("The configuration has {asked} loops; {loops} were measured."));
    }
    let mut servers: Vec<&str> = all.iter().map(|m| m.program.as_str()).collect();
    servers.dedup();
    for server in &servers {
        let ways: Vec<&Measured> = all.iter().filter(|m| m.program == *server).collect();
        finding.remark(&advice::advice(server, &ways, &shape.policy, &change));
    }
    if servers.len() == 1 {
        finding.remark(
            "Another server, or another build: --server NAME=BINARY, once for each. What nginx does as it comes (since 1.21.6) is \
             the policy rotate.",
        );
    }
    finding
}

/// How to come from what the configuration has to another way.
fn change(shape: &Shape, sources: &Sources, conf: &Path, to: &Measured) -> String {
    let place = shape.said.as_ref().map(|said| (said.words, said.place(sources, conf)));
    let away = match &place {
        Some(("listen ... reuseport", place)) => {
            format!("Take reuseport away from the listen lines, first of them {place}")
        }
        Some((words, place)) => format!("Take {words} away in {place}"),
        None => String::new(),
    };
    let add = match (to.policy.as_str(), to.setting.as_str()) {
        ("fair", _) if place.is_some() => "; fair is what weir does by default".to_owned(),
        ("reuseport", _) => "add reuseport to the first listen of each address".to_owned(),
        (_, "as it comes") => String::new(),
        (_, setting) => format!("write {setting}; in events {{ }}"),
    };
    let joint =
        if away.is_empty() || add.is_empty() || add.starts_with(';') { "" } else { ", and " };
    let text = format!("{away}{joint}{add}");
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    if text.is_empty() { text } else { format!("{first}{}.", letters.as_str()) }
}

fn table(shape: &Shape, measured: &[Measured]) -> Table {
    let heads = ["", "known as", "overload p99 ms", "deviation", "kept p99 ms", "most on one loop"];
    let mut table = Table::new(&heads);
    for way in measured {
        let mark = if way.policy == shape.policy { " *" } else { "" };
        table.row(&[
            format!("{}{mark}", way.setting),
            way.label.clone(),
            format!("{:.2}", way.overload),
            format!("{:.2}", way.deviation),
            format!("{:.2}", way.kept),
            way.most.to_string(),
        ]);
    }
    table
}
