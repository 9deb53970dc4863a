//! A slow worker of another server, with and without `weir balance`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use weir_bench::RunOutcome;

use super::steer::open_loop;
use crate::chart::Chart;
use crate::comparison::{Better, Comparison};
use crate::experiment::Experiment;
use crate::finding::{FindingTable, LabFinding};
use crate::hindered::{Hindered, STOPPED, WORKING};
use crate::lab::Lab;
use crate::program::{Family, Program, ServerSetup, Subject};
use crate::running::{RunningServer, ServedByWorker, pause};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "heal",
    title: "A slow worker of another server",
    question: "A server that runs has a queue for each worker (nginx: listen ... reuseport), and one of its workers is slow. What does weir balance do \
               for its clients, and what is left when it ends?",
    published: "Nothing: the articles end with the advice to give the server one queue, which takes another configuration or another \
                server. Here neither is touched.",
    run,
};

const WORKERS: usize = 4;
/// How long to wait after `weir balance` is killed. The kernel follows its last table for a second.
const TABLE_EXPIRY: Duration = Duration::from_millis(1200);

/// The phases of the experiment: the name, and the path that clients request in it.
const PHASES: [(&str, &str); 4] = [
    ("the kernel's hash", "/before"),
    ("weir balance", "/steered"),
    ("after its end", "/after"),
    ("after it was killed", "/killed"),
];

/// The results of one server.
struct HealResult {
    label: String,
    outcomes: Vec<RunOutcome>,
    /// The share of requests that the slow worker served in each phase, in percent.
    shares: Vec<f64>,
}

fn run(lab: &Lab) -> Result<LabFinding, String> {
    let mut finding = LabFinding::default();
    for subject in subjects(lab)? {
        match heal(lab, &subject)? {
            Ok(healed) => report(&mut finding, &healed),
            Err(why) => finding.remark(&format!("{}: not steered. {why}", subject.label)),
        }
    }
    finding.because(
        "weir balance looks each 2 ms how many connections wait for whom and who takes any, and tells a program of the kernel \
         which part of the new ones each worker is to get. When it ends, it takes the program away; when it is killed, what the \
         program was told holds for a second and no longer.",
    );
    finding.remark(&format!(
        "Four workers with a queue each, one of which is stopped for {} ms of each {}, as one is that waits for a slow disk; connections begin \
         on time, a request each, whatever the answers do.",
        STOPPED.as_millis(),
        (STOPPED + WORKING).as_millis(),
    ));
    Ok(finding)
}

/// Each nginx with a queue per worker. Without an nginx: weir with a queue per loop.
fn subjects(lab: &Lab) -> Result<Vec<Subject>, String> {
    let nginx = lab.programs.iter().filter(|program| program.family == Family::Nginx);
    let all: Vec<Subject> = nginx.map(Program::reuseport).collect();
    Ok(if all.is_empty() { vec![lab.weir()?.policy("reuseport", "reuseport")] } else { all })
}

/// Measures before steering, while `weir balance` steers, after it ended and after it was killed.
/// If it does not steer, returns the reason.
fn heal(lab: &Lab, subject: &Subject) -> Result<Result<HealResult, String>, String> {
    let server = RunningServer::start(
        subject,
        &ServerSetup { processes: WORKERS, log: true, ..ServerSetup::default() },
    )?;
    let slow = server.any_worker()?;
    let hindered = Hindered::slow(slow)?;
    let weir = lab.weir()?;
    let load = |(name, path): (&str, &str)| {
        lab.step(&format!("{}, {name}", subject.label));
        lab.load_at(path, &server, &open_loop(lab), &mut |_| {})
    };
    let [before, steered, after, killed] = PHASES;
    let mut outcomes = vec![load(before)?];
    let balance = match BalanceProcess::start(weir, &server)? {
        Ok(balance) => balance,
        Err(why) => return Ok(Err(why)),
    };
    outcomes.push(load(steered)?);
    balance.end()?;
    outcomes.push(load(after)?);
    let balance = BalanceProcess::start(weir, &server)?;
    drop(balance?);
    pause(TABLE_EXPIRY);
    outcomes.push(load(killed)?);
    drop(hindered);
    let served = server.served()?;
    let shares = PHASES.iter().map(|(_, path)| share(&served, path, slow)).collect();
    Ok(Ok(HealResult { label: subject.label.clone(), outcomes, shares }))
}

/// A worker's share of the requests for a path, in percent.
fn share(served: &ServedByWorker, path: &str, worker: u32) -> f64 {
    let (mut own, mut all) = (0, 0);
    for ((who, _), requests) in served.by_path.iter().filter(|((_, of), _)| of == path) {
        all += requests;
        // A loop's name begins with its process id.
        if who.split('-').next() == Some(worker.to_string().as_str()) {
            own += requests;
        }
    }
    100.0 * own as f64 / f64::from(u32::try_from(all).unwrap_or(u32::MAX).max(1))
}

fn report(finding: &mut LabFinding, healed: &HealResult) {
    let HealResult { label, outcomes, shares } = healed;
    let mut table = FindingTable::new(&[
        label.as_str(),
        "p50 ms",
        "p90",
        "p99",
        "p99.9",
        "lost",
        "the slow one's part",
    ]);
    for (((name, _), outcome), share) in PHASES.iter().zip(outcomes).zip(shares) {
        let at = [50.0, 90.0, 99.0, 99.9].map(|percent| outcome.tally.percentile(percent));
        let mut cells = vec![(*name).to_owned()];
        cells.extend(at.map(|ms| format!("{ms:.2}")));
        cells.extend([outcome.tally.errors().to_string(), format!("{share:.0} %")]);
        table.row(&cells);
    }
    let name: String = label.chars().filter(char::is_ascii_alphanumeric).collect();
    finding.table(&name, &table);
    let runs = PHASES.iter().map(|(name, _)| *name).zip(outcomes);
    let title = format!("{label}: what clients wait");
    finding.chart(
        Chart::percentiles(&title, runs)
            .caption("Its configuration and its processes are the same all the time."),
    );
    let p99: Vec<f64> = outcomes.iter().map(|run| run.tally.percentile(99.0)).collect();
    let [before, steered, after, killed] = p99[..] else { return };
    let [own, ..] = PHASES.map(|(name, _)| name);
    let here = Comparison::new("p99", "ms", Better::Less, ("weir balance", steered));
    let here = here.beside((own, before));
    finding.beside_compared(&format!("p99 without weir balance and with it, {label}"), "-", here);
    let here = format!("{after:.1} ms, {killed:.1} when it was killed");
    finding.beside("p99 after it has ended", "-", here);
    if finding.answer().is_none() {
        let what = format!("p99 of {label}, one worker slow,");
        let answer = Comparison::new(&what, "ms", Better::Less, ("weir balance", steered));
        finding.verdict(answer.beside((own, before)).beside(("it ended", after)), "");
    }
}

/// A running `weir balance`. It is killed when this is dropped.
struct BalanceProcess {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl BalanceProcess {
    /// Starts it. Returns once it steers, or the reason why it does not.
    fn start(
        weir: &Program,
        server: &RunningServer,
    ) -> Result<Result<BalanceProcess, String>, String> {
        let mut command = Command::new(&weir.path);
        command.args(["balance", "--look", "0", "--pid", &server.master().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("weir balance: {e}"))?;
        let output = child.stdout.take().ok_or("weir balance has no output")?;
        let mut balance = BalanceProcess { child, output: BufReader::new(output) };
        let mut line = String::new();
        while !line.starts_with("steering") {
            line.clear();
            let read = balance.output.read_line(&mut line).map_err(|e| e.to_string())?;
            if read == 0 {
                let mut why = String::new();
                if let Some(mut from) = balance.child.stderr.take() {
                    let _ = from.read_to_string(&mut why);
                }
                return Ok(Err(why.trim().to_owned()));
            }
        }
        Ok(Ok(balance))
    }

    /// Ends it with SIGINT.
    fn end(mut self) -> Result<(), String> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or("weir balance has gone")?;
        kill_process(pid, Signal::INT).map_err(|e| e.to_string())?;
        let mut rest = String::new();
        let _ = self.output.read_to_string(&mut rest);
        match rest.contains("all is as it was before") {
            true => Ok(()),
            false => Err(format!("weir balance did not end well: {rest}")),
        }
    }
}

impl Drop for BalanceProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
