//! The command line of `weir balance`.

use std::fmt::{self, Write};
use std::io;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Parser};
use rustix::io::Errno;
use rustix::process::Signal;
use weir_print::Unprinted;
use weir_sys::signal::SignalSet;

use crate::group::SteeredGroup;
use crate::watch::{Summary, WorkerWatch};
use weir_inspect::servers::{ListeningServer, Search, find, hidden_at};

/// The interval at which a table is printed and the processes are searched again.
const SECOND: Duration = Duration::from_secs(1);

/// The nice value while steering. A sample takes only some microseconds.
const PRIORITY: i32 = -15;

/// Gives new connections of another server's SO_REUSEPORT group (nginx: `listen ... reuseport`) to the workers that have
/// time for them. Nothing of the server changes; all is as it was when this ends, or is killed
#[derive(Debug, Parser)]
#[command(name = "weir balance", bin_name = "weir balance", group = ArgGroup::new("server").required(true).multiple(true))]
pub struct Options {
    /// The server's master process, or any of its processes
    #[arg(long, group = "server")]
    pid: Option<i32>,
    /// The port that it listens on
    #[arg(long, group = "server")]
    port: Option<u16>,
    /// Seconds to look on before anything is done, to compare with
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    look: u64,
    /// Seconds to steer [default: until it is interrupted]
    #[arg(long, value_name = "SECONDS")]
    secs: Option<u64>,
    /// Milliseconds between looks
    #[arg(long, value_name = "MS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    every: u64,
    /// Look on, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// Why `weir balance` ends.
#[derive(Debug)]
enum SteerError {
    /// No listening socket was found for this process or port.
    NothingFound { pid: Option<i32>, port: Option<u16> },
    /// No address has several queues.
    NoGroup,
    /// The server has ended.
    Gone,
    /// Signals cannot be blocked or awaited.
    Signals(io::Error),
    /// The output could not be written.
    Unprinted(Unprinted),
    /// The kernel does not allow access to the sockets, or to steer them.
    Refused(io::Error),
}

impl fmt::Display for SteerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SteerError::NothingFound { pid: None, port: Some(port) }
                if hidden_at(*port).is_empty() =>
            {
                write!(f, "nothing listens on port {port}")
            }
            SteerError::NothingFound { pid, port } => {
                match pid {
                    Some(pid) => write!(f, "process {pid} does not listen")?,
                    None => f.write_str("no process that can be seen listens")?,
                }
                if let Some(port) = port {
                    write!(f, " on port {port}")?;
                }
                match rustix::process::geteuid().is_root() {
                    true => Ok(()),
                    false => f.write_str("; only root can see other users' processes"),
                }
            }
            SteerError::NoGroup => f.write_str("there is no group of sockets to be steered"),
            SteerError::Gone => f.write_str("the server has gone"),
            SteerError::Signals(e) => write!(f, "signals: {e}"),
            SteerError::Unprinted(why) => why.fmt(f),
            SteerError::Refused(e) => match Errno::from_io_error(e) {
                Some(Errno::PERM | Errno::ACCESS) => {
                    write!(
                        f,
                        "{e}: run it as root (it needs CAP_BPF, CAP_NET_ADMIN and CAP_SYS_PTRACE)"
                    )
                }
                Some(Errno::BUSY | Errno::ADDRINUSE) => {
                    write!(f, "{e}: another program steers these sockets")
                }
                _ => e.fmt(f),
            },
        }
    }
}

/// Runs `weir balance` and returns its exit status.
pub fn balance(options: Options) -> i32 {
    match run(&options) {
        Ok(()) | Err(SteerError::Unprinted(Unprinted::NoReader)) => 0,
        Err(e) => {
            eprintln!("weir balance: {e}");
            1
        }
    }
}

fn run(options: &Options) -> Result<(), SteerError> {
    let search = Search { pid: options.pid, port: options.port, name: None };
    let found = find(&search);
    if found.is_empty() {
        return Err(SteerError::NothingFound { pid: options.pid, port: options.port });
    }
    for listening in &found {
        print(describe(listening) + "\n")?;
    }
    let mut groups = groups(&found)?;
    if groups.is_empty() {
        return Err(SteerError::NoGroup);
    }
    let ends = [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    let signals = SignalSet::new(&ends);
    signals.block().map_err(SteerError::Signals)?;
    let every = Duration::from_millis(options.every);
    let mut rounds = Rounds { signals, every, search };

    print(format!("\nlooking on for {} s\n", options.look))?;
    let (before, interrupted) = rounds.go(&mut groups, Some(options.look), false)?;
    if options.dry_run || interrupted {
        return Ok(());
    }
    // A busy machine must not stall the program that watches slow workers. Without the privilege it
    // keeps its priority.
    let _ = rustix::process::setpriority_process(None, PRIORITY);
    let end = if options.secs.is_none() { "; Ctrl-C ends it" } else { "" };
    print(format!("\nsteering{end}\n"))?;
    groups.iter_mut().try_for_each(SteeredGroup::steer).map_err(SteerError::Refused)?;
    let (after, _) = rounds.go(&mut groups, options.secs, true)?;
    drop(groups);
    print(format!("\nall is as it was before\n{}\n", compared(&before, &after)))
}

/// Prints, unless the reader has gone.
fn print(text: String) -> Result<(), SteerError> {
    weir_print::print_to_reader(text).map_err(SteerError::Unprinted)
}

/// Samples the workers repeatedly, and steers.
struct Rounds {
    signals: SignalSet,
    every: Duration,
    search: Search,
}

impl Rounds {
    /// Runs until the time is over, or until a signal arrives. Returns true for a signal.
    fn go(
        &mut self,
        groups: &mut Vec<SteeredGroup>,
        secs: Option<u64>,
        steer: bool,
    ) -> Result<(Vec<Summary>, bool), SteerError> {
        let began = Instant::now();
        let mut whole: Vec<WorkerWatch> = groups.iter().map(|group| group.new_watch()).collect();
        let mut shown = began;
        loop {
            let now = Instant::now();
            for (group, whole) in groups.iter_mut().zip(&mut whole) {
                group.sample(now, whole);
            }
            let over = secs.is_some_and(|secs| now >= began + Duration::from_secs(secs));
            if over || now >= shown + SECOND {
                shown = now;
                groups.iter_mut().try_for_each(|group| print(group.table()))?;
                self.renew(groups, &mut whole, steer)?;
            }
            let arrived = self.signals.wait(Some(self.every)).map_err(SteerError::Signals)?;
            if over || arrived.is_some() {
                let summaries = whole.iter().map(WorkerWatch::summary).collect();
                return Ok((summaries, arrived.is_some()));
            }
        }
    }

    /// Replaces the groups when the workers have changed, such as after a reload.
    fn renew(
        &self,
        groups: &mut Vec<SteeredGroup>,
        whole: &mut Vec<WorkerWatch>,
        steer: bool,
    ) -> Result<(), SteerError> {
        let found: Vec<ListeningServer> = find(&self.search).into_iter().filter(is_group).collect();
        if found.is_empty() {
            return Err(SteerError::Gone);
        }
        if found.len() == groups.len()
            && groups.iter().zip(&found).all(|(group, found)| group.is(found))
        {
            return Ok(());
        }
        // The old steering must release a socket before a new one takes it.
        groups.clear();
        *groups = self::groups(&found)?;
        *whole = groups.iter().map(SteeredGroup::new_watch).collect();
        if steer {
            groups.iter_mut().try_for_each(SteeredGroup::steer).map_err(SteerError::Refused)?;
        }
        print("the server's processes have changed\n".to_owned())
    }
}

fn is_group(listening: &ListeningServer) -> bool {
    listening.sockets.len() > 1
}

fn groups(found: &[ListeningServer]) -> Result<Vec<SteeredGroup>, SteerError> {
    let several = found.iter().filter(|listening| is_group(listening));
    several.map(|listening| SteeredGroup::of(listening).map_err(SteerError::Refused)).collect()
}

/// Describes the sockets at an address, and whether they can be steered.
fn describe(listening: &ListeningServer) -> String {
    let mut out = format!("{}: ", listening.address);
    let workers: usize = listening.sockets.iter().map(|socket| socket.workers.len()).sum();
    let name = listening.sockets.iter().flat_map(|s| &s.workers).next().map_or("?", |w| &w.name);
    match listening.sockets.len() {
        1 if workers == 1 => {
            let _ = write!(out, "one socket of one process of {name}: nothing is to be spread");
        }
        1 => {
            let _ = write!(
                out,
                "one queue, which {workers} processes of {name} share. Whoever is free takes the next connection from it, so \
                 nobody waits behind a slow worker; but the kernel wakes the same ones first, so they have most of the \
                 kept connections. There is nothing to steer: {}",
                advice(name)
            );
        }
        n => {
            let _ = write!(out, "{n} queues of {name} (SO_REUSEPORT)");
        }
    }
    out
}

/// Advice for a server with one queue.
fn advice(name: &str) -> &'static str {
    match name {
        "nginx" => {
            "put `reuseport` on its listen line and reload, and call this again; or let weir serve the same nginx.conf: its \
             default has one queue and is even"
        }
        "haproxy" => "a `shards by-thread` on its bind line makes a group that can be steered",
        _ => "if the server can open its sockets with SO_REUSEPORT, let it, and call this again",
    }
}

fn compared(before: &[Summary], after: &[Summary]) -> String {
    let mut out = format!(
        "{:>8} {:>14} {:>10} {:>22}\n",
        "", "waiting (mean)", "(at most)", "unevenness of CPU time"
    );
    for (name, all) in [("before", before), ("steered", after)] {
        for summary in all {
            let Summary { waiting, most, unevenness } = summary;
            let _ = writeln!(out, "{name:>8} {waiting:>14.2} {most:>10} {unevenness:>22.2}");
        }
    }
    out
}
