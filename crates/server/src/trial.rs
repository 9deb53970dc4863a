//! Runs `init_by_lua` once before a configuration is taken into use, so that one with a script that
//! fails is refused. At the start the server does not start; at a reload the old configuration
//! stays.
//!
//! Workers run the script in each loop, as the workers' user. So the trial has a process of its own
//! with the same identity: the script opens files with the same rights, and its effects on its
//! process never reach the master.

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

/// How long the script may take. The master does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest error that is read.
const LONGEST: usize = 64 * 1024;

/// What the trial says first when all is well. Behind it is how many connections the privileged agent may have, if the
/// scripts want one. Anything else is what went wrong.
const WELL: u8 = 0;

/// Why a configuration's scripts fail the trial.
enum TrialError {
    /// The script's error, as the log shows it.
    Script(String),
    /// The script was not run. Without an error here, the log has the cause.
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

/// Tries the scripts of a configuration with open sockets and zones, and notes whether they want a privileged agent.
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
                hear(pid, said)
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

/// All that the trial says before it ends, which it has to do in time.
fn hear(pid: Pid, said: OwnedFd) -> io::Result<Vec<u8>> {
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

/// The process of the trial: says how it went, and ends.
fn attempt(cycle: &Cycle, own: OwnedFd) -> ! {
    // A panic must not lead back into the master's code.
    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scripts(cycle)));
    let text = match tried {
        Ok(Ok(())) => {
            let agent = weir_http::wanted_agent().map(|n| n.to_string()).unwrap_or_default();
            [&[WELL], agent.as_bytes()].concat()
        }
        Ok(Err(e)) => e.to_string().into_bytes(),
        Err(_) => Vec::new(),
    };
    let _ = std::fs::File::from(own).write_all(&text);
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
