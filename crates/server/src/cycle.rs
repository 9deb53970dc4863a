//! A configuration, from its text to open sockets. nginx: ngx_cycle_t.

use std::io;
use std::io::ErrorKind::{InvalidInput, NotFound};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_balance::{AcceptPolicy, SocketLayout};
use weir_conf::{
    ConfigTree, Contexts, Directive, DirectiveBody, Error, KnownDirective, Level as Severity,
    Sources,
};
use weir_http::Site;
use weir_log::{Level, Log, OpenLogs, Sink, log};
use weir_sys::sockopt::IdSteering;

use crate::config::{self, Config, Machine};
use crate::directories;
use crate::embedded::InMemory;
use crate::listen::{CycleShared, Post};
use crate::paths::Paths;
use crate::service::Sites;
use crate::sockets::{Purpose, Sockets, SocketsFailed};
use crate::version;
use weir_values::listen::Listen;
use weir_values::{Address, ChangePlace, Inputs};
use weir_zone::{Declarations, Zones};

/// The origin of configurations, which is the same at every reload.
#[derive(Debug)]
pub struct Origin {
    /// The paths of files.
    pub paths: Paths,
    /// The configuration if `paths` name no file.
    pub in_memory: InMemory,
    /// The directives of `-g`.
    pub globals: Option<String>,
    /// The log files of this process.
    pub logs: Arc<OpenLogs>,
    /// The processors, for `auto`.
    pub machine: Machine,
}

/// A configuration that was read without errors. Only its log files may be open.
#[derive(Debug)]
pub struct Plan {
    /// `main` and `events`.
    pub config: Config,
    /// What is served.
    pub sites: Sites,
    /// Where the configuration logs to.
    pub log: Arc<Log>,
    /// The shared memory that it declares.
    pub zones: Declarations,
    /// The directory for temporary files of requests. The built-in configuration has none and
    /// writes nothing.
    temporary: Option<PathBuf>,
    /// The texts, for `-T`.
    pub sources: Sources,
    /// The directives from which it was compiled.
    pub text: Edition,
}

/// The directives of a configuration with a number, by which processes of the server refer to them.
#[derive(Clone, Debug)]
pub struct Edition {
    /// Unique in this process and those that it starts.
    pub number: u64,
    /// The top-level directives.
    pub main: Arc<Vec<Directive>>,
}

impl Edition {
    /// Numbers these directives.
    pub fn next(main: Vec<Directive>) -> Edition {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Edition { number, main: Arc::new(main) }
    }
}

/// An error in a configuration.
#[derive(Debug)]
pub struct Complaint {
    /// The message, the line that it is about, and a caret below the position.
    pub text: String,
    /// The position.
    pub place: ChangePlace,
}

impl Complaint {
    fn of(tree: &ConfigTree, error: &Error) -> Complaint {
        let at = tree.sources.place(error);
        let source = at.and_then(|pos| tree.sources.get(pos.file));
        let file = source.map(|source| source.name.display().to_string()).unwrap_or_default();
        let line = source.and(at).map_or(0, |pos| pos.line);
        let path = weir_conf::path_of(&tree.main, error).unwrap_or_default();
        let text = tree.sources.explain(error);
        Complaint { text, place: ChangePlace { file, line, path } }
    }

    /// An error without a position.
    pub fn new(text: impl Into<String>) -> Complaint {
        Complaint { text: text.into(), place: ChangePlace::default() }
    }
}

/// A configuration in use.
#[derive(Clone, Debug)]
pub struct Cycle {
    /// `main` and `events`.
    pub config: Config,
    /// What is served.
    pub sites: Sites,
    /// The main error log.
    pub log: Arc<Log>,
    /// The listening sockets, in the order of the sites' lists.
    pub sockets: Sockets,
    /// The open shared memory.
    pub zones: Zones,
    /// The load table and the notifiers of its loops.
    pub load: Arc<CycleShared>,
    /// The socket pairs that pass datagrams to the loop with their QUIC connection.
    pub post: Arc<Post>,
    /// The directives from which it was compiled.
    pub text: Edition,
    /// The most connections of the privileged agent, if a script wants one.
    pub agent: Option<usize>,
}

impl Origin {
    /// Reads the configuration and opens its logs. Errors and warnings go to `log`. Logs are opened
    /// last, so a configuration whose log cannot be opened has no other error.
    pub fn read(&self, log: &Log) -> Result<Plan, SocketsFailed> {
        self.open_logs(self.judge(log)?, log)
    }

    /// Opens the logs of a plan.
    pub fn open_logs(&self, plan: Plan, log: &Log) -> Result<Plan, SocketsFailed> {
        let unread = self.logs.open_waiting().map_err(|(path, e)| {
            // nginx's names end at a NUL, so it finds no such file.
            let e = if e.kind() == InvalidInput { std::io::Error::from_raw_os_error(2) } else { e };
            log!(log, Emerg, None, "{}", open_failed(&path, &e));
            advise(&path, &e, log);
            SocketsFailed
        })?;
        for path in unread {
            let text = "has no reader, its lines are dropped until the logs are reopened";
            log!(log, Warn, None, "the pipe \"{}\" {text}", path.display());
        }
        directories::warn_of_logs(&self.logs, plan.config.user.as_ref(), log);
        Ok(plan)
    }

    /// Reads the configuration without opening anything.
    pub fn judge(&self, log: &Log) -> Result<Plan, SocketsFailed> {
        self.compile(self.tree(), None, None, log).map_err(|_| SocketsFailed)
    }

    /// The tree of the configuration on disk, or in memory.
    fn tree(&self) -> ConfigTree {
        match &self.paths.conf {
            Some(path) => weir_conf::read(path, self.globals.as_deref()),
            None => self.in_memory.tree(self.globals.as_deref()),
        }
    }

    /// Compiles a tree into a plan without opening anything. Upstream groups and caches that
    /// `before` has are shared with it. Blocks that are equal in `known` need not be compiled
    /// again; `known` must be equal outside of `http`.
    ///
    /// # Errors
    ///
    /// The first error, which was also logged.
    pub fn compile(
        &self,
        tree: ConfigTree,
        before: Option<&Sites>,
        known: Option<&Sites>,
        log: &Log,
    ) -> Result<Plan, Complaint> {
        let log_error = |error: &Error| log_error(log, &tree.sources, error);
        let refuse = |error: Error| {
            log_error(&error);
            Complaint::of(&tree, &error)
        };

        // A running worker compiles a tree that the master has checked and warned about.
        let warn = |error: &Error| {
            if before.is_none() {
                log_error(error);
            }
        };
        if before.is_none() {
            let warnings = weir_conf::check(&tree, &built).map_err(refuse)?;
            warnings.iter().chain(&weir_conf::open_panels(&tree)).for_each(warn);
        }
        let (config, warnings) =
            Config::read(&tree.main, &self.paths, &self.machine).map_err(refuse)?;
        warnings.iter().for_each(warn);
        if let Some(warning) = config.scarce_files() {
            warn(&warning);
        }
        let configured = Arc::new(self.error_log(&config).map_err(refuse)?);
        let zones = Declarations::default();
        let block = |name| tree.main.iter().find(|directive| directive.name.is(name));
        let pools: Vec<&str> = config.pools.iter().map(|(name, _)| name.as_str()).collect();
        let inputs = Inputs {
            configured: &version::arguments(
                &crate::modules::names().collect::<Vec<_>>(),
                &self.paths.configured(),
            ),
            prefix: &self.paths.prefix,
            conf_prefix: &self.paths.conf_prefix,
            logs: &self.logs,
            access_log: &self.paths.access_log,
            temporary: &self.paths.temporary,
            error_log: &configured,
            zones: &zones,
            pools: &pools,
            sources: &tree.sources,
            sessions: block("stream"),
            before: before.and_then(|sites| sites.http.as_deref()).map(|site| site as _),
            known: known.and_then(|sites| sites.http.as_deref()).map(|site| site as _),
        };
        let (mut sites, mut warnings) = (Sites::default(), Vec::new());
        // The scripts of sessions run beside those of requests, so `http` is compiled even if it is
        // missing.
        let scripted = block("stream").filter(|stream| weir_http::has_scripts(stream));
        let without = scripted.map(|stream| Directive {
            body: DirectiveBody::Block(Vec::new().into()),
            ..stream.clone()
        });
        if let Some(block) = block("http").or(without.as_ref()) {
            let site = weir_http::configure(block, inputs, &mut warnings);
            warnings.drain(..).for_each(|warning| warn(&warning));
            sites.http = Some(Arc::new(site.map_err(refuse)?));
        }
        if let Some(block) = block("stream") {
            let site = weir_stream::configure(block, inputs, &mut warnings);
            warnings.drain(..).for_each(|warning| warn(&warning));
            sites.stream = Some(Arc::new(site.map_err(refuse)?));
        }
        if let Some(block) = block("mail") {
            let site = weir_mail::configure(block, inputs, &mut warnings);
            warnings.drain(..).for_each(|warning| warn(&warning));
            sites.mail = Some(Arc::new(site.map_err(refuse)?));
        }
        let (connections, listens) = (config.events.connections, sites.listens().len());
        if connections <= listens {
            let text = "worker_connections are not enough";
            let text = format!("{connections} {text} for {listens} listening sockets");
            return Err(refuse(Error::emerg(text)));
        }
        if sites.logs_to_stderr() {
            configured.leave_stderr();
        }
        let temporary = match self.paths.conf {
            Some(_) => Some(self.paths.temporary.clone()),
            None => self.in_memory.temporary.clone(),
        };
        let ConfigTree { sources, main, .. } = tree;
        let text = Edition::next(main);
        Ok(Plan { config, sites, log: configured, zones, temporary, sources, text })
    }

    /// Opens the `error_log` lines of `main`. If none of them is a file or stderr, the default log
    /// is added, so that there is always one.
    fn error_log(&self, config: &Config) -> Result<Log, Error> {
        let mut sinks = Vec::new();
        for line in &config.error_logs {
            let words: Vec<_> = line.args.iter().map(|word| word.lossy()).collect();
            let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
            let sink = weir_log::sink(&words, &self.paths.prefix, &self.logs);
            sinks.push(sink.map_err(|reject| line.error(reject.to_string()))?);
        }
        if sinks.iter().all(|(_, sink)| matches!(sink, Sink::Syslog(_) | Sink::Memory(_))) {
            sinks.push((Level::Error, self.default_sink()?));
        }
        Ok(Log::bounded(sinks))
    }

    fn default_sink(&self) -> Result<Sink, Error> {
        let Some(path) = &self.paths.error_log else { return Ok(Sink::Stderr) };
        let failed = |e| Error::emerg(open_failed(path, &e));
        self.logs.open_later(path).map(Sink::File).map_err(failed)
    }

    /// The log until the configuration is known: the file of `-e` or the default one, and the
    /// terminal.
    pub fn first_log(&self, least: Level) -> Log {
        let sink = match &self.paths.error_log {
            // Without a configuration file, a person reads the terminal, and gets sentences instead
            // of log lines.
            None if self.paths.conf.is_none() => return Log::echoing(Vec::new(), "weir"),
            None => Sink::Stderr,
            Some(path) => match self.logs.open(path) {
                Ok(file) => Sink::File(file),
                Err(e) => {
                    let text = open_failed(path, &e);
                    say(&format!("[alert] could not open error log file: {text}"));
                    Sink::Stderr
                }
            },
        };
        match sink {
            Sink::Stderr => Log::new(vec![(least, Sink::Stderr)]),
            file => Log::echoing(vec![(least, file)], "weir"),
        }
    }

    /// The log until the server has started: the configured logs, and the terminal. None without a
    /// configuration file, since the terminal is the log then.
    pub fn starting_log(&self, plan: &Plan) -> Option<Log> {
        let sinks = plan.log.sinks().to_vec();
        self.paths.conf.as_ref().map(|_| Log::echoing(sinks, "weir"))
    }
}

impl Cycle {
    /// A new load table for workers of this cycle.
    pub fn new_load(&self) -> std::io::Result<CycleShared> {
        CycleShared::new(self.config.loops(), self.config.events.balance.shape(), &self.sockets)
    }
}

impl Cycle {
    /// A copy of the cycle for the privileged agent, which may have this many connections. It has
    /// one loop without listening sockets, and the master's user.
    pub fn for_agent(&self, connections: usize) -> std::io::Result<Cycle> {
        let mut cycle = self.clone();
        cycle.sockets = Sockets::default();
        cycle.load = Arc::new(CycleShared::new(1, SocketLayout::SocketEach, &cycle.sockets)?);
        cycle.post = Arc::default();
        cycle.sites.stream = None;
        cycle.sites.mail = None;
        cycle.config.threads = 1;
        cycle.config.user = None;
        cycle.config.affinity = None;
        cycle.config.events.connections = connections.max(1);
        Ok(cycle)
    }

    /// Makes the kernel choose sockets for new connections and datagrams by this cycle's loops from
    /// now on.
    pub fn steer(&self) {
        self.load.steer(&self.sockets, &self.log);
        let by = |number| steering(self.sites.http.as_deref(), number, self.config.loops());
        self.sockets.steer_by_ids(by, &self.log);
    }

    /// A copy of the cycle for new workers.
    pub fn renewed(&self) -> std::io::Result<Cycle> {
        let of_http = self.sites.http.as_ref().map_or(&[][..], |site| site.listens());
        let post = Post::after(&self.post, self.config.loops(), of_http)?;
        let load = self.new_load()?;
        Ok(Cycle { load: Arc::new(load), post: Arc::new(post), ..self.clone() })
    }
}

impl Plan {
    fn create_directories(&self, log: &Log) -> Result<(), SocketsFailed> {
        let Some(own) = &self.temporary else { return Ok(()) };
        let (paths, user) = (self.sites.directories(), self.config.user.as_ref());
        directories::create(paths, own, user, log)
    }

    /// A cycle that keeps everything that `old` has open and only changes what its `http` block
    /// serves. Returns the plan if it needs shared memory that is not open.
    pub fn beside(self, old: &Cycle, log: &Log) -> Result<Result<Cycle, Box<Plan>>, SocketsFailed> {
        let zones = self.open_zones(&old.zones, log)?;
        if !zones.are_of(&old.zones) {
            return Ok(Err(Box::new(self)));
        }
        self.create_directories(log)?;
        let (stream, mail) = (old.sites.stream.clone(), old.sites.mail.clone());
        let sites = Sites { http: self.sites.http, stream, mail };
        Ok(Ok(Cycle { sites, zones, log: self.log, text: self.text, ..old.clone() }))
    }

    fn open_zones(&self, old: &Zones, log: &Log) -> Result<Zones, SocketsFailed> {
        self.zones.open(old).map_err(|error| {
            log!(log, Emerg, None, "{error}");
            SocketsFailed
        })
    }

    /// Opens the sockets and the shared memory of the configuration. Takes over what the old one
    /// has open.
    pub fn open(
        self,
        old_sockets: &Sockets,
        old_zones: &Zones,
        old_post: &Post,
        purpose: Purpose,
        log: &Log,
    ) -> Result<Cycle, SocketsFailed> {
        let zones = self.open_zones(old_zones, log)?;
        self.create_directories(log)?;
        let loops = self.config.loops();
        let each = self.config.events.balance.shape() == SocketLayout::SocketEach;
        let each = |listen: &Listen| {
            let may = matches!(listen.address, Address::Inet(_))
                || weir_engine::unix_sockets_share_addresses();
            (each || listen.reuseport || listen.udp) && may
        };
        let waits = matches!(self.config.events.balance.shape(), SocketLayout::Shared { .. });
        // All loops accept new QUIC connections from one socket, as with TCP.
        let shares_first = |listen: &Listen| listen.quic && waits && loops > 1 && each(listen);
        let copies = |listen: &Listen| match each(listen) {
            true => loops + usize::from(shares_first(listen)),
            false => 1,
        };
        let mut sockets = Sockets::open(&self.sites.listens(), copies, old_sockets, purpose, log)?;
        if self.config.events.balance == AcceptPolicy::ReuseportLoad && purpose == Purpose::Serve {
            sockets.enlist(log);
        }
        let shape = self.config.events.balance.shape();
        let cycle_shared = CycleShared::new(loops, shape, &sockets).map_err(|e| {
            log!(log, Emerg, None, "the load table could not be made {}", weir_log::Cause(&e));
            SocketsFailed
        })?;
        let of_http = self.sites.http.as_ref().map_or(&[][..], |site| site.listens());
        let post = Post::after(old_post, loops, of_http).map_err(|e| {
            log!(log, Emerg, None, "socketpair() failed {}", weir_log::Cause(&e));
            SocketsFailed
        })?;
        if post.is_used() {
            weir_http::make_host_key();
        }
        sockets.share_first_sockets(shares_first);
        Ok(Cycle {
            config: self.config,
            sites: self.sites,
            log: self.log,
            sockets,
            zones,
            load: Arc::new(cycle_shared),
            post: Arc::new(post),
            text: self.text,
            agent: None,
        })
    }
}

/// How the kernel finds the loop of a QUIC connection id at this socket.
fn steering(site: Option<&Site>, number: usize, loops: usize) -> io::Result<IdSteering> {
    let site = site.ok_or(io::ErrorKind::NotFound)?;
    let by = weir_http::host_key_of(site, number)?.steering(loops);
    let (length, loops) = (weir_http::QUIC_ID_LENGTH as u8, by.loops.into());
    Ok(IdSteering { length, xor: by.xor, factor: by.factor, loops })
}

/// Prints the texts of a configuration, as `-T` does.
pub fn dump(sources: &Sources, out: &mut impl Write) -> std::io::Result<()> {
    for source in sources.iter().filter(|source| !source.command_line) {
        writeln!(out, "# configuration file {}:", source.name.display())?;
        out.write_all(&source.text)?;
        writeln!(out)?;
    }
    out.flush()
}

/// Prints a line on stderr, as nginx does.
pub fn say(text: &str) {
    // A failure of stderr cannot be reported.
    let _ = writeln!(std::io::stderr(), "weir: {text}");
}

fn open_failed(path: &Path, e: &std::io::Error) -> String {
    format!("open() \"{}\" failed {}", path.display(), weir_log::Cause(e))
}

/// Whether weir implements the directive in that context.
pub fn built(known: &KnownDirective, context: Contexts) -> bool {
    const OF_HTTP: Contexts = Contexts::HTTP
        .or(Contexts::SERVER)
        .or(Contexts::LOCATION)
        .or(Contexts::IF_SERVER)
        .or(Contexts::IF_LOCATION)
        .or(Contexts::LIMIT_EXCEPT)
        .or(Contexts::UPSTREAM);
    config::built(known, context)
        || (OF_HTTP.meets(context) && weir_http::built(known.name))
        || (OF_STREAM.meets(context) && weir_stream::directive(known.name).is_some())
        || (OF_MAIL.meets(context) && weir_mail::directive(known.name).is_some())
}

/// The contexts of `stream`.
const OF_STREAM: Contexts =
    Contexts::STREAM.or(Contexts::STREAM_SERVER).or(Contexts::STREAM_UPSTREAM);

/// The contexts of `mail`.
const OF_MAIL: Contexts = Contexts::MAIL.or(Contexts::MAIL_SERVER);

/// The sentence of help about a directive, for docs/directives.md.
pub fn help(known: &KnownDirective) -> Option<&'static str> {
    if known.contexts.each().all(|at| OF_STREAM.meets(at)) {
        return weir_stream::directive(known.name).map(|d| d.help);
    }
    if known.contexts.each().all(|at| OF_MAIL.meets(at)) {
        return weir_mail::directive(known.name).map(|d| d.help);
    }
    let of_http = || weir_http::modules::directive(known.name).map(|d| d.help);
    config::help(known).or_else(of_http)
}

/// Logs the first line of an error, and shows the rest on a terminal.
fn log_error(log: &Log, sources: &Sources, error: &Error) {
    let level = match error.level {
        Severity::Emerg => Level::Emerg,
        Severity::Alert => Level::Alert,
        Severity::Crit => Level::Crit,
        Severity::Error => Level::Error,
        Severity::Warn => Level::Warn,
    };
    // The excerpt is of no use without its message.
    if !log.enabled(level) {
        return;
    }
    log.write(level, None, format_args!("{}", sources.first_line(error)));
    if log.is_on_terminal() {
        let whole = sources.explain(error);
        if let Some((_, rest)) = whole.split_once('\n') {
            let _ = writeln!(std::io::stderr(), "{rest}");
        }
    }
}

/// Tells a person on a terminal what to do if the directory of a log or pid file is missing. nginx
/// has no such hint.
pub fn advise(path: &Path, e: &std::io::Error, log: &Log) {
    let missing = path.parent().filter(|directory| e.kind() == NotFound && !directory.exists());
    if let Some(directory) = missing.filter(|_| log.is_on_terminal()) {
        let directory = directory.display();
        let _ = writeln!(
            std::io::stderr(),
            "  its directory is missing: \"mkdir -p {directory}\" makes it; error_log, access_log and pid name other places"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn the_built_in_configuration_is_right_and_writes_nothing() {
        let paths = Paths::new(&cli::CommandLine::default(), |_| false);
        let (globals, machine) = (None, Machine::here());
        let (logs, in_memory) = (Arc::new(OpenLogs::new()), InMemory::built_in());
        let origin = Origin { paths, in_memory, globals, logs, machine };
        let plan = origin.read(&origin.first_log(Level::Notice)).unwrap();
        assert!(!plan.config.daemon && plan.config.pid.is_none());
        assert!(plan.log.is_on_terminal());
        let listens = plan.sites.listens();
        assert_eq!(listens.len(), 1);
        assert!(listens[0].address.ip().is_some_and(|ip| ip.is_loopback()));
        // Nor does it need a directory, since a bare machine has none of nginx's.
        assert_eq!(plan.temporary, None);
    }
}
