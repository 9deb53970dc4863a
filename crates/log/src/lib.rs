//! Error logs: levels, files that can be reopened, stderr, memory and syslog.
//!
//! A [`Log`] is the log of one place of the configuration: all its `error_log` lines. It is shared
//! as `Arc<Log>`. Each line is one `write(2)`. A thread that must not wait for a disk has its lines
//! written by other threads ([`never_wait`]).
//!
//! - In: messages with a level, and `error_log` lines.
//! - Out: lines in files, in memory, on stderr or at a syslog server.
//! - Callers: every crate of the server that can fail.

mod capture;
mod directive;
mod file;
mod flood;
mod later;
mod level;
mod line;
mod lost;
mod memory;
mod seldom;
mod syslog;
#[cfg(test)]
mod tests;

pub use capture::{CapturedLine, capture, capture_level, take_captured};
pub use directive::{Reject, sink};
pub use file::{LogFile, OpenLogs};
pub use flood::take_left_out;
pub use later::{DeferredWrite, HandOver, flush, never_wait};
pub use level::{Level, level, set_level};
pub use line::{Bytes, Cause, LINE_MAX, message};
pub use lost::take_lost;
pub use memory::MemoryLog;
pub use seldom::OncePerSecond;
pub use syslog::{SendError, Syslog, SyslogError, SyslogServerFault};

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flood::{Flood, FloodDecision, MOST};
use line::LogLine;

/// Where lines of a log go.
#[derive(Clone, Debug)]
pub enum Sink {
    /// An append-only file, shared by all that log to its path.
    File(Arc<LogFile>),
    /// The standard error of the process.
    Stderr,
    /// A ring in memory. nginx: `error_log memory:SIZE`.
    Memory(Arc<MemoryLog>),
    /// A syslog server. nginx: `error_log syslog:server=...`.
    Syslog(Arc<Syslog>),
    /// One of the others but the last, with each line as a JSON object: `error_log FILE format=json`.
    Json(Box<Sink>),
}

impl Sink {
    /// Where the lines go, whatever their form.
    pub fn place(&self) -> &Sink {
        match self {
            Sink::Json(place) => place,
            place => place,
        }
    }

    /// Writes a line; whether to stderr. One that is left out goes to memory alone.
    fn write(&self, line: &LogLine, left_out: bool) -> Result<bool, SendError> {
        let json;
        let bytes = match self {
            Sink::Json(_) => {
                json = line.json();
                json.as_bytes()
            }
            _ => line.bytes(),
        };
        match self.place() {
            Sink::Memory(memory) => memory.write(bytes),
            _ if left_out => {}
            Sink::File(file) => file.write(bytes),
            Sink::Stderr => {
                line::stderr(bytes);
                return Ok(true);
            }
            Sink::Syslog(server) => {
                server.write(line.level(), line.without_newline())?;
            }
            // None is within another.
            Sink::Json(_) => {}
        }
        Ok(false)
    }
}

/// Whether a sink that was given the level `own` takes a message.
#[inline]
fn takes(own: Level, message: Level) -> bool {
    message <= level::level().unwrap_or(own)
}

/// One place's error log: sinks, each with the least urgent level that it takes.
#[derive(Debug, Default)]
pub struct Log {
    sinks: Vec<(Level, Sink)>,
    most: Option<Level>,
    echo: Option<&'static str>,
    flood: Option<Flood>,
    stderr_is_taken: AtomicBool,
}

impl Log {
    /// A log that writes to every sink with a level that includes the message's.
    pub fn new(sinks: Vec<(Level, Sink)>) -> Log {
        let most = sinks.iter().map(|(level, _)| *level).max();
        Log { sinks, most, ..Log::default() }
    }

    /// As [`Log::new`], for what clients can cause: messages of one kind that come too often within a
    /// second are left out and counted. `emerg`, `alert` and `debug` are not.
    pub fn bounded(sinks: Vec<(Level, Sink)>) -> Log {
        Log { flood: Some(Flood::new()), ..Log::new(sinks) }
    }

    /// As [`Log::new`], and messages of `warn` and above also go to stderr as
    /// `NAME: [level] text`, as a server does until it has started.
    pub fn echoing(sinks: Vec<(Level, Sink)>, name: &'static str) -> Log {
        Log { echo: Some(name), ..Log::new(sinks) }
    }

    /// The sinks with their levels, in the order of the configuration.
    pub fn sinks(&self) -> &[(Level, Sink)] {
        &self.sinks
    }

    /// Whether lines go to stderr.
    pub fn has_stderr(&self) -> bool {
        self.sinks.iter().any(|(_, sink)| matches!(sink.place(), Sink::Stderr))
    }

    /// Another log of the same configuration goes to stderr, which must therefore stay what it is.
    pub fn leave_stderr(&self) {
        self.stderr_is_taken.store(true, Ordering::Relaxed);
    }

    /// Where stderr is to lead: to the first file of this log, unless lines go to stderr itself.
    pub fn stands_for_stderr(&self) -> Option<&LogFile> {
        if self.has_stderr() || self.stderr_is_taken.load(Ordering::Relaxed) {
            return None;
        }
        self.sinks.iter().find_map(|(_, sink)| match sink.place() {
            Sink::File(file) => Some(&**file),
            _ => None,
        })
    }

    /// Whether a user at a terminal reads along: errors may be explained there.
    pub fn is_on_terminal(&self) -> bool {
        self.echo.is_some() || self.has_stderr()
    }

    /// Whether a message of this level goes anywhere. Ask before building an expensive text.
    pub fn enabled(&self, level: Level) -> bool {
        self.most.is_some_and(|most| takes(most, level)) || self.echoes(level)
    }

    /// Writes nginx's line: `2026/11/20 07:29:42 [error] PID#TID: *CONNECTION text`.
    ///
    /// Longer lines are cut at [`LINE_MAX`] bytes. Failures to write are not reported: there is
    /// no better place for them, except that a syslog server out of reach is told to the files.
    pub fn write(&self, level: Level, connection: Option<u64>, text: fmt::Arguments<'_>) {
        if !self.enabled(level) {
            return;
        }
        let line = LogLine::new(level, connection, text);
        capture::add(level, line.without_newline());
        let verdict = self.judge(level, &line);
        let to_terminal = self.deliver(level, &line, verdict.leave_out);
        if let (false, Some(name), true) = (to_terminal, self.echo, self.echoes(level)) {
            line::console(name, level, text);
        }
    }

    /// Whether the line may be written. Tells first how many of an earlier second were not.
    fn judge(&self, level: Level, line: &LogLine) -> FloodDecision {
        let Some(flood) = &self.flood else { return FloodDecision::default() };
        let verdict = flood.judge(level, line.text(), line.second());
        if verdict.report > 0 {
            let text = format_args!(
                "{} messages were left out, more than {MOST} of a kind came within a second",
                verdict.report
            );
            self.deliver(Level::Error, &LogLine::new(Level::Error, None, text), false);
        }
        verdict
    }

    /// Writes the line to each sink that takes it, if it is one too many only to memory; says
    /// whether one was stderr.
    fn deliver(&self, level: Level, line: &LogLine, left_out: bool) -> bool {
        let mut to_terminal = false;
        for (_, sink) in self.sinks.iter().filter(|(least, _)| takes(*least, level)) {
            match (sink.write(line, left_out), sink) {
                (Ok(terminal), _) => to_terminal |= terminal,
                (Err(fault), Sink::Syslog(server)) => self.complain(server, &fault),
                (Err(_), _) => {}
            }
        }
        to_terminal
    }

    /// Tells the sinks that are not syslog that a syslog server cannot be reached.
    pub fn complain(&self, server: &Syslog, fault: &SendError) {
        let text = format_args!(
            "{} failed {} while logging to syslog, server: {}",
            fault.call,
            Cause(&fault.error),
            server.name()
        );
        let level = fault.level();
        let line = LogLine::new(level, None, text);
        let others = |(least, sink): &&(Level, Sink)| {
            takes(*least, level) && !matches!(sink, Sink::Syslog(_))
        };
        for (_, sink) in self.sinks.iter().filter(others) {
            // Only a syslog server has faults.
            let _ = sink.write(&line, false);
        }
    }

    fn echoes(&self, level: Level) -> bool {
        self.echo.is_some() && level <= Level::Warn
    }
}

/// Writes to a log: `log!(log, Error, connection, "text {}", x)`; nothing is formatted when the
/// level is off.
#[macro_export]
macro_rules! log {
    ($log:expr, $level:ident, $connection:expr, $($text:tt)+) => {{
        let log = &$log;
        if log.enabled($crate::Level::$level) {
            log.write($crate::Level::$level, $connection, format_args!($($text)+));
        }
    }};
}
