//! The levels of messages, by nginx's names.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// A level of the error log. The most urgent is the least value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// For every log, whatever its level. It has no name, so `error_log` cannot have it. nginx:
    /// `NGX_LOG_STDERR`.
    Stderr,
    /// The server cannot start or go on.
    Emerg,
    /// Something happened that must not.
    Alert,
    /// A part of the server does not work.
    Crit,
    /// A request failed.
    Error,
    /// Unusual, but the request is served.
    Warn,
    /// Normal and worth knowing, such as start and stop.
    Notice,
    /// Normal, such as a client that left.
    Info,
    /// Details for finding a fault.
    Debug,
}

/// All levels with names, the most urgent first.
const ALL: [(Level, &str); 8] = [
    (Level::Emerg, "emerg"),
    (Level::Alert, "alert"),
    (Level::Crit, "crit"),
    (Level::Error, "error"),
    (Level::Warn, "warn"),
    (Level::Notice, "notice"),
    (Level::Info, "info"),
    (Level::Debug, "debug"),
];

impl Level {
    /// The level with this name.
    pub fn parse(name: &str) -> Option<Level> {
        ALL.iter().find(|(_, n)| *n == name).map(|(level, _)| *level)
    }

    /// nginx's name of the level.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(level, _)| *level == self).map_or("", |(_, n)| n)
    }

    /// The level of a severity of syslog.
    pub fn of_severity(severity: u8) -> Option<Level> {
        ALL.get(usize::from(severity)).map(|(level, _)| *level)
    }

    /// The severity of syslog (RFC 5424, section 6.2.1), 0 to 7.
    pub fn severity(self) -> u8 {
        self.number().saturating_sub(1)
    }

    /// nginx's number of the level, 0 to 8.
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// The severity of the level that replaces those of all logs. Another number replaces none.
static FORCED: AtomicU8 = AtomicU8::new(u8::MAX);

/// From now on all logs of the process have this level in place of the configured ones. `None` restores those.
pub fn set_level(level: Option<Level>) {
    FORCED.store(level.map_or(u8::MAX, Level::severity), Relaxed);
}

/// The level that [`set_level`] has set.
pub fn level() -> Option<Level> {
    Level::of_severity(FORCED.load(Relaxed))
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
