//! `weir lab doctor`: finds the way to accept that suits a configuration's number of workers.

mod advice;
mod measure;
mod shape;

use std::path::Path;
use std::process::Command;

use weir_conf::Sources;

use self::measure::{AcceptSetup, CLIENTS_PER_LOOP, KEPT_PER_LOOP, MeasuredSetup, WORK, measure};
use self::shape::{LoopSetup, shape};
use crate::experiment::MAIN;
use crate::finding::{FindingTable, LabFinding, wrap};
use crate::lab::Lab;
use crate::program::{Family, Program, Subject};

/// Measurements per way.
const ROUNDS: usize = 2;
/// The most loops to measure. More would need more clients than a small machine can run.
const MAX_LOOPS: usize = 32;

/// How to set up a way with nginx, its configuration line, and the equivalent policy of weir.
type NginxWay = (fn(&Program) -> Subject, &'static str, &'static str);

const NGINX_WAYS: &[NginxWay] = &[
    (Program::one_queue, "nginx's default", "rotate"),
    (Program::accept_mutex, "accept_mutex on", "mutex"),
    (Program::reuseport, "listen ... reuseport", "reuseport"),
];

/// Measures all ways. Returns advice with its reason.
pub(crate) fn advise(lab: &Lab, conf: &Path) -> Result<String, String> {
    let path = conf.canonicalize().map_err(|e| format!("{}: {e}", conf.display()))?;
    let tree = weir_conf::read(&path, None);
    if let Some(error) = &tree.broken {
        return Err(tree.sources.first_line(error));
    }
    lab.programs.iter().try_for_each(|program| check(program, &path))?;
    let shape = shape(&tree.main);
    let mut out = describe(&shape, &tree.sources, &path) + "\n";
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
        let mut best = measure(lab, measured_size(&shape), way)?;
        for _ in 1..rounds {
            best = best.better(measure(lab, measured_size(&shape), way)?);
        }
        measured.push(best);
    }
    let failures = lab.failures().unwrap_or_default();
    if !all_say_something(&measured) {
        return Err(format!("the ways cannot be compared: {failures}"));
    }
    let change = |to: &MeasuredSetup| change(&shape, &tree.sources, &path, to);
    let mut finding = finding(&shape, rounds, &measured, change);
    if !failures.is_empty() {
        finding.remark(&format!("{failures} inf: over one of 100 failed."));
    }
    out += &finding.text();
    Ok(out)
}

/// Whether each server has, in each situation, a way that answers 99 of 100 requests.
fn all_say_something(measured: &[MeasuredSetup]) -> bool {
    measured.iter().all(|one| {
        let ways = || measured.iter().filter(|other| other.program == one.program);
        ways().any(|way| way.overload.is_finite()) && ways().any(|way| way.kept.is_finite())
    })
}

/// Checks a configuration with `-t` of the server. A failed system call is no objection: a missing
/// directory or key may exist on the machine that uses the configuration.
fn check(program: &Program, conf: &Path) -> Result<(), String> {
    if program.family == Family::Haproxy {
        return Ok(());
    }
    let output = Command::new(&program.path).args(["-t", "-q", "-c"]).arg(conf).output();
    let output = output.map_err(|e| format!("cannot run {}: {e}", program.path.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let why: Vec<&str> = errors.lines().filter(|line| !line.contains("[alert]")).collect();
    let lacks = why.iter().any(|line| line.contains(" failed ("));
    if output.status.success() || lacks {
        return Ok(());
    }
    Err(format!("{} -t refuses this configuration:\n{}", program.name, why.join("\n")))
}

/// Describes the loops and the policy of the configuration.
fn describe(shape: &LoopSetup, sources: &Sources, conf: &Path) -> String {
    let policy = match &shape.chosen_by {
        Some(directive) => {
            let by = if directive.words == "accept_balance" { "" } else { ", by weir's name" };
            let (words, place) = (directive.words, directive.place(sources, conf));
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
        "{}: {} with {} each. {policy}",
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
                    is_configured: policy == shape.policy,
                }));
            }
            Family::Nginx if program.can_work() => {
                // nginx does not know accept_balance.
                let configured =
                    NGINX_WAYS.iter().map(|way| way.2).find(|policy| *policy == shape.policy);
                let configured = configured.unwrap_or("rotate");
                all.extend(NGINX_WAYS.iter().map(|(subject, setting, policy)| AcceptSetup {
                    subject: subject(program),
                    label: subject(program).label,
                    policy: (*policy).to_owned(),
                    setting: (*setting).to_owned(),
                    is_configured: *policy == configured,
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

/// The number of processes and of loops per process that are measured.
fn measured_size(shape: &LoopSetup) -> (usize, usize) {
    let processes = shape.processes.min(MAX_LOOPS);
    (processes, shape.threads.min((MAX_LOOPS / processes).max(1)))
}

/// The finding: the advice, then its measurements.
fn finding(
    shape: &LoopSetup,
    rounds: usize,
    all: &[MeasuredSetup],
    change: impl Fn(&MeasuredSetup) -> String,
) -> LabFinding {
    let mut finding = LabFinding::default();
    let (processes, threads) = measured_size(shape);
    let (loops, asked) = (processes * threads, shape.processes * shape.threads);
    let mut servers: Vec<&str> = all.iter().map(|m| m.program.as_str()).collect();
    servers.dedup();
    for server in &servers {
        let ways: Vec<&MeasuredSetup> = all.iter().filter(|m| m.program == *server).collect();
        finding.remark(&advice::advice(server, &ways, &change));
        let is_weirs_default = shape.chosen_by.is_none() && ways.iter().any(|m| m.policy == "fair");
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
         {} ms. The deviation says how far clients are from waiting alike. Kept: {} connections that stay, {KEPT_PER_LOOP} for each \
         worker if they are spread evenly, which would be {} ms. {runs}",
        loops * CLIENTS_PER_LOOP,
        best(CLIENTS_PER_LOOP),
        loops * KEPT_PER_LOOP,
        best(KEPT_PER_LOOP),
    ));
    if threads > 1 {
        finding.remark("A worker is one loop here, of which each process has several.");
    }
    if loops < asked {
        finding.remark(&format!("The configuration has {asked} loops; {loops} were measured."));
    }
    finding
}

/// Describes how to change the configuration to another way.
fn change(shape: &LoopSetup, sources: &Sources, conf: &Path, to: &MeasuredSetup) -> String {
    let place =
        shape.chosen_by.as_ref().map(|directive| (directive.words, directive.place(sources, conf)));
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
        let mark = if way.is_configured { " *" } else { "" };
        table.row(&[
            format!("{}{mark}", way.setting),
            way.label.clone(),
            format!("{:.2}", way.overload),
            format!("{:.2}", way.deviation),
            format!("{:.2}", way.kept),
            way.most_on_one_worker.to_string(),
        ]);
    }
    table
}
