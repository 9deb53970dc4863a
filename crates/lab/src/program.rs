//! The servers under test: binary, accept model and configuration.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::slow_disk::Spread;

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Weir,
    Nginx,
    Haproxy,
}

/// A server's binary.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) family: Family,
    /// Its version line: `nginx/1.22.1`.
    pub(crate) version: String,
    /// nginx only: path of its Lua module, for a handler that blocks.
    lua: Option<PathBuf>,
    /// HAProxy only: whether it can run Lua scripts.
    scripts: bool,
    /// nginx without Lua: the length of a text that [`HARD_PATTERN`] takes a millisecond to reject.
    pub(crate) slow_text_length: Option<f64>,
    /// Whether a slow open() can block its worker: nginx without Lua, HAProxy with it.
    pub(crate) opens_slowly: bool,
}

/// A regular expression that rejects `aaa...b` in time proportional to the cube of its length:
/// backtracking tries all three borders.
const HARD_PATTERN: &str = "^a*a*a*a*$";

/// A program with one way to accept.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) program: Program,
    /// Its name in tables.
    pub(crate) label: String,
    events: String,
    listen: &'static str,
    /// Further lines for `http`.
    http: &'static str,
}

/// The setup of a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerSetup {
    pub(crate) processes: usize,
    /// Loops per process. weir only.
    pub(crate) threads: usize,
    /// How each request blocks its loop.
    pub(crate) work: Option<HandlerWork>,
    /// Whether to log which worker served which connection.
    pub(crate) log: bool,
    /// Further lines for `events`.
    pub(crate) events: &'static str,
    /// Further lines for `http`.
    pub(crate) http: String,
    /// Further lines for its `server`.
    pub(crate) server: String,
}

/// How a handler blocks its loop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandlerWork {
    /// Sleeps.
    Sleep(Duration),
    /// Computes.
    Spin(Duration),
    /// Sleeps for the first time, or for the second in this share of requests.
    Either(Duration, Duration, f64),
}

impl HandlerWork {
    /// The distribution of its sleep times, if it sleeps.
    pub(crate) fn sleeps(self) -> Option<Spread> {
        match self {
            HandlerWork::Sleep(time) => Some(Spread::Fixed(time)),
            HandlerWork::Either(usual, rare, share) => Some(Spread::Either(usual, rare, share)),
            HandlerWork::Spin(_) => None,
        }
    }
}

impl Default for ServerSetup {
    fn default() -> Self {
        let (http, server) = Default::default();
        ServerSetup { processes: 4, threads: 1, work: None, log: false, events: "", http, server }
    }
}

impl Family {
    /// The family of a program that prints this with `-V`. nginx also prints the directories that it
    /// was built in, which may have any name.
    pub(crate) fn of(version_text: &str) -> Option<Family> {
        if version_text.lines().any(|line| line.starts_with("weir version: ")) {
            Some(Family::Weir)
        } else if version_text.contains("nginx") {
            Some(Family::Nginx)
        } else if version_text.contains("HAProxy") {
            Some(Family::Haproxy)
        } else {
            None
        }
    }
}

impl Program {
    /// Reads the family from the version that the binary prints.
    pub(crate) fn inspect(name: &str, path: &Path) -> Result<Program, String> {
        let output = Command::new(path).arg("-V").output();
        let output = output.map_err(|e| format!("cannot run {}: {e}", path.display()))?;
        let version_text = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        let Some(family) = Family::of(&version_text) else {
            return Err(format!("{} is neither weir, nginx nor HAProxy", path.display()));
        };
        let modules = version_text.split("--modules-path=").nth(1);
        let modules = modules.and_then(|rest| rest.split_whitespace().next());
        let lua = modules.map(|dir| Path::new(dir).join("ngx_http_lua_module.so"));
        let lua = lua.filter(|file| file.exists() && family == Family::Nginx);
        let scripts = family == Family::Haproxy && {
            let built = Command::new(path).arg("-vv").output();
            built.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("Built with Lua"))
        };
        let version = match family {
            Family::Weir | Family::Nginx => version_text.split("version: ").nth(1),
            Family::Haproxy => version_text.split("version ").nth(1),
        };
        let version = version.and_then(|rest| rest.split_whitespace().next()).unwrap_or("-");
        let version = version.rsplit('/').next().unwrap_or(version);
        Ok(Program {
            version: version.to_owned(),
            name: name.to_owned(),
            path: path.to_owned(),
            family,
            lua,
            scripts,
            slow_text_length: None,
            opens_slowly: false,
        })
    }

    /// Whether its handlers can block their loop on purpose.
    pub(crate) fn can_work(&self) -> bool {
        match self.family {
            Family::Weir => true,
            Family::Nginx => {
                self.lua.is_some() || self.opens_slowly || self.slow_text_length.is_some()
            }
            Family::Haproxy => self.scripts && self.opens_slowly,
        }
    }

    /// Whether its handlers can sleep, some requests for longer.
    pub(crate) fn can_sleep(&self) -> bool {
        self.can_work() && (self.lua.is_some() || self.opens_slowly)
    }

    /// How its handler blocks a worker.
    pub(crate) fn way_of_work(&self) -> &'static str {
        match self.family {
            Family::Weir => "the directive work: it sleeps, or computes",
            Family::Nginx if self.lua.is_some() => "Lua that calls usleep(), or computes",
            Family::Nginx | Family::Haproxy if self.opens_slowly => {
                "a file with an open() that takes that time, on a disk made for it"
            }
            Family::Nginx if self.slow_text_length.is_some() => {
                "a regular expression that is hard to refuse: it computes where others sleep"
            }
            Family::Nginx | Family::Haproxy => "none can be made",
        }
    }

    /// Finds other ways to block a worker if there is no Lua. `time` measures a request whose
    /// handler computes for a millisecond, if possible.
    pub(crate) fn calibrated(
        mut self,
        opens_slowly: impl Fn() -> bool,
        time: impl Fn(&Program) -> Option<Duration>,
    ) -> Program {
        if self.scripts {
            self.opens_slowly = opens_slowly();
        }
        if self.family == Family::Nginx && self.lua.is_none() {
            self.opens_slowly = opens_slowly();
            let tried = 80.0;
            self.slow_text_length = Some(tried);
            let millis = time(&self).map(|t| t.as_secs_f64() * 1e3);
            let length = millis.filter(|ms| *ms > 0.0).map(|ms| tried / ms.cbrt());
            // Another length means that the expression was optimised, or that other work took the
            // time.
            self.slow_text_length = length.filter(|length| (10.0..400.0).contains(length));
        }
        self
    }

    fn subject(&self, label: &str, events: &str, listen: &'static str) -> Subject {
        let label = match self.family {
            Family::Weir => label.to_owned(),
            Family::Nginx | Family::Haproxy => format!("{}, {label}", self.name),
        };
        Subject { program: self.clone(), label, events: events.to_owned(), listen, http: "" }
    }

    /// A policy of weir.
    pub(crate) fn policy(&self, label: &str, policy: &str) -> Subject {
        self.subject(label, &format!("accept_balance {policy};"), "")
    }

    /// The default way to accept, with further lines for `http`.
    pub(crate) fn with(&self, label: &str, http: &'static str) -> Subject {
        Subject { http, ..self.subject(label, "", "") }
    }

    /// nginx's default: one queue.
    pub(crate) fn one_queue(&self) -> Subject {
        self.subject("one queue", "accept_mutex off;", "")
    }

    /// nginx with a lock around accepting.
    pub(crate) fn accept_mutex(&self) -> Subject {
        self.subject("accept_mutex on", "accept_mutex on;", "")
    }

    /// nginx with a queue per worker.
    pub(crate) fn reuseport(&self) -> Subject {
        self.subject("reuseport", "accept_mutex off;", " reuseport")
    }

    /// The most different ways to accept of a server other than weir.
    pub(crate) fn others(&self) -> Vec<Subject> {
        match self.family {
            Family::Weir => Vec::new(),
            Family::Nginx => vec![self.one_queue(), self.reuseport()],
            Family::Haproxy => self.haproxy().into(),
        }
    }

    /// The ways of HAProxy: one queue that its threads share, and a queue per thread.
    pub(crate) fn haproxy(&self) -> [Subject; 2] {
        [self.subject("one socket", "", ""), self.subject("by thread", "", " shards by-thread")]
    }
}

impl Subject {
    /// Arguments to run the program with the configuration `file` and its pid file in `dir`.
    pub(crate) fn arguments(&self, file: &Path, dir: &Path) -> Vec<OsString> {
        let (file, pid, log) = (file.into(), dir.join("pid"), dir.join("error.log"));
        let own = |text: &str| OsString::from(text);
        match self.program.family {
            Family::Haproxy => vec![own("-W"), own("-db"), own("-f"), file, own("-p"), pid.into()],
            Family::Weir | Family::Nginx => {
                vec![own("-p"), dir.into(), own("-c"), file, own("-e"), log.into()]
            }
        }
    }

    /// The number of worker processes.
    pub(crate) fn processes(&self, setup: &ServerSetup) -> usize {
        if self.program.family == Family::Haproxy { 1 } else { setup.processes }
    }

    /// The configuration text. Logs and the pid file go to `dir`.
    pub(crate) fn configuration(&self, setup: &ServerSetup, dir: &Path, port: u16) -> String {
        if self.program.family == Family::Haproxy {
            return crate::haproxy::configuration(setup, self.listen, dir, port);
        }
        let (dir, weir) = (dir.display(), self.program.family == Family::Weir);
        let mut out = String::new();
        let mut line = |text: &str| {
            let _ = writeln!(out, "{text}");
        };
        if let Some(lua) = self.program.lua.as_ref().filter(|_| setup.work.is_some()) {
            let ndk = lua.with_file_name("ndk_http_module.so");
            line(&format!("load_module {};\nload_module {};", ndk.display(), lua.display()));
        }
        let level = if weir { " warn" } else { "" };
        line(&format!("daemon off;\npid {dir}/pid;\nerror_log {dir}/error.log{level};"));
        line(&format!("worker_processes {};", setup.processes));
        if weir {
            line(&format!("worker_threads {};", setup.threads));
        }
        line(&format!("events {{ worker_connections 16384; {} {} }}", self.events, setup.events));
        line("http {\nkeepalive_requests 1000000000;");
        line(&format!("{}\n{}", self.http, setup.http));
        let who = if weir { "$pid-$loop" } else { "$pid" };
        if setup.log {
            line(&format!("log_format lab '{who} $connection $request_uri';"));
            line(&format!("access_log {dir}/access.log lab buffer=64k flush=100ms;"));
        } else {
            line("access_log off;");
        }
        if self.program.lua.is_some() && setup.work.and_then(HandlerWork::sleeps).is_some() {
            line("init_by_lua_block { ffi = require 'ffi'; ffi.cdef 'int usleep(unsigned int);' }");
            line("init_worker_by_lua_block { math.randomseed(ngx.worker.pid()) }");
        }
        let either = setup.work.filter(|_| weir).and_then(either_handlers);
        if let Some((share, _)) = &either {
            line(share);
        }
        line(&format!("server {{ listen 127.0.0.1:{port} backlog=4096{};", self.listen));
        line(&setup.server);
        if let Some((_, locations)) = &either {
            line(locations);
        }
        let hard = self.program.slow_text_length.filter(|_| !weir);
        let handler = match (setup.work, hard) {
            (Some(work), _) if self.program.opens_slowly && work.sleeps().is_some() => {
                format!("root {dir}/slow; rewrite ^ /file break;")
            }
            (Some(work), Some(length)) => hard_handler(length, work),
            (work, _) => handler(weir, work, who),
        };
        line(&format!("location / {{ {handler} }}\n}}\n}}"));
        out
    }
}

/// How often each kind of handler is chosen, and the locations of both kinds.
fn either_handlers(work: HandlerWork) -> Option<(String, String)> {
    let HandlerWork::Either(usual, rare, share) = work else { return None };
    let location = |kind: &str, time: Duration| {
        format!("location = /{kind} {{ work sleep {}ms; return 200 $loop; }}", millis(time))
    };
    let often = format!("split_clients $request_id $kind {{ {}% rare; * usual; }}", share * 100.0);
    Some((often, [location("rare", rare), location("usual", usual)].join("\n")))
}

fn handler(weir: bool, work: Option<HandlerWork>, who: &str) -> String {
    let answer = format!("return 200 \"{who}\";");
    match (work, weir) {
        (None, _) => answer,
        (Some(HandlerWork::Sleep(time)), true) => {
            format!("work sleep {}ms; {answer}", millis(time))
        }
        (Some(HandlerWork::Either(..)), true) => "rewrite ^ /$kind last;".to_owned(),
        (Some(HandlerWork::Spin(time)), true) => format!("work spin {}ms; {answer}", millis(time)),
        (Some(HandlerWork::Sleep(time)), false) => {
            let micros = time.as_micros();
            format!("content_by_lua_block {{ ffi.C.usleep({micros}) ngx.print(ngx.var.pid) }}")
        }
        (Some(HandlerWork::Either(usual, rare, share)), false) => {
            let (usual, rare) = (usual.as_micros(), rare.as_micros());
            format!(
                "content_by_lua_block {{ ffi.C.usleep(math.random() < {share} and {rare} or {usual}) \
                 ngx.print(ngx.var.pid) }}"
            )
        }
        (Some(HandlerWork::Spin(time)), false) => {
            let seconds = time.as_secs_f64();
            format!(
                "content_by_lua_block {{ local t = os.clock() while os.clock() - t < {seconds} do \
                 end ngx.print(ngx.var.pid) }}"
            )
        }
    }
}

/// Without Lua, an expression that is slow to reject keeps the worker busy.
fn hard_handler(length_of_ms: f64, work: HandlerWork) -> String {
    let (HandlerWork::Sleep(time) | HandlerWork::Spin(time) | HandlerWork::Either(time, ..)) = work;
    let text = "a".repeat((length_of_ms * (time.as_secs_f64() * 1e3).cbrt()) as usize);
    format!("set $work {text}b; if ($work ~ {HARD_PATTERN}) {{ return 500; }} return 200 \"$pid\";")
}

fn millis(time: Duration) -> u128 {
    time.as_millis().max(1)
}
