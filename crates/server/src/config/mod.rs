//! The settings of `main` and `events`, from the file and defaults.

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

/// A directive of this module: its name, its sentence in docs/directives.md, and the function that
/// reads it.
struct ServerDirective {
    name: &'static str,
    help: &'static str,
    set: fn(&mut RawConfig, &Directive) -> Result<(), Error>,
}

/// Stores the value of a line.
fn put<T>(value: Result<T, Error>, place: &mut Option<T>) -> Result<(), Error> {
    *place = Some(value?);
    Ok(())
}

/// Blocks in `main` that other modules read.
const BLOCKS: [&str; 4] = ["events", "http", "stream", "mail"];

/// Whether this module implements the directive in that context.
pub fn built(known: &KnownDirective, context: Contexts) -> bool {
    find(known.name, context).is_some()
        || (context == Contexts::MAIN && BLOCKS.contains(&known.name))
        || known.name == "include"
}

/// The sentence of help about a directive of this module.
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

/// The processors that this process may use.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// The number of processors by CPU time; the value of `auto`.
    pub cpus: usize,
    /// The numbers of the processors on which it may run.
    pub allowed: Vec<usize>,
}

impl Machine {
    /// The processors of this process.
    pub fn here() -> Machine {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let allowed = match rustix::thread::sched_getaffinity(None) {
            Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
            Err(_) => (0..cpus).collect(),
        };
        Machine { cpus, allowed }
    }
}

/// A worker's pool of file threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileThreads {
    /// The number of threads.
    pub threads: usize,
    /// The most operations that may wait for a thread.
    pub queue: usize,
}

/// The values that were read. A value without a line is absent.
#[derive(Debug, Default)]
struct RawConfig {
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

/// The settings of `events`, with defaults.
#[derive(Clone, Debug)]
pub struct Events {
    /// How loops wait.
    pub backend: Backend,
    /// The most connections of a loop.
    pub connections: usize,
    /// The most events of one wait.
    pub at_once: usize,
    /// Accept all waiting connections at once, not one in each turn.
    pub multi_accept: bool,
    /// How long a loop that does not hold the accept lock sleeps.
    pub accept_mutex_delay: Duration,
    /// The accept policy.
    pub balance: AcceptPolicy,
    /// Loops of a process steal requests from stalled loops.
    pub request_balance: bool,
}

/// The settings of `main`, with defaults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Run in the background.
    pub daemon: bool,
    /// Run workers in processes of their own.
    pub master: bool,
    /// The absolute path of the pid file. None: no file.
    pub pid: Option<PathBuf>,
    /// The workers' user, if the master is root.
    pub user: Option<User>,
    /// A `..._bind` line has `transparent`. Workers of a root master then keep CAP_NET_RAW.
    pub transparent: bool,
    /// The number of worker processes.
    pub processes: usize,
    /// The number of loops in a worker.
    pub threads: usize,
    /// Which loop runs where.
    pub affinity: Option<Affinity>,
    /// RLIMIT_NOFILE of workers.
    pub nofile: Option<u64>,
    /// RLIMIT_CORE of workers.
    pub core: Option<u64>,
    /// The nice value of workers.
    pub priority: i32,
    /// The working directory of workers.
    pub directory: Option<PathBuf>,
    /// Environment variables that workers keep, and those with a new value.
    pub environment: Vec<(OsString, Option<OsString>)>,
    /// How long workers may take to finish before their connections are closed.
    pub shutdown_timeout: Option<Duration>,
    /// The shortest interval at which the time of day is read. None: once a turn.
    pub timer_resolution: Option<Duration>,
    /// The `error_log` lines, whose files are not open yet.
    pub error_logs: Vec<Directive>,
    /// The pool of `thread_pool default`.
    pub files: FileThreads,
    /// The pools of the other `thread_pool` lines.
    pub pools: Vec<(String, FileThreads)>,
    /// The `events` block.
    pub events: Events,
}

impl Config {
    /// Reads `main` and `events`, whose form `check` has accepted. Returns warnings, too.
    pub fn read(
        main: &[Directive],
        paths: &Paths,
        machine: &Machine,
    ) -> Result<(Config, Vec<Error>), Error> {
        let mut raw = RawConfig { machine: machine.clone(), ..RawConfig::default() };
        for directive in main {
            raw.take(directive, Contexts::MAIN)?;
        }
        let (mut config, warnings) = raw.mean(paths)?;
        config.transparent = main.iter().any(is_transparent);
        Ok((config, warnings))
    }

    /// nginx's warning if more connections are allowed than open files.
    pub fn scarce_files(&self) -> Option<Error> {
        let current = || getrlimit(Resource::Nofile).current;
        let limit = self.nofile.or_else(current)?;
        let connections = self.events.connections;
        let text =
            format!("{connections} worker_connections exceed open file resource limit: {limit}");
        (connections as u64 > limit).then(|| Error::warn(text))
    }

    /// The number of loops of the server.
    pub fn loops(&self) -> usize {
        self.processes * self.threads
    }
}

/// Whether this is a `proxy_bind` or similar with `transparent`, or a block that contains one.
fn is_transparent(directive: &Directive) -> bool {
    let binds = directive.name.bytes.ends_with(b"_bind");
    let inside = directive.shared_block().filter(|block| block.inside().binds);
    binds && directive.arg(1).is_some_and(|word| word.is("transparent"))
        || inside.is_some_and(|block| block.iter().any(is_transparent))
}

impl RawConfig {
    fn take(&mut self, directive: &Directive, context: Contexts) -> Result<(), Error> {
        if context == Contexts::MAIN && directive.name.is("events") {
            return directive.block().iter().try_for_each(|d| self.take(d, Contexts::EVENTS));
        }
        match directive.name.str().and_then(|name| find(name, context)) {
            Some(line) => (line.set)(self, directive),
            // Another module's directive or `http`, or one that is not built, for which the check
            // was responsible.
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
            raw => raw,
        };
        let (mut files, mut pools) = (FileThreads { threads: THREADS, queue: QUEUE }, self.pools);
        if let Some(at) = pools.iter().position(|(name, _)| name == "default") {
            files = pools.remove(at).1;
        }
        // As in nginx, an empty name is the default one.
        let pid = self.pid.as_deref().filter(|name| !name.is_empty());
        let pid = pid.map(|name| joined(&paths.prefix, name));
        let config = Config {
            daemon: self.daemon.unwrap_or(true),
            master,
            pid: pid.or_else(|| paths.pid.clone()),
            user,
            transparent: false,
            // Without a master, this process is the only worker.
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

/// The most loops of a server at a time, including those of older configurations.
pub const MOST_LOOPS: usize = 2047;

/// nginx's default values.
const CONNECTIONS: usize = 512;
const AT_ONCE: usize = 512;
const THREADS: usize = 32;
const QUEUE: usize = 65536;
const MUTEX_DELAY: Duration = Duration::from_millis(500);
