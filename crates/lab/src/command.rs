//! The command line of `weir lab`.

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use weir_print::Unprinted;

use crate::experiment::Experiment;
use crate::experiments::{ALL, why_absent};
use crate::finding::{LabFinding, wrap};
use crate::lab::Lab;
use crate::program::{Family, Program};
use crate::report::{self, MachineFacts, Noise};
use crate::running::RunningServer;
use crate::slow_disk;

/// Repeats the published experiments about accept queues on this machine.
#[derive(Debug, Parser)]
#[command(name = "weir lab", bin_name = "weir lab")]
pub struct Options {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Says which experiments there are, and what they ask
    List,
    /// Runs experiments and writes what they find
    Run {
        /// Names from the list, or all
        #[arg(required = true)]
        names: Vec<String>,
        /// A server: NAME=BINARY of weir, nginx or HAProxy [default: this weir, and nginx if it is installed]
        #[arg(long = "server", value_name = "NAME=BINARY")]
        servers: Vec<String>,
        /// A few seconds for each, to see that it works; the figures mean little
        #[arg(long)]
        brief: bool,
        /// How often each is done; the middle one is shown, with the range of all [default: 3; with --brief 1]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=99))]
        rounds: Option<u8>,
        /// Where findings go
        #[arg(long, value_name = "DIR", default_value = "weir-lab")]
        dir: PathBuf,
    },
    /// Measures the ways to accept with the worker count of a configuration, and advises
    Doctor {
        /// The configuration
        #[arg(short, value_name = "FILE")]
        conf: PathBuf,
        /// A server to advise about: NAME=BINARY of weir or nginx [default: this weir]
        #[arg(long = "server", value_name = "NAME=BINARY")]
        servers: Vec<String>,
        /// A second or two; the figures mean little
        #[arg(long)]
        brief: bool,
    },
    /// Asks a model of the kernel's queues that runs the server's own policies
    Sim {
        /// The weir to set beside the model: NAME=BINARY [default: this one]
        #[arg(long = "server", value_name = "NAME=BINARY")]
        servers: Vec<String>,
        /// For so many workers
        #[arg(long, value_name = "N,N...", value_delimiter = ',', default_values_t = [12, 64, 512])]
        workers: Vec<usize>,
        /// Tells the kernel's walk along the list of waiters, step by step, and nothing else
        #[arg(long)]
        explain: bool,
        /// The model alone, without measuring how near it is to this machine
        #[arg(long)]
        model: bool,
        /// Less of everything, to see that it works
        #[arg(long)]
        brief: bool,
    },
    /// Shows a directory at a mount point where operations are slow now and then
    Slowdisk(slow_disk::Options),
    /// Makes one page, report.html, of all findings
    Report {
        /// Where the findings are
        #[arg(long, value_name = "DIR", default_value = "weir-lab")]
        dir: PathBuf,
    },
}

/// Runs `weir lab`. Returns the exit status.
pub fn lab(options: Options) -> i32 {
    let done = match options.command {
        LabCommand::List => list(),
        LabCommand::Run { names, servers, brief, rounds, dir } => {
            let rounds = rounds.unwrap_or(if brief { 1 } else { 3 });
            run(&names, &servers, brief, rounds, &dir)
        }
        LabCommand::Doctor { conf, servers, brief } => advise(&conf, &servers, brief),
        LabCommand::Sim { explain: true, .. } => print(crate::explain::explain()),
        LabCommand::Sim { servers, workers, model, brief, .. } => {
            simulate(&servers, &workers, model, brief)
        }
        LabCommand::Slowdisk(options) => slow_disk::run(options),
        LabCommand::Report { dir } => report(&dir),
    };
    match done {
        Ok(()) | Err(LabError::NoReader) => 0,
        Err(LabError::Failed(text)) => {
            eprintln!("weir lab: {text}");
            1
        }
    }
}

/// Why `weir lab` ends early.
pub(crate) enum LabError {
    /// The reader of standard output has closed it. This is no error.
    NoReader,
    /// A message for the user.
    Failed(String),
}

impl From<String> for LabError {
    fn from(text: String) -> LabError {
        LabError::Failed(text)
    }
}

impl From<Unprinted> for LabError {
    fn from(why: Unprinted) -> LabError {
        match why {
            Unprinted::NoReader => LabError::NoReader,
            Unprinted::Failed(error) => LabError::Failed(error.to_string()),
        }
    }
}

/// Prints to standard output. [`LabError::NoReader`] if its reader has closed it.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Result<(), LabError> {
    Ok(weir_print::print_to_reader(text)?)
}

fn list() -> Result<(), LabError> {
    let lines =
        ALL.iter().map(|experiment| format!("{:12}{}\n", experiment.name, experiment.question));
    print(lines.collect::<String>())
}

fn run(
    names: &[String],
    servers: &[String],
    brief: bool,
    rounds: u8,
    dir: &Path,
) -> Result<(), LabError> {
    let chosen = choose(names)?;
    let programs = if servers.is_empty() { default_programs()? } else { named_programs(servers)? };
    let bar = ProgressBar::new(chosen.len() as u64 * u64::from(rounds));
    bar.set_style(style("{spinner} {pos}/{len} {elapsed} {prefix}: {msg}"));
    let lab = Lab::new(programs, brief, bar);
    let machine = MachineFacts::look(&lab.programs, brief);
    lab.bar.suspend(|| print(wrap(&machine.text()) + "\n"))?;
    let mut failed = Vec::new();
    for experiment in chosen {
        lab.bar.set_prefix(experiment.name);
        let mut noise = Noise::default();
        let done = (0..rounds).map(|_| {
            lab.step("how quiet is the machine?");
            noise = noise.or(Noise::look());
            let done = (experiment.run)(&lab);
            lab.bar.inc(1);
            done
        });
        let shown = done.collect::<Result<Vec<_>, _>>().map(LabFinding::of_rounds);
        let failures = lab.failures();
        match shown {
            Ok(None) => {}
            Ok(Some(mut finding)) => {
                for program in &lab.programs {
                    if let Some(why) = why_absent(experiment, program) {
                        finding.remark(&format!("{} takes no part: {why}.", program.name));
                    }
                }
                if let Some(failures) = failures {
                    finding.remark(&failures);
                }
                report::write(dir, experiment, &finding, &machine, noise)
                    .map_err(|e| e.to_string())?;
                let text = report::text(experiment, &finding);
                let noise = wrap(&noise.text());
                lab.bar.suspend(|| print(format!("{text}{noise}\n\n")))?;
            }
            Err(text) => failed.push(format!("{}: {text}", experiment.name)),
        }
    }
    lab.bar.finish_and_clear();
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

fn simulate(
    servers: &[String],
    workers: &[usize],
    model: bool,
    brief: bool,
) -> Result<(), LabError> {
    if let Some(odd) = workers.iter().find(|n| !(2..=4096).contains(*n)) {
        return Err(format!("{odd} workers: 2 to 4096 can be asked about").into());
    }
    let programs = if servers.is_empty() { vec![this_weir()?] } else { named_programs(servers)? };
    if let Some(other) = programs.iter().find(|p| p.family != Family::Weir) {
        return Err(format!(
            "{}: the model runs weir's policies, so only a weir can stand beside it",
            other.name
        )
        .into());
    }
    let programs = if model { Vec::new() } else { programs };
    let lab = Lab::new(programs, brief, ProgressBar::new_spinner());
    let finding = crate::experiments::sim::study(&lab, workers);
    lab.bar.finish_and_clear();
    print(format!("{}{}\n", head(&lab), finding?.text()))
}

fn advise(conf: &Path, servers: &[String], brief: bool) -> Result<(), LabError> {
    let programs = if servers.is_empty() { vec![this_weir()?] } else { named_programs(servers)? };
    let bar = ProgressBar::new(1).with_style(style("{spinner} {pos}/{len} {elapsed}: {msg}"));
    let lab = Lab::new(programs, brief, bar);
    let advice = crate::doctor::advise(&lab, conf);
    lab.bar.finish_and_clear();
    print(format!("{}{}\n", head(&lab), advice?))
}

/// The machine and its noise, as text.
fn head(lab: &Lab) -> String {
    let machine = MachineFacts::look(&lab.programs, lab.brief);
    wrap(&format!("{} {}", machine.text(), Noise::look().text())) + "\n"
}

fn report(dir: &Path) -> Result<(), LabError> {
    let (file, count) = report::write_page(dir).map_err(|e| e.to_string())?;
    print(format!("{}: {count} experiments\n", file.display()))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

fn choose(names: &[String]) -> Result<Vec<&'static Experiment>, String> {
    if names.iter().any(|name| name == "all") {
        return Ok(ALL.iter().collect());
    }
    let find = |name: &String| {
        let known = || format!("{name:?} is no experiment; weir lab list tells which there are");
        ALL.iter().find(|e| e.name == name).ok_or_else(known)
    };
    names.iter().map(find).collect()
}

fn this_weir() -> Result<Program, String> {
    let me = std::env::current_exe().map_err(|e| format!("where am I: {e}"))?;
    Program::inspect("weir", &me)
}

/// This weir, and nginx if it is in `PATH` or `/usr/sbin`.
fn default_programs() -> Result<Vec<Program>, String> {
    let mut all = vec![this_weir()?];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    if let Some(nginx) = places.map(|dir| dir.join("nginx")).find(|file| file.is_file()) {
        all.push(calibrated(Program::inspect("nginx", &nginx)?));
    }
    Ok(all)
}

fn named_programs(servers: &[String]) -> Result<Vec<Program>, String> {
    let inspect = |text: &String| {
        let (name, path) = text.split_once('=').ok_or(format!("{text:?} is not NAME=BINARY"))?;
        Ok(calibrated(Program::inspect(name, Path::new(path))?))
    };
    servers.iter().map(inspect).collect()
}

fn calibrated(program: Program) -> Program {
    program.calibrated(RunningServer::can_open_slowly, RunningServer::measure_work)
}
