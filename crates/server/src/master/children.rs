//! The worker processes of the master.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use weir_log::{Cause, Log, log};

use crate::change::Attached;
use crate::channel::{ChannelEnd, Order};
use crate::cycle::Cycle;
use crate::listen::CycleShared;
use crate::worker::stalls::Bell;

/// The exit code of a worker that could not start and would fail again.
pub const FATAL: i32 = 2;

/// The pause before a worker starts again, if workers died while starting. It doubles from the
/// second failure on, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The index of the privileged agent, a process for scripts that serves no clients.
pub const AGENT: usize = usize::MAX;

/// The name of a process with this index in the log.
pub fn name_of(index: usize) -> &'static str {
    if index == AGENT { "privileged agent process" } else { "worker process" }
}

/// A worker process, or the privileged agent.
#[derive(Debug)]
pub struct Child {
    /// The process id.
    pub pid: Pid,
    /// The worker's number, from 0, or [`AGENT`].
    pub index: usize,
    /// The load table of its cycle, which also identifies the cycle.
    pub load: Arc<CycleShared>,
    /// The number of configurations before its own.
    pub generation: u64,
    /// Its configuration has a `weir_api`, so it may send operators' commands.
    pub may_ask: bool,
    /// Its configuration has a `weir_api ... config`, so it may request changes.
    pub may_change: bool,
    /// The channel to it.
    pub channel: ChannelEnd,
    /// Wakes its thread that reports stalled loops.
    pub bell: Bell,
    /// Its tallies, one for each loop.
    pub tallies: Vec<usize>,
    /// Its loops are running.
    pub ready: bool,
    /// It was told to end.
    pub exiting: bool,
    /// When it was first told to end.
    pub notified_at: Option<Instant>,
    /// Nothing more is read from it: it has closed the channel or sent an invalid message.
    pub silent: bool,
}

impl Child {
    /// Whether this is the privileged agent.
    pub fn is_agent(&self) -> bool {
        self.index == AGENT
    }

    /// The name in the log.
    pub fn name(&self) -> &'static str {
        name_of(self.index)
    }

    /// Sends an order. If that fails, sends the signal with the same meaning.
    pub fn order(&mut self, order: Order, log: &Log) {
        self.exiting |=
            matches!(order, Order::Quit | Order::Yield | Order::Retire | Order::Terminate);
        if self.exiting && self.notified_at.is_none() {
            self.notified_at = Some(Instant::now());
            self.bell.ends();
        }
        if self.channel.order(order).is_err() {
            let signal = match order {
                Order::Quit | Order::Yield | Order::Retire => Signal::QUIT,
                Order::Terminate => Signal::TERM,
                Order::Reopen => Signal::USR1,
                // No signal has this meaning.
                Order::Level(_) | Order::Look | Order::Change | Order::Outcome => return,
            };
            self.kill(signal, log);
        }
    }

    /// The process has died or was stopped. The kernel may have woken its loops for connections
    /// that they did not accept, so loops of other workers look for them.
    pub fn pass_recheck(&self) {
        let loops = self.tallies.len();
        let first = self.index * loops;
        self.load.pass_recheck(first..first + loops);
    }

    /// Sends it a signal.
    pub fn kill(&self, signal: Signal, log: &Log) {
        if let Err(e) = kill_process(self.pid, signal) {
            let (pid, number) = (self.pid.as_raw_nonzero(), signal.as_raw());
            log!(log, Alert, None, "kill({pid}, {number}) failed {}", Cause(&e.into()));
        }
    }
}

/// The next child that has ended or was stopped, if any.
pub fn changed(log: &Log) -> Option<(Pid, WaitStatus)> {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(found) => return found,
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CHILD) => return None,
            Err(e) => {
                log!(log, Alert, None, "waitpid() failed {}", Cause(&e.into()));
                return None;
            }
        }
    }
}

/// Describes how a worker ended, for a finding about the server's health.
pub fn end_of(pid: Pid, status: WaitStatus) -> String {
    let pid = pid.as_raw_nonzero();
    match (status.terminating_signal(), status.exit_status().unwrap_or(0)) {
        (Some(signal), _) => format!("worker process {pid} was killed by signal {signal}"),
        (None, code) => format!("worker process {pid} exited with code {code}"),
    }
}

/// Logs the end of a process in nginx's words. Returns whether it ended with [`FATAL`].
pub fn log_end(name: &str, pid: Pid, status: WaitStatus, log: &Log) -> bool {
    let pid = pid.as_raw_nonzero();
    if let Some(signal) = status.terminating_signal() {
        let core = if status.as_raw() & 0x80 != 0 { " (core dumped)" } else { "" };
        log!(log, Alert, None, "{name} {pid} exited on signal {signal}{core}");
        return false;
    }
    let code = status.exit_status().unwrap_or(0);
    log!(log, Notice, None, "{name} {pid} exited with code {code}");
    if code == FATAL {
        log!(
            log,
            Alert,
            None,
            "{name} {pid} exited with fatal code {code} and cannot be respawned"
        );
    }
    code == FATAL
}

/// Workers to start again later, and how often workers died before they were ready.
#[derive(Debug, Default)]
pub struct Restarts {
    waiting: Vec<(Instant, usize)>,
    failures: u32,
}

impl Restarts {
    /// A worker is ready, so starting works.
    pub fn worked(&mut self) {
        self.failures = 0;
    }

    /// Plans another start of worker `index`: at once, unless starting keeps failing.
    pub fn plan(&mut self, index: usize, was_ready: bool, now: Instant) {
        if !was_ready {
            self.failures = self.failures.saturating_add(1);
        }
        self.waiting.push((now + self.pause(), index));
    }

    fn pause(&self) -> Duration {
        match self.failures {
            0 | 1 => Duration::ZERO,
            n => FIRST_PAUSE.saturating_mul(1 << (n - 2).min(16)).min(LONGEST_PAUSE),
        }
    }

    /// When the next start is due.
    pub fn next(&self) -> Option<Instant> {
        self.waiting.iter().map(|(at, _)| *at).min()
    }

    /// Takes a worker whose start is due.
    pub fn due(&mut self, now: Instant) -> Option<usize> {
        let at = self.waiting.iter().position(|(at, _)| *at <= now)?;
        Some(self.waiting.swap_remove(at).1)
    }

    /// Whether a worker is to start again. The privileged agent is none.
    pub fn has_workers(&self) -> bool {
        self.waiting.iter().any(|(_, index)| *index != AGENT)
    }

    /// Discards all planned starts.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// An older configuration, whose workers serve or start until those of a newer one run. That may
/// take long or never happen.
pub struct Replaced {
    /// The cycle of these workers.
    pub cycle: Cycle,
    /// What arrived with it.
    pub attached: Attached,
    /// The number of configurations before it.
    pub generation: u64,
    /// Workers of it that are to start again.
    pub restarts: Restarts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_served_is_replaced_at_once() {
        let now = Instant::now();
        let mut restarts = Restarts::default();
        restarts.plan(3, true, now);
        restarts.plan(4, false, now);
        assert_eq!(restarts.due(now), Some(3));
        assert_eq!(restarts.due(now), Some(4));
        assert_eq!(restarts.due(now), None);
    }

    #[test]
    fn workers_that_die_while_starting_wait_longer_and_longer() {
        let now = Instant::now();
        let mut restarts = Restarts::default();
        let mut pauses = Vec::new();
        for _ in 0..40 {
            restarts.plan(0, false, now);
            pauses.push(restarts.next().unwrap() - now);
            assert_eq!(restarts.due(now + LONGEST_PAUSE), Some(0));
        }
        assert_eq!(pauses[0], Duration::ZERO);
        assert_eq!(pauses[1..4], [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]);
        assert!(pauses.is_sorted() && pauses[39] == LONGEST_PAUSE);
        restarts.worked();
        restarts.plan(0, true, now);
        assert_eq!(restarts.due(now), Some(0));
    }
}
