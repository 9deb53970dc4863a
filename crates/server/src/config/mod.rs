//! The settings of `main` and `events`: from the file, completed with defaults.

mod affinity;
mod events;
mod main;
#[cfg(test)]
mod tests;

pub use affinity::Affinity;
pub use events::Backend;

use std::ffi::{CString, OsString};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustix::thread::CpuSet;
use weir_balance::AcceptPolicy;
use weir_conf::{Contexts, Directive, Error, KnownDirective};

use crate::paths::{Paths, joined};

/// A directive of this room: its name, its sentence in docs/directives.md, how it is read.
struct ServerDirective {
    name: &'static str,
    help: &'static str,
    set: fn(&mut Said, &Directive) -> Result<(), Error>,
}

/// Notes a value that a line said.
fn put<T>(value: Result<T, Error>, place: &mut Option<T>) -> Result<(), Error> {
    *place = Some(value?);
    Ok(())
}

/// Blocks in `main` that other rooms read.
const BLOCKS: [&str; 4] = ["events", "http", "stream", "mail"];

/// Whether this room gives a meaning to the directive in that context.
pub fn built(known: &KnownDirective, context: Contexts) -> bool {
    find(known.name, context).is_some()
        || (context == Contexts::MAIN && BLOCKS.contains(&known.name))
        || known.name == "include"
}

/// The sentence about a directive of this room.
pub fn help(known: &KnownDirective) -> Option<&'static str> {
    let contexts = [Contexts::MAIN, Contexts::EVENTS];
    contexts.into_iter().find_map(|c| find(known.name, c)).map(|line| line.help)
}

fn find(name: &str, context: Contexts) -> Option<&'static ServerDirective> {
    let lines = match context {
        Contexts::MAIN => main::LINES,
        Contexts::EVENTS => events::LINES,
        _ => return None,
    };
    lines.iter().find(|line| line.name == name)
}

/// The user of the workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user's name, for the supplementary groups.
    pub name: CString,
    /// The user's id.
    pub uid: u32,
    /// The group's id.
    pub gid: u32,
}

/// What the machine lets this process use.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// How many processors' worth of time: what `auto` means.
    pub cpus: usize,
    /// The numbers of the processors that it may run on.
    pub allowed: Vec<usize>,
}

impl Machine {
    /// This machine, as far as the process may use it.
    pub fn here() -> Machine {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let allowed = match rustix::thread::sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
            Err(_) => (0..cpus).collect(),
        };
        Machine { cpus, allowed }
    }
}

/// Threads of a worker for file operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileThreads {
    /// How many there are.
    pub threads: usize,
    /// How many operations may wait for one.
    pub queue: usize,
}

/// What the lines said; what no line says is absent.
#[derive(Debug, Default)]
struct Said {
    machine: Machine,
    daemon: Option<bool>,
    master: Option<bool>,
    pid: Option<OsString>,
    user: Option<User>,
    processes: Option<usize>,
    threads: Option<usize>,
    affinity: Option<Affinity>,
    nofile: Option<u64>,
    core: Option<u64>,
    priority: Option<i32>,
    directory: Option<PathBuf>,
    environment: Vec<(OsString, Option<OsString>)>,
    shutdown_timeout: Option<Duration>,
    timer_resolution: Option<Duration>,
    error_logs: Vec<Directive>,
    pools: Vec<(String, FileThreads)>,
    backend: Option<Backend>,
    connections: Option<usize>,
    epoll_events: Option<usize>,
    multi_accept: Option<bool>,
    accept_mutex: Option<bool>,
    accept_mutex_delay: Option<Duration>,
    balance: Option<AcceptPolicy>,
    request_balance: Option<bool>,
    warnings: Vec<Error>,
}

/// `events`, with defaults.
#[derive(Clone, Debug)]
pub struct Events {
    /// How loops wait.
    pub backend: Backend,
    /// Connections that a loop may have open.
    pub connections: usize,
    /// Events that one wait returns at most.
    pub at_once: usize,
    /// Accept all that wait, not one per turn.
    pub multi_accept: bool,
    /// How long a loop that does not hold the accept lock sleeps.
    pub accept_mutex_delay: Duration,
    /// How connections are spread over the loops.
    pub balance: AcceptPolicy,
    /// Loops of a process take over requests of those that are held up.
    pub request_balance: bool,
}

/// `main`, with defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Go to the background.
    pub daemon: bool,
    /// Run workers in processes of their own.
    pub master: bool,
    /// The pid file, absolute; none writes no file.
    pub pid: Option<PathBuf>,
    /// The workers' user, when the master is root.
    pub user: Option<User>,
    /// Some `..._bind` line has `transparent`: the workers of a root master keep CAP_NET_RAW.
    pub transparent: bool,
    /// Worker processes.
    pub processes: usize,
    /// Loops per worker.
    pub threads: usize,
    /// Which loop runs where.
    pub affinity: Option<Affinity>,
    /// RLIMIT_NOFILE of workers.
    pub nofile: Option<u64>,
    /// RLIMIT_CORE of workers.
    pub core: Option<u64>,
    /// Nice value of workers.
    pub priority: i32,
    /// Directory of workers.
    pub directory: Option<PathBuf>,
    /// Variables that workers keep, and those that they get.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// How long workers may take to finish.
    pub shutdown_timeout: Option<Duration>,
    /// How often the clock is read; none is once a turn.
    pub timer_resolution: Option<Duration>,
    /// The `error_log` lines, not opened yet.
    pub error_logs: Vec<Directive>,
    /// The pool of `thread_pool default`.
    pub files: FileThreads,
    /// The pools of the other `thread_pool` lines.
    pub pools: Vec<(String, FileThreads)>,
    /// The `events` block.
    pub events: Events,
}

impl Config {
    /// Reads `main` and `events`, which `check` has found right in form. Warnings come with the
    /// result.
    pub fn read(
        main: &[Directive],
        paths: &Paths,
        machine: &Machine,
    ) -> Result<(Config, Vec<Error>), Error> {
        let mut said = Said { machine: machine.clone(), ..Said::default() };
        for directive in main {
            said.take(directive, Contexts::MAIN)?;
        }
        let (mut config, warnings) = said.mean(paths)?;
        config.transparent = main.iter().any(is_transparent);
        Ok((config, warnings))
    }

    /// What nginx says where more connections are allowed than there may be open files.
    pub fn scarce_files(&self) -> Option<Error> {
        let current = || getrlimit(Resource::Nofile).current;
        let limit = self.nofile.or_else(current)?;
        let connections = self.events.connections;
        let text =
            format!("{connections} worker_connections exceed open file resource limit: {limit}");
        (connections as u64 > limit).then(|| Error::warn(text))
    }

    /// All loops of the server.
    pub fn loops(&self) -> usize {
        self.processes * self.threads
    }
}

/// A `proxy_bind` or kin with `transparent`, or a block with one in it.
fn is_transparent(directive: &Directive) -> bool {
    let binds = directive.name.bytes.ends_with(b"_bind");
    let inside = directive.shared_block().filter(|block| block.inside().binds);
    binds && directive.arg(1).is_some_and(|word| word.is("transparent"))
        || inside.is_some_and(|block| block.iter().any(is_transparent))
}

impl Said {
    fn take(&mut self, directive: &Directive, context: Contexts) -> Result<(), Error> {
        if context == Contexts::MAIN && directive.name.is("events") {
            return directive.block().iter().try_for_each(|d| self.take(d, Contexts::EVENTS));
        }
        match directive.name.str().and_then(|name| find(name, context)) {
            Some(line) => (line.set)(self, directive),
            // Known and not built: the check has judged it; or `http`, which is read where HTTP is known.
            None => Ok(()),
        }
    }

    fn mean(mut self, paths: &Paths) -> Result<(Config, Vec<Error>), Error> {
        let (processes, threads) = (self.processes.unwrap_or(1), self.threads.unwrap_or(1));
        if processes.saturating_mul(threads) > MOST_LOOPS {
            return Err(Error::emerg(format!(
                "{processes} worker processes with {threads} loops each are more than \
                 {MOST_LOOPS} loops"
            )));
        }
        if let Some(affinity) = &self.affinity {
            self.warnings.extend(affinity.doubts(processes * threads, &self.machine.allowed));
        }
        let master = self.master.unwrap_or(true);
        let user = match self.user {
            None => main::default_user()?,
            said => said,
        };
        let (mut files, mut pools) = (FileThreads { threads: THREADS, queue: QUEUE }, self.pools);
        if let Some(at) = pools.iter().position(|(name, _)| name == "default") {
            files = pools.remove(at).1;
        }
        let pid = self.pid.as_deref().map(|name| joined(&paths.prefix, name));
        let config = Config {
            daemon: self.daemon.unwrap_or(true),
            master,
            pid: pid.or_else(|| paths.pid.clone()),
            user,
            transparent: false,
            // Without a master this process is the only worker.
            processes: if master { processes } else { 1 },
            threads,
            affinity: self.affinity,
            nofile: self.nofile,
            core: self.core,
            priority: self.priority.unwrap_or(0),
            directory: self.directory,
            environment: self.environment,
            shutdown_timeout: self.shutdown_timeout,
            timer_resolution: self.timer_resolution,
            error_logs: self.error_logs,
            files,
            pools,
            events: Events {
                backend: self.backend.unwrap_or(Backend::Epoll),
                connections: self.connections.unwrap_or(CONNECTIONS),
                at_once: self.epoll_events.filter(|n| *n > 0).unwrap_or(AT_ONCE),
                multi_accept: self.multi_accept.unwrap_or(false),
                accept_mutex_delay: self.accept_mutex_delay.unwrap_or(MUTEX_DELAY),
                balance: self.balance.unwrap_or(match self.accept_mutex {
                    Some(true) => AcceptPolicy::Mutex,
                    _ => AcceptPolicy::default(),
                }),
                request_balance: self.request_balance.unwrap_or(true),
            },
        };
        Ok((config, self.warnings))
    }
}

/// Loops that a server may have at a time, those of older configurations included.
pub const MOST_LOOPS: usize = 2047;

/// nginx's defaults.
const CONNECTIONS: usize = 512;
const AT_ONCE: usize = 512;
const THREADS: usize = 32;
const QUEUE: usize = 65536;
const MUTEX_DELAY: Duration = Duration::from_millis(500);
