//! Runs `init_by_lua` once before a configuration is applied, so that a configuration with a
//! failing script is refused. At the start, the server then does not start. At a reload, the old
//! configuration stays.
//!
//! Workers run the script in each loop, as the workers' user. So the trial has its own process with
//! the same identity. The script opens files with the same rights, and its effects on the process
//! never reach the master.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use weir_engine::{FilePool, Loop, Options};
use weir_log::{Cause, Log, log};
use weir_sys::process::{Fork, fork};
use weir_values::Identity;

use crate::cycle::Cycle;
use crate::master::{OWN_TALLY, registry};
use crate::service::Service;
use crate::sockets::SocketsFailed;
use crate::worker::identity;

/// How long the script may run. The master does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest error that is read, in bytes.
const LONGEST: usize = 64 * 1024;

/// The first byte of a successful trial's report. The rest is the number of connections of the
/// privileged agent, if scripts want one. Any other report is the error.
const WELL: u8 = 0;

/// Why the trial of a configuration failed.
enum TrialError {
    /// The script's error, as it is logged.
    Script(String),
    /// The script was not run. Without an error here, the log has the reason.
    NotTried(Option<io::Error>),
}

impl fmt::Display for TrialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrialError::Script(text) => f.write_str(text),
            TrialError::NotTried(None) => f.write_str("init_by_lua could not be tried"),
            TrialError::NotTried(Some(e)) => {
                write!(f, "init_by_lua could not be tried {}", Cause(e))
            }
        }
    }
}

impl From<io::Error> for TrialError {
    fn from(e: io::Error) -> TrialError {
        TrialError::NotTried(Some(e))
    }
}

/// Tries the scripts of a configuration with open sockets and zones. Stores whether they want a
/// privileged agent.
pub fn run(cycle: &mut Cycle, log: &Log) -> Result<(), SocketsFailed> {
    cycle.agent = None;
    if !cycle.sites.has_init_script() {
        return Ok(());
    }
    let tried =
        pipe_with(PipeFlags::CLOEXEC).map_err(Into::into).and_then(|(said, own)| match fork()? {
            Fork::Child => attempt(cycle, own),
            Fork::Parent(pid) => {
                drop(own);
                read_report(pid, said)
            }
        });
    let text = match tried {
        Ok(said) if said.first() == Some(&WELL) => {
            let wanted = said.get(1..).and_then(|text| std::str::from_utf8(text).ok());
            cycle.agent = wanted.and_then(|text| text.parse().ok()).filter(|_| cycle.config.master);
            return Ok(());
        }
        Ok(said) if said.is_empty() => "init_by_lua error: it has ended its process".to_owned(),
        Ok(said) => String::from_utf8_lossy(&said).into_owned(),
        Err(e) => TrialError::from(e).to_string(),
    };
    log!(log, Emerg, None, "{text}");
    Err(SocketsFailed)
}

/// Reads the report of the trial, which must end in time.
fn read_report(pid: Pid, said: OwnedFd) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let mut said = std::fs::File::from(said);
    let mut text = Vec::new();
    let heard = loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now()));
        let mut fds = [PollFd::new(&said, PollFlags::IN)];
        match poll(&mut fds, left.ok().as_ref()) {
            Ok(0) => break Err(io::ErrorKind::TimedOut.into()),
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => break Err(e.into()),
            Ok(_) => {}
        }
        let mut piece = [0; 4096];
        match said.read(&mut piece) {
            Ok(0) => break Ok(text),
            Ok(_) if text.len() > LONGEST => break Err(io::ErrorKind::InvalidData.into()),
            Ok(n) => text.extend_from_slice(piece.get(..n).unwrap_or_default()),
            Err(e) => break Err(e),
        }
    };
    if heard.is_err() {
        let _ = kill_process(pid, Signal::KILL);
    }
    while let Err(rustix::io::Errno::INTR) = waitpid(Some(pid), WaitOptions::empty()) {}
    heard
}

/// The process of the trial: reports the result and ends.
fn attempt(cycle: &Cycle, own: OwnedFd) -> ! {
    // A panic must not unwind into the master's code.
    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scripts(cycle)));
    let text = match tried {
        Ok(Ok(())) => {
            let agent = weir_http::wanted_agent().map(|n| n.to_string()).unwrap_or_default();
            [&[WELL], agent.as_bytes()].concat()
        }
        Ok(Err(e)) => e.to_string().into_bytes(),
        Err(_) => Vec::new(),
    };
    // The master waits, for a limited time, until the pipe is closed, which is when this process
    // has ended.
    let mut own = std::fs::File::from(own);
    let _ = own.write_all(&text);
    weir_log::flush();
    std::process::exit(i32::from(text.first() != Some(&WELL)));
}

fn scripts(cycle: &Cycle) -> Result<(), TrialError> {
    let config = &cycle.config;
    let taken = match config.master {
        true => identity::take(config, &cycle.log),
        false => identity::take_environment(config, &cycle.log),
    };
    taken.map_err(|_| TrialError::NotTried(None))?;
    let own = Loop::new(&Options {
        backend: config.events.backend.kind(),
        timer_resolution: config.timer_resolution,
        events: config.events.at_once,
        files: FilePool::new(config.files.threads, config.files.queue),
        pools: Vec::new(),
        steal_group: None,
        notifier: None,
    })?;
    let registry = registry()?;
    let tally = registry.tally(OWN_TALLY).ok_or(TrialError::NotTried(None))?;
    let identity = Identity {
        pid: std::process::id(),
        worker: 0,
        workers: config.processes as u32,
        index: 0,
        has_master: config.master,
        agent: false,
    };
    Service::try_scripts(&own.handle(), cycle.sites.lend(), identity, tally, registry)
        .map_err(TrialError::Script)
}
