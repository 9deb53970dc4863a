//! The command line of `weir inspect`.

use std::fmt;
use std::io;
use std::time::Duration;

use clap::Parser;
use rustix::process::Signal;
use weir_print::{PrintError, Reader, print};
use weir_sys::signal::SignalSet;

use crate::measure::measure;
use crate::servers::{self, ListeningServer, Search, find};

/// Looks into any server on this machine (nginx, HAProxy, node, gunicorn, puma, ...): which workers
/// share which queue, how the connections and the work are spread over its workers, what is wrong,
/// and what helps. It changes nothing
#[derive(Debug, Parser)]
#[command(name = "weir inspect", bin_name = "weir inspect")]
pub struct Options {
    /// A port, a process, or the name of a program
    #[arg(value_name = "PORT|PID|NAME")]
    whom: String,
    /// Seconds to look on
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    secs: f64,
    /// Again and again, until it is interrupted
    #[arg(long)]
    watch: bool,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// Why `weir inspect` fails.
#[derive(Debug)]
enum InspectError {
    /// Not a valid number of seconds.
    Seconds,
    /// Signals cannot be blocked.
    Signals(io::Error),
    /// Standard output cannot be written.
    Print(PrintError),
    /// The inspected server has ended.
    Gone(String),
    /// The process runs, but none of its sockets is visible.
    Hidden(String),
    /// No visible process listens as this.
    NothingFound(String),
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InspectError::Seconds => f.write_str("a number of seconds, an hour at most"),
            InspectError::Signals(e) => write!(f, "signals: {e}"),
            InspectError::Print(e) => e.fmt(f),
            InspectError::Gone(whom) => write!(f, "{whom} has gone"),
            InspectError::Hidden(whom) if is_root() => {
                write!(f, "{whom} runs, and does not listen")
            }
            InspectError::Hidden(whom) => write!(
                f,
                "no socket of {whom} can be seen: only root may see those of other users' processes; any user may look at a port"
            ),
            // Sockets of all users are visible by port.
            InspectError::NothingFound(whom) if whom.bytes().all(|b| b.is_ascii_digit()) => {
                write!(f, "nothing listens on port {whom}, and there is no process {whom}")
            }
            InspectError::NothingFound(whom) => {
                write!(f, "no visible process listens as {whom}")?;
                if is_root() {
                    return Ok(());
                }
                f.write_str(": only root can see other users' processes")
            }
        }
    }
}

impl std::error::Error for InspectError {}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn seconds(text: &str) -> Result<f64, InspectError> {
    let parsed = text.parse::<f64>().ok().filter(|s| (0.0..=3600.0).contains(s));
    parsed.ok_or(InspectError::Seconds)
}

/// Runs `weir inspect`. Returns the exit status.
pub fn inspect(options: Options) -> i32 {
    match run(&options) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("weir inspect: {e}");
            1
        }
    }
}

fn run(options: &Options) -> Result<(), InspectError> {
    let (search, hidden_port) = search(&options.whom)?;
    let signals = SignalSet::new(&[Signal::INT, Signal::TERM].map(Signal::as_raw));
    signals.block().map_err(InspectError::Signals)?;
    let time = Duration::from_secs_f64(options.secs);
    loop {
        let found = match hidden_port {
            Some(port) => servers::hidden_at(port),
            None => find(&search),
        };
        if found.is_empty() {
            return Err(InspectError::Gone(options.whom.clone()));
        }
        let mut interrupted = false;
        let report = measure(&found, time, |pause| {
            interrupted = matches!(signals.wait(Some(pause)), Ok(Some(_)));
            !interrupted
        });
        let text = if options.json { report.json() + "\n" } else { report.text() };
        let clear = if options.watch && !options.json { "\x1b[H\x1b[2J" } else { "" };
        let reader = print(format!("{clear}{text}")).map_err(InspectError::Print)?;
        if reader == Reader::Gone || !options.watch || interrupted {
            return Ok(());
        }
    }
}

/// Decides what the argument means. A number is a port if a server listens there, and a process id
/// otherwise. If the processes of the port are hidden, only the port is returned.
fn search(whom: &str) -> Result<(Search, Option<u16>), InspectError> {
    let found_by = |search: Search| -> Option<Search> {
        let found: Vec<ListeningServer> = find(&search);
        (!found.is_empty()).then_some(search)
    };
    let port = whom.parse().ok().map(|port| Search { port: Some(port), ..Search::default() });
    let pid = whom.parse().ok().map(|pid| Search { pid: Some(pid), ..Search::default() });
    let name = Search { name: Some(whom.to_owned()), ..Search::default() };
    let seen =
        port.and_then(found_by).or_else(|| pid.and_then(found_by)).or_else(|| found_by(name));
    if let Some(search) = seen {
        return Ok((search, None));
    }
    if let Some(port) = whom.parse().ok().filter(|port| !servers::hidden_at(*port).is_empty()) {
        return Ok((Search::default(), Some(port)));
    }
    let runs =
        servers::numbers("/proc").any(|pid| pid.to_string() == whom || servers::name(pid) == whom);
    Err(match runs {
        true => InspectError::Hidden(whom.to_owned()),
        false => InspectError::NothingFound(whom.to_owned()),
    })
}
