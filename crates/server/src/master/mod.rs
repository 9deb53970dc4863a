//! The master: starts and watches workers, and receives signals. nginx: ngx_process_cycle.c.
//!
//! It has one thread, which sleeps until a signal, a worker's report or a deadline. It never
//! serves. Workers are forks of it. In a fork, the master's values are dropped on the way up to
//! [`crate::boot`], which then runs the worker.

mod change;
mod children;
mod reload;
mod start;
mod tallies;
mod upgrade;

pub use children::FATAL;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;
use rustix::process::{Pid, Signal, WaitStatus};
use weir_engine::coarse_nanos;
use weir_log::{Cause, Level, log};
use weir_metrics::{LoopTally, Metric, Registry, Tally};
use weir_sys::guarded;
use weir_sys::shared::SharedWords;
use weir_sys::signal::Descriptor;
use weir_sys::title::Title;
use weir_values::Command;

use self::change::{Change, ChangeReport};
use self::children::{Child, Replaced, Restarts};
use self::tallies::Tallies;
use self::upgrade::Kin;
use crate::change::Attached;
use crate::channel::{ChannelEnd, Order, Received, WorkerReport};
use crate::config::MOST_LOOPS;
use crate::cycle::{Cycle, Origin};
use crate::health::{HealthWatch, RetiredWorker, Seen};
use crate::signals::{self, SignalRequest};
use crate::sockets::Sockets;
use crate::worker::stalls::{self, Bell};

/// The tally of the master itself.
pub const OWN_TALLY: usize = 0;

/// After TERM, the time until workers are reminded. It doubles each time.
const PATIENCE: Duration = Duration::from_millis(50);
/// A worker is killed once the time between reminders exceeds this.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// The most signals that are read in a turn. There are fewer kinds, but one may arrive again while
/// others are read.
const MOST_SIGNALS: usize = 64;
/// The order, nginx's, in which signals that arrived together are handled. The end of the server
/// goes before a new configuration.
const ORDER: [SignalRequest; 7] = [
    SignalRequest::Reap,
    SignalRequest::Terminate,
    SignalRequest::Quit,
    SignalRequest::Reconfigure,
    SignalRequest::Reopen,
    SignalRequest::ChangeBinary,
    SignalRequest::StopAccepting,
];

/// The role of a process when the master's code returns.
pub enum Role {
    /// The server has ended. The process exits with this code.
    Exit(i32),
    /// The process is a worker with this assignment.
    Worker(Box<Assignment>),
}

/// The data of a worker.
pub struct Assignment {
    /// The configuration.
    pub cycle: Cycle,
    /// The origin of configurations.
    pub origin: Arc<Origin>,
    /// The worker's number, from 0.
    pub index: usize,
    /// The tallies of its loops.
    pub tallies: Vec<usize>,
    /// The number of configurations before its own.
    pub generation: u64,
    /// All counters.
    pub registry: Registry,
    /// The channel to the master. None if the process has no master.
    pub channel: Option<ChannelEnd>,
    /// Wakes the thread that reports stalled loops. None without a master.
    pub bell: Option<Bell>,
    /// The name in ps, until a thread takes it to change it.
    pub title: Arc<Mutex<Option<Title>>>,
    /// Whether it is the privileged agent for scripts, which serves no clients.
    pub is_agent: bool,
}

/// The master process.
pub struct Master {
    origin: Arc<Origin>,
    cycle: Cycle,
    registry: Registry,
    counters: Tally,
    tallies: Tallies,
    children: Vec<Child>,
    restarts: Restarts,
    signals: Descriptor,
    title: Option<Title>,
    /// The name in ps, without findings about the server's health.
    name: String,
    ending: Option<Shutdown>,
    /// The number of configurations before the present one.
    generation: u64,
    /// How many configurations have replaced another one. Their numbers are not used again.
    replacements: u64,
    /// The newest generation whose workers all run. Workers of older ones were told to retire.
    serving: u64,
    /// The configuration of that generation, and later ones whose workers start, while workers of
    /// the newest one start. The oldest is first.
    replaced: Vec<Replaced>,
    kin: Kin,
    /// The command line, for a successor.
    args: Vec<OsString>,
    health: HealthWatch,
    /// A change that is not finished.
    change: Option<Change>,
    /// What arrived with the newest configuration.
    attached: Attached,
    /// The server belongs to a terminal and ends with it.
    on_terminal: bool,
}

/// The kind of the server's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    /// Workers finish their requests.
    Quit,
    /// Workers end at once. Those that still live at `next` are reminded.
    Terminate { next: Instant, patience: Duration },
}

/// The counters of a server, in memory that all its processes share.
pub fn registry() -> io::Result<Registry> {
    let words = SharedWords::new(Registry::words_for(OWN_TALLY + 1 + MOST_LOOPS))?;
    // The memory lives as long as the process.
    let registry = Registry::new(Box::leak(Box::new(words)));
    registry.set_started(wall());
    registry.set_configured(wall(), true);
    Ok(registry)
}

/// The time since 1970.
fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whether this process has a controlling terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

impl Master {
    /// A master for a cycle with open sockets, which may be inherited. `args` is the command line.
    /// [`signals::prepare`] must have been called.
    pub fn new(
        origin: Origin,
        cycle: Cycle,
        args: Vec<OsString>,
        inherited: bool,
    ) -> io::Result<Master> {
        let registry = registry()?;
        let counters = registry.tally(OWN_TALLY).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut title = Title::take()
            .inspect_err(|e| log!(cycle.log, Info, None, "no process title {}", Cause(e)))
            .ok();
        let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
        let name = format!("weir: master process {}", words.join(" "));
        if let Some(title) = &mut title {
            title.set(&name);
        }
        // An in-memory configuration cannot be read again. So HUP means that the terminal has hung
        // up, as for other programs.
        let on_terminal = origin.paths.conf.is_none() && has_terminal();
        Ok(Master {
            tallies: Tallies::new(OWN_TALLY + 1, registry.tallies()),
            origin: Arc::new(origin),
            cycle,
            registry,
            counters,
            children: Vec::new(),
            restarts: Restarts::default(),
            signals: Descriptor::new(&signals::set())?,
            title,
            name,
            ending: None,
            generation: 0,
            replacements: 0,
            serving: 0,
            replaced: Vec::new(),
            kin: Kin::new(inherited),
            args,
            health: HealthWatch::default(),
            change: None,
            attached: Attached::default(),
            on_terminal,
        })
    }

    /// Runs until the server ends. In a forked worker this returns, too.
    pub fn run(mut self) -> Role {
        match self.serve() {
            ControlFlow::Break(role) => role,
            ControlFlow::Continue(never) => match never {},
        }
    }

    fn serve(&mut self) -> ControlFlow<Role, Infallible> {
        self.start_workers()?;
        loop {
            self.judge();
            self.wait();
            self.read_reports()?;
            self.take_signals()?;
            self.start_due()?;
            self.remind();
            if self.ending.is_some() && self.children.is_empty() {
                return ControlFlow::Break(self.end());
            }
        }
    }

    /// Sleeps until a signal, a worker's report or a deadline. The keys of TLS tickets rotate here
    /// as in the workers, which start as forks of this process.
    fn wait(&self) {
        let speaking = self.children.iter().filter(|child| !child.silent);
        let mut fds = vec![PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        fds.extend(speaking.map(|c| PollFd::from_borrowed_fd(c.channel.as_fd(), PollFlags::IN)));
        let reminder = match self.ending {
            Some(Shutdown::Terminate { next, .. }) => Some(next),
            _ => None,
        };
        let keys = weir_ssl::turn_ticket_keys().map(|left| Instant::now() + left);
        let health = self.health.next();
        let change = self.change_deadline();
        let replaced = self.replaced.iter().filter_map(|old| old.restarts.next()).min();
        let next = [self.restarts.next(), replaced, reminder, keys, health, change];
        let next = next.into_iter().flatten().min();
        let timeout = next.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        // An interrupted wait is just a short one.
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Handles one report of each worker; further ones follow in the next turn. A worker may only
    /// send what its configuration allows. Other programs of its user could send in its place, and
    /// the master may be root.
    fn read_reports(&mut self) -> ControlFlow<Role> {
        let (mut asked, mut changes) = (Vec::new(), Vec::new());
        for child in self.children.iter_mut().filter(|child| !child.silent) {
            let mut fds = Vec::new();
            match child.channel.next_report(&mut fds) {
                Received::Message(WorkerReport::Ready) if !child.ready => {
                    child.ready = true;
                    let generation = child.generation;
                    let replaced =
                        self.replaced.iter_mut().find(|old| old.generation == generation);
                    replaced.map_or(&mut self.restarts, |old| &mut old.restarts).worked();
                }
                Received::Message(WorkerReport::Working) => self.health.woken(),
                Received::Message(WorkerReport::Asked(command)) if child.may_ask => {
                    if !asked.contains(&command) {
                        asked.push(command);
                    }
                }
                Received::Message(WorkerReport::AsksChange) if child.may_change => {
                    changes.push(ChangeReport::Asks(child.pid, fds.pop()));
                }
                Received::Message(report @ (WorkerReport::Changed | WorkerReport::Unchanged)) => {
                    let taken = report == WorkerReport::Changed;
                    changes.push(ChangeReport::Done(child.pid, taken));
                }
                Received::Message(WorkerReport::Retired) if child.exiting => {
                    changes.push(ChangeReport::Retired(child.pid));
                }
                Received::Message(_) | Received::Invalid => {
                    child.silent = true;
                    let pid = child.pid.as_raw_nonzero();
                    let text = "sent what a worker may not send: nothing more is read from it";
                    log!(self.cycle.log, Alert, None, "worker process {pid} {text}");
                }
                Received::Nothing => {}
                // The worker has died. SIGCHLD will report it.
                Received::Closed => child.silent = true,
            }
        }
        asked.into_iter().for_each(|command| self.carry_out(command));
        self.carry_out_changes(changes)?;
        self.retire_replaced();
        self.check_change();
        ControlFlow::Continue(())
    }

    /// Executes an operator's command that a worker has passed on. Workers that start later inherit
    /// its effect, since they are forks.
    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Reopen => self.reopen(),
            Command::Look => {
                let all = self.children.iter_mut();
                all.for_each(|child| child.order(Order::Look, &self.cycle.log));
            }
            Command::Level(level) => {
                weir_log::set_level(level);
                let shown = level.map_or("as the configuration says", Level::name);
                log!(self.cycle.log, Notice, None, "the level of error logs is now: {shown}");
                for child in &mut self.children {
                    child.order(Order::Level(level), &self.cycle.log);
                }
            }
        }
    }

    /// Reads the signals that have arrived, then handles them in the order of [`ORDER`]. A signal
    /// that arrives meanwhile waits for the next turn. So continuous reloads leave time for
    /// everything else, and several pending reloads count as one.
    fn take_signals(&mut self) -> ControlFlow<Role> {
        let mut asked = Vec::new();
        for _ in 0..MOST_SIGNALS {
            let Ok(Some(arrived)) = self.signals.take() else { break };
            let Some(request) = signals::request(arrived.number) else { continue };
            signals::log_arrival(arrived, self.action(request), &self.cycle.log);
            asked.push(request);
        }
        ORDER
            .iter()
            .filter(|request| asked.contains(request))
            .try_for_each(|request| self.obey(*request))
    }

    fn obey(&mut self, request: SignalRequest) -> ControlFlow<Role> {
        match request {
            SignalRequest::Reap => self.reap(),
            SignalRequest::Quit => self.quit(),
            SignalRequest::Terminate => self.terminate(),
            SignalRequest::Reopen => self.reopen(),
            SignalRequest::Reconfigure | SignalRequest::ChangeBinary if self.ending.is_some() => {}
            SignalRequest::Reconfigure if self.is_hung_up() => self.terminate(),
            SignalRequest::Reconfigure if self.kin.successor.is_some() => self.bring_back()?,
            SignalRequest::Reconfigure => self.reconfigure()?,
            SignalRequest::StopAccepting if self.is_daemon() => self.stop_accepting(),
            SignalRequest::ChangeBinary => self.change_binary(),
            SignalRequest::StopAccepting | SignalRequest::Nothing => {}
        }
        ControlFlow::Continue(())
    }

    /// Whether the server's terminal is gone.
    fn is_hung_up(&self) -> bool {
        self.on_terminal && !has_terminal()
    }

    fn action(&self, request: SignalRequest) -> &'static str {
        match request {
            SignalRequest::Quit => ", shutting down",
            SignalRequest::Terminate => ", exiting",
            SignalRequest::Reopen => ", reopening logs",
            SignalRequest::Reconfigure if self.is_hung_up() => ", the terminal is gone, exiting",
            SignalRequest::Reconfigure => ", reconfiguring",
            SignalRequest::StopAccepting if self.is_daemon() => ", stop accepting connections",
            SignalRequest::ChangeBinary if self.may_change_binary() && self.ending.is_none() => {
                ", changing binary"
            }
            SignalRequest::ChangeBinary | SignalRequest::Nothing => ", ignoring",
            SignalRequest::StopAccepting | SignalRequest::Reap => "",
        }
    }

    /// Cleans up after children that have ended, and plans their successors.
    fn reap(&mut self) {
        while let Some((pid, status)) = children::changed(&self.cycle.log) {
            let at = self.children.iter().position(|child| child.pid == pid);
            if status.stopped() {
                let stopped = at.and_then(|at| self.children.get(at));
                if let Some(child) = stopped.filter(|child| !child.is_agent()) {
                    child.pass_recheck();
                }
                continue;
            }
            let Some(child) = at.map(|at| self.children.swap_remove(at)) else {
                self.reap_other(pid, status);
                continue;
            };
            let fatal = children::log_end(child.name(), pid, status, &self.cycle.log);
            self.bury(&child);
            self.change_waits_no_more_for(child.pid);
            if child.exiting || self.ending.is_some() {
                continue;
            }
            self.counters.add(Metric::Died, 1);
            self.health.died(children::end_of(pid, status), fatal);
            if fatal {
                continue;
            }
            match child.is_agent() {
                true => self.plan_agent(child.generation, child.ready),
                false => self.plan(child.index, &child.load, child.ready),
            }
        }
        // Possible only while no worker shares this value; workers have copies of their own.
        if let Some(post) = Arc::get_mut(&mut self.cycle.post) {
            post.forget_ended();
        }
        self.retire_replaced();
        self.give_up_newest();
    }

    /// Handles the end of a process that is no worker: the successor program, or an unknown
    /// process.
    fn reap_other(&mut self, pid: Pid, status: WaitStatus) {
        let is_successor = self.kin.successor == Some(pid);
        let name = if is_successor { "new binary process" } else { "unknown process" };
        children::log_end(name, pid, status, &self.cycle.log);
        if is_successor {
            self.lose_successor();
        }
    }

    /// Releases what a dead worker held.
    fn bury(&mut self, child: &Child) {
        for tally in &child.tallies {
            self.registry.bury(*tally, &self.counters);
        }
        self.tallies.give(&child.tallies);
        if !child.is_agent() {
            let (table, loops) = (child.load.table(), child.tallies.len());
            (0..loops).for_each(|i| table.clear(child.index * loops + i));
            child.pass_recheck();
        }
    }

    /// Checks the server's health, once a second while something happens.
    fn judge(&mut self) {
        if !self.health.is_due() {
            return;
        }
        self.ring();
        let old = self.children.iter().filter_map(|child| Some((child, child.notified_at?)));
        let old = old.map(|(child, notified_at)| RetiredWorker { pid: child.pid, notified_at });
        let queues = crate::status::queues(&self.cycle.sockets);
        let connections = self.cycle.config.events.connections;
        let seen = Seen {
            registry: self.registry,
            sites: &self.cycle.sites,
            old: old.collect(),
            queues,
            connections,
        };
        // The check reads memory that workers write. Even a panic must not end the server.
        let looked = catch_unwind(AssertUnwindSafe(|| self.health.look(seen)));
        let Ok(headline) = looked else {
            self.health.give_up();
            log!(
                self.cycle.log,
                Alert,
                None,
                "health is not judged any more: the look at it panicked"
            );
            return;
        };
        // ps(1) and `weir inspect` show it without a status page.
        if let (Some(headline), Some(title)) = (headline, &mut self.title) {
            title.set(&format!("{}{headline}", self.name));
        }
    }

    /// Rings the bells of workers with a loop in a long turn or with a long file operation. Their
    /// threads report it.
    fn ring(&self) {
        let now = coarse_nanos();
        let is_long = |tally: &LoopTally| {
            let oldest =
                [tally.awake_since(), tally.oldest_operation()].into_iter().flatten().min();
            let lasts = oldest.map_or(0, |at| now.saturating_sub(at));
            u128::from(lasts) >= stalls::LONG.as_nanos()
        };
        for tally in self.registry.loops().iter().filter(|tally| is_long(tally)) {
            let pid = tally.owner.pid.cast_signed();
            let mut all = self.children.iter();
            if let Some(child) = all.find(|child| child.pid.as_raw_nonzero().get() == pid) {
                child.bell.ring();
            }
        }
    }

    fn quit(&mut self) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(Shutdown::Quit);
        self.finish_workers();
        self.close_sockets();
    }

    /// Tells all workers to finish. If no other program serves the sockets, they alone get
    /// datagrams of their connections.
    pub(super) fn finish_workers(&mut self) {
        let order = if self.kin.shares_sockets() { Order::Yield } else { Order::Quit };
        for child in &mut self.children {
            child.order(order, &self.cycle.log);
        }
    }

    fn terminate(&mut self) {
        if !matches!(self.ending, Some(Shutdown::Terminate { .. })) {
            self.ending =
                Some(Shutdown::Terminate { next: Instant::now() + PATIENCE, patience: PATIENCE });
            for child in &mut self.children {
                child.order(Order::Terminate, &self.cycle.log);
            }
        }
    }

    /// Reminds workers that were to end at once, and finally kills them.
    fn remind(&mut self) {
        let now = Instant::now();
        let Some(Shutdown::Terminate { next, patience }) = self.ending else { return };
        if now < next {
            return;
        }
        let patience = patience * 2;
        self.ending = Some(Shutdown::Terminate { next: now + patience, patience });
        let signal = if patience > IMPATIENCE { Signal::KILL } else { Signal::TERM };
        for child in &self.children {
            child.kill(signal, &self.cycle.log);
        }
    }

    /// Whether the server runs in the background. A successor program does if its predecessor did.
    fn is_daemon(&self) -> bool {
        self.cycle.config.daemon || self.kin.predecessor.is_some()
    }

    fn stop_accepting(&mut self) {
        self.kin.resting = true;
        self.forget_replaced(|_| false);
        self.restarts.clear();
        self.finish_workers();
    }

    fn reopen(&mut self) {
        let log = &self.cycle.log;
        log!(log, Notice, None, "reopening logs");
        let owner = self.cycle.config.user.as_ref().map(|user| (user.uid, user.gid));
        for (path, e) in self.origin.logs.reopen_all(owner) {
            log!(log, Emerg, None, "open() \"{}\" failed {}", path.display(), Cause(&e));
        }
        crate::boot::redirect_stderr(log);
        for child in &mut self.children {
            child.order(Order::Reopen, log);
        }
    }

    fn close_sockets(&mut self) {
        if !self.kin.shares_sockets() {
            self.forget_replaced(|_| false);
            self.cycle.sockets.unlink(&self.cycle.log);
        }
        self.replaced.clear();
        self.cycle.sockets = Sockets::default();
    }

    fn end(&mut self) -> Role {
        let log = Arc::clone(&self.cycle.log);
        if let Some(path) = self.own_pid_file()
            && let Err(e) = guarded::remove(&path)
        {
            log!(log, Alert, None, "unlink() \"{}\" failed {}", path.display(), Cause(&e));
        }
        log!(log, Notice, None, "exit");
        self.close_sockets();
        Role::Exit(0)
    }
}
