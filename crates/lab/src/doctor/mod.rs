//! `weir lab doctor`: which way to accept suits a configuration's number of workers.

mod advice;
mod measure;
mod shape;

use std::path::Path;
use std::process::Command;

use weir_conf::Sources;

use self::measure::{AcceptSetup, CROWD, KEPT, MeasuredSetup, WORK, measure};
use self::shape::{LoopSetup, shape};
use crate::experiment::MAIN;
use crate::finding::{FindingTable, LabFinding, wrap};
use crate::lab::Lab;
use crate::program::{Family, Program, Subject};

/// The number of measurements of each way.
const ROUNDS: usize = 2;
/// More loops than this would need more clients than a small machine can run.
const MOST: usize = 32;

/// A way of nginx, its configuration line, and the equivalent policy of weir.
type OfNginx = (fn(&Program) -> Subject, &'static str, &'static str);

const OF_NGINX: &[OfNginx] = &[
    (Program::one_queue, "nginx's default", "rotate"),
    (Program::accept_mutex, "accept_mutex on", "mutex"),
    (Program::reuseport, "listen ... reuseport", "reuseport"),
];

/// Measures, and advises a way with its reason.
pub(crate) fn advise(lab: &Lab, conf: &Path) -> Result<String, String> {
    let path = conf.canonicalize().map_err(|e| format!("{}: {e}", conf.display()))?;
    let tree = weir_conf::read(&path, None);
    if let Some(error) = &tree.broken {
        return Err(tree.sources.first_line(error));
    }
    lab.programs.iter().try_for_each(|program| checked(program, &path))?;
    let shape = shape(&tree.main);
    let mut out = told(&shape, &tree.sources, &path) + "\n";
    if shape.processes * shape.threads < 2 {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        out += &wrap(&format!(
            "There is one loop, so nothing is to be spread, and all ways to accept are the same. With worker_processes auto there \
             would be as many as CPUs, {cpus} on this machine."
        ));
        return Ok(out);
    }
    let ways = ways(lab, &shape)?;
    let rounds = lab.size(ROUNDS, 1);
    lab.bar.set_length((ways.len() * rounds * 2) as u64);
    let mut measured = Vec::new();
    for way in &ways {
        let mut best = measure(lab, played(&shape), way)?;
        for _ in 1..rounds {
            best = best.better(measure(lab, played(&shape), way)?);
        }
        measured.push(best);
    }
    let change = |to: &MeasuredSetup| change(&shape, &tree.sources, &path, to);
    out += &finding(&shape, rounds, &measured, change).text();
    Ok(out)
}

/// Refuses a configuration that the server refuses. One that only lacks something on this machine
/// (a directory for its logs, the right to read a key) may be sound where it is used.
fn checked(program: &Program, conf: &Path) -> Result<(), String> {
    if program.family == Family::Haproxy {
        return Ok(());
    }
    let output = Command::new(&program.path).args(["-t", "-q", "-c"]).arg(conf).output();
    let output = output.map_err(|e| format!("cannot run {}: {e}", program.path.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let why: Vec<&str> = said.lines().filter(|line| !line.contains("[alert]")).collect();
    let lacks = why.iter().any(|line| line.contains(" failed ("));
    if output.status.success() || lacks {
        return Ok(());
    }
    Err(format!("{} -t refuses this configuration:\n{}", program.name, why.join("\n")))
}

/// What was read from the configuration, as text.
fn told(shape: &LoopSetup, sources: &Sources, conf: &Path) -> String {
    let said = match &shape.said {
        Some(said) => {
            let by = if said.words == "accept_balance" { "" } else { ", by weir's name" };
            let (words, place) = (said.words, said.place(sources, conf));
            format!(
                "The workers share new connections as {words} says ({place}): accept_balance {}{by}.",
                shape.policy
            )
        }
        None => "Nothing is said about how they share new connections: weir takes accept_balance fair then, nginx what weir calls \
                 rotate."
            .to_owned(),
    };
    wrap(&format!(
        "{}: {} with {} each. {said}",
        conf.display(),
        counted(shape.processes, "worker process", "es"),
        counted(shape.threads, "loop", "s"),
    ))
}

fn counted(n: usize, one: &str, more: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}{more}") }
}

/// The ways to compare: weir's most different policies and the configured one, and all ways of
/// nginx.
fn ways(lab: &Lab, shape: &LoopSetup) -> Result<Vec<AcceptSetup>, String> {
    let mut all = Vec::new();
    for program in &lab.programs {
        match program.family {
            Family::Weir => {
                let mut policies = MAIN.to_vec();
                if !policies.iter().any(|(_, policy)| *policy == shape.policy) {
                    policies.insert(0, ("as it is", &shape.policy));
                }
                all.extend(policies.into_iter().map(|(label, policy)| AcceptSetup {
                    subject: program.policy(label, policy),
                    label: label.to_owned(),
                    policy: policy.to_owned(),
                    setting: format!("accept_balance {policy}"),
                    now: policy == shape.policy,
                }));
            }
            Family::Nginx if program.can_work() => {
                // nginx does not know accept_balance.
                let now = OF_NGINX.iter().map(|way| way.2).find(|policy| *policy == shape.policy);
                let now = now.unwrap_or("rotate");
                all.extend(OF_NGINX.iter().map(|(subject, setting, policy)| AcceptSetup {
                    subject: subject(program),
                    label: subject(program).label,
                    policy: (*policy).to_owned(),
                    setting: (*setting).to_owned(),
                    now: *policy == now,
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

/// The number of processes, and of loops in each, that a small machine can run.
fn played(shape: &LoopSetup) -> (usize, usize) {
    let processes = shape.processes.min(MOST);
    (processes, shape.threads.min((MOST / processes).max(1)))
}

/// The advice first, then its figures.
fn finding(
    shape: &LoopSetup,
    rounds: usize,
    all: &[MeasuredSetup],
    change: impl Fn(&MeasuredSetup) -> String,
) -> LabFinding {
    let mut finding = LabFinding::default();
    let (processes, threads) = played(shape);
    let (loops, asked) = (processes * threads, shape.processes * shape.threads);
    let mut servers: Vec<&str> = all.iter().map(|m| m.program.as_str()).collect();
    servers.dedup();
    for server in &servers {
        let ways: Vec<&MeasuredSetup> = all.iter().filter(|m| m.program == *server).collect();
        finding.remark(&advice::advice(server, &ways, &change));
        let is_weirs_default = shape.said.is_none() && ways.iter().any(|m| m.policy == "fair");
        if is_weirs_default
            && servers.len() == 1
            && let Some(text) = advice::beside_nginx(&ways)
        {
            finding.remark(&text);
        }
    }
    finding.remark("What it rests on (* is what the configuration has):");
    finding.table("doctor", &table(all));
    let best = |each: usize| each as u128 * WORK.as_millis();
    let runs = match rounds {
        1 => "One short run each, so that the figures mean little.".to_owned(),
        n => format!("Of each, the better of {n} runs."),
    };
    finding.remark(&format!(
        "Every request holds its worker for 2 ms, as one does that computes or waits for a disk. Overload: {} clients ask without pause, \
         each request on a connection of its own; the least that their p99, the time within which 99 of 100 were answered, can be is \
         {} ms. The deviation says how far clients are from waiting alike. Kept: {} connections that stay, {KEPT} for each \
         worker if they are spread evenly, which would be {} ms. {runs}",
        loops * CROWD,
        best(CROWD),
        loops * KEPT,
        best(KEPT),
    ));
    if threads > 1 {
        finding.remark("A worker is one loop here, of which each process has several.");
    }
    if loops < asked {
        finding.remark(&format!("The configuration has {asked} loops; {loops} were measured."));
    }
    finding
}

/// How to change the configuration to another way.
fn change(shape: &LoopSetup, sources: &Sources, conf: &Path, to: &MeasuredSetup) -> String {
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
        (_, "nginx's default") => String::new(),
        (_, setting) => format!("write {setting}; in events {{ }}"),
    };
    let joint =
        if away.is_empty() || add.is_empty() || add.starts_with(';') { "" } else { ", and " };
    let text = format!("{away}{joint}{add}");
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    if text.is_empty() { text } else { format!("{first}{}.", letters.as_str()) }
}

fn table(measured: &[MeasuredSetup]) -> FindingTable {
    let heads =
        ["", "known as", "overload p99 ms", "deviation", "kept p99 ms", "most on one worker"];
    let mut table = FindingTable::new(&heads);
    for way in measured {
        let mark = if way.now { " *" } else { "" };
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
