//! The start of the program: from the command line to the role of this process. nginx: main().

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use rustix::process::{Signal, kill_process};
use weir_conf::Sources;
use weir_log::{Cause, Level, Log, OpenLogs, log};
use weir_sys::guarded;
use weir_zone::Zones;

use crate::cli::{self, CommandLine, CommandLineError};
use crate::config::Machine;
use crate::cycle::{Cycle, Origin, advise, dump, say};
use crate::daemon::Side;
use crate::embedded::InMemory;
use crate::listen::Post;
use crate::master::{Master, Role};
use crate::paths::Paths;
use crate::sockets::{Purpose, Sockets, SocketsFailed};
use crate::{daemon, embedded, inherit, pidfile, signals, single, trial, version, worker};

/// Runs the server as the command line says, and returns the exit code. `tools` are the other tools
/// of the program, each with its name and purpose, for `-h` and `-V`.
pub fn run(args: Vec<OsString>, tools: &[(&str, &str)]) -> i32 {
    let options = match cli::parse(args.get(1..).unwrap_or_default()) {
        Ok(options) => options,
        Err(e) => {
            say(&format!("{e}{}", remedy(&e, tools)));
            return 1;
        }
    };
    let exists = |path: &Path| !options.demo && path.exists();
    let paths = Paths::new(&options, exists);
    if options.version {
        show(&options, &paths, tools);
        if !options.test {
            return 0;
        }
    }
    let globals = options.globals.as_deref().map(|g| g.to_string_lossy().into_owned());
    let logs = Arc::new(OpenLogs::new());
    let (in_memory, machine) = (InMemory::built_in(), Machine::here());
    let origin = Origin { paths, in_memory, globals, logs, machine };
    let least = if options.test { Level::Info } else { Level::Notice };
    let log = origin.first_log(least);
    let done = match (options.test, options.signal) {
        (true, _) => test(&origin, &options, &log),
        (false, Some(signal)) => send_signal(&origin, signal, &log),
        (false, None) => {
            if let Some(conf) = &origin.paths.conf
                && !options.names_a_file()
                && std::io::stderr().is_terminal()
            {
                say(&default_file(conf));
            }
            let is_built_in = origin.paths.conf.is_none();
            let done = serve(origin, log, args, embedded::greeting);
            if done.is_err() && is_built_in && embedded::is_taken() {
                say(&embedded::where_else());
            }
            done
        }
    };
    done.unwrap_or(1)
}

/// Serves an in-memory configuration in the foreground, and returns the exit code. Prints
/// `greeting` once its sockets are open.
pub fn run_in_memory(in_memory: InMemory, greeting: &str) -> i32 {
    let mut paths = Paths::new(&CommandLine::default(), |_| false);
    if let Some(temporary) = &in_memory.temporary {
        paths.temporary = temporary.clone();
    }
    let (logs, machine) = (Arc::new(OpenLogs::new()), Machine::here());
    let origin = Origin { paths, in_memory, globals: None, logs, machine };
    let log = origin.first_log(Level::Notice);
    let args = std::env::args_os().collect();
    serve(origin, log, args, |_| greeting.to_owned()).unwrap_or(1)
}

/// A hint for a word that is no option. It may be a misspelt tool.
fn remedy(e: &CommandLineError, tools: &[(&str, &str)]) -> String {
    let CommandLineError::Option(word) = e else { return String::new() };
    let close = weir_conf::closest(word, tools.iter().map(|(name, _)| *name));
    close
        .map_or(String::new(), |name| format!("; did you mean \"{name}\"? weir -h lists the tools"))
}

fn show(options: &CommandLine, paths: &Paths, tools: &[(&str, &str)]) {
    let mut text = version::version();
    if options.help {
        text += &version::help(paths, tools);
    }
    if options.configure {
        let modules: Vec<_> = crate::modules::names().collect();
        text += &version::configure(&modules, &paths.configured());
        text += &version::built_tools(tools);
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Runs `-t` or `-T`.
fn test(origin: &Origin, options: &CommandLine, log: &Log) -> Result<i32, SocketsFailed> {
    let name = origin.paths.conf_name();
    let tried = try_out(origin, options, log);
    match &tried {
        Err(SocketsFailed) => say(&format!("configuration file {name} test failed")),
        Ok(_) if options.quiet => {}
        Ok(_) => say(&format!("configuration file {name} test is successful")),
    }
    let sources = tried?;
    if options.dump {
        // A reader that has gone needs no more of it.
        let _ = dump(&sources, &mut std::io::stdout().lock());
    }
    Ok(0)
}

fn try_out(origin: &Origin, options: &CommandLine, log: &Log) -> Result<Sources, SocketsFailed> {
    let plan = origin.read(log)?;
    if !options.quiet {
        say(&format!("the configuration file {} syntax is ok", origin.paths.conf_name()));
    }
    let configured = origin.starting_log(&plan);
    let log = configured.as_ref().unwrap_or(log);
    if let Some(path) = &plan.config.pid {
        pidfile::check(path).map_err(|e| cannot_open(path, &e, log))?;
    }
    let sources = plan.sources.clone();
    plan.open(&Sockets::default(), &Zones::default(), &Post::default(), Purpose::Test, log)?;
    Ok(sources)
}

/// Runs `-s`: sends a signal to the running master.
fn send_signal(origin: &Origin, signal: cli::Signal, log: &Log) -> Result<i32, SocketsFailed> {
    let plan = origin.judge(log)?;
    log!(log, Notice, None, "signal process started");
    let Some(path) = &plan.config.pid else {
        log!(log, Error, None, "there is no pid file with the built-in configuration");
        return Err(SocketsFailed);
    };
    let pid = pidfile::read(path).map_err(|e| {
        log!(log, Error, None, "{}", e.text(path));
        SocketsFailed
    })?;
    let signal = match signal {
        cli::Signal::Stop => Signal::TERM,
        cli::Signal::Quit => Signal::QUIT,
        cli::Signal::Reopen => Signal::USR1,
        cli::Signal::Reload => Signal::HUP,
    };
    kill_process(pid, signal).map_err(|e| {
        let (pid, number) = (pid.as_raw_nonzero(), signal.as_raw());
        log!(log, Alert, None, "kill({pid}, {number}) failed {}", Cause(&e.into()));
        SocketsFailed
    })?;
    Ok(0)
}

/// Starts the server. Returns when this process has done its part. `greeting` makes the greeting of
/// an in-memory configuration, from its number of loops.
fn serve(
    origin: Origin,
    first: Log,
    args: Vec<OsString>,
    greeting: impl FnOnce(usize) -> String,
) -> Result<i32, SocketsFailed> {
    let left = inherit::take(&first);
    let inherited = left.is_some();
    let (left, post) = left.unwrap_or_default();
    let plan = origin.read(&first)?;
    let first = origin.starting_log(&plan).unwrap_or(first);
    let mut cycle = plan.open(&left, &Zones::default(), &post, Purpose::Serve, &first)?;
    drop((left, post));
    trial::run(&mut cycle, &first)?;
    describe(&cycle, &cycle.log);
    // A process that reads the greeting or the pid file may send a signal at once. The signal stays
    // pending until it is read.
    signals::prepare().map_err(|e| {
        log!(first, Emerg, None, "signals cannot be taken {}", Cause(&e));
        SocketsFailed
    })?;
    if origin.paths.conf.is_none() {
        let _ = std::io::stdout().write_all(greeting(cycle.config.loops()).as_bytes());
    }
    let mut starter = None;
    // A successor is in the background if its predecessor is.
    if cycle.config.daemon && !inherited {
        match daemon::detach() {
            Ok(Side::Foreground(code)) => {
                if code == 0 && std::io::stdout().is_terminal() {
                    let text = in_the_background(&origin.paths.conf_name());
                    let _ = std::io::stdout().write_all(text.as_bytes());
                }
                return Ok(code);
            }
            Ok(Side::Background(waiting)) => starter = Some(waiting),
            Err((call, e)) => {
                let why = Cause(&e);
                log!(first, Emerg, None, "cannot go to the background: {call} failed {why}");
                return Err(SocketsFailed);
            }
        }
    }
    if let Some(path) = &cycle.config.pid {
        pidfile::write(path).map_err(|e| cannot_open(path, &e, &first))?;
    }
    redirect_stderr(&cycle.log);
    drop(first);
    play(origin, cycle, inherited, args, || {
        if let Some(starter) = starter {
            starter.release();
        }
    })
}

/// A message on a terminal, if weir was started without options: which file it serves.
fn default_file(conf: &Path) -> String {
    let conf = conf.display();
    format!(
        "serving {conf}, since it exists; -c names another file, --demo shows the built-in page"
    )
}

/// A message on a terminal, since weir shows nothing else in the background.
fn in_the_background(conf: &str) -> String {
    format!("weir serves {conf} in the background; with the same options, -s quit ends it.\n")
}

/// Runs the master, or a worker that was forked from it. Calls `started` once the server has
/// started.
fn play(
    origin: Origin,
    cycle: Cycle,
    inherited: bool,
    args: Vec<OsString>,
    started: impl FnOnce(),
) -> Result<i32, SocketsFailed> {
    if !cycle.config.master {
        started();
        return Ok(single::run(cycle, origin));
    }
    let (log, pid) = (Arc::clone(&cycle.log), cycle.config.pid.clone());
    let master = Master::new(origin, cycle, args, inherited).map_err(|e| {
        log!(log, Emerg, None, "the master cannot start {}", Cause(&e));
        let _ = pid.as_deref().map(guarded::remove);
        SocketsFailed
    })?;
    started();
    match master.run() {
        Role::Exit(code) => Ok(code),
        Role::Worker(assignment) => Ok(worker::run(*assignment)),
    }
}

fn cannot_open(path: &Path, e: &std::io::Error, log: &Log) -> SocketsFailed {
    log!(log, Emerg, None, "open() \"{}\" failed {}", path.display(), Cause(e));
    advise(path, e, log);
    SocketsFailed
}

/// Logs nginx's start-up lines about the server and the machine.
fn describe(cycle: &Cycle, log: &Log) {
    let backend = cycle.config.events.backend.name();
    log!(log, Notice, None, "using the \"{backend}\" event method");
    log!(log, Notice, None, "weir/{} (nginx/{})", version::VERSION, version::NGINX);
    let system = rustix::system::uname();
    let (name, release) = (system.sysname().to_string_lossy(), system.release().to_string_lossy());
    log!(log, Notice, None, "OS: {name} {release}");
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let shown = |n: Option<u64>| n.map_or("unlimited".to_owned(), |n| n.to_string());
    let (soft, hard) = (shown(limit.current), shown(limit.maximum));
    log!(log, Notice, None, "getrlimit(RLIMIT_NOFILE): {soft}:{hard}");
}

/// Redirects stderr, to which libraries and panics write, to the error log. Not if the log is the
/// terminal.
pub fn redirect_stderr(log: &Log) {
    if let Some(file) = log.stands_for_stderr()
        && let Err(e) = rustix::stdio::dup2_stderr(file)
    {
        log!(log, Alert, None, "dup2(STDERR) failed {}", Cause(&e.into()));
    }
}
