//! How urgent a message is, by nginx's names.

use std::fmt;

/// A level of the error log; the most urgent is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// The server cannot start or go on.
    Emerg,
    /// Something that must not happen did.
    Alert,
    /// A part of the server does not work.
    Crit,
    /// A request failed.
    Error,
    /// Odd, but served.
    Warn,
    /// Normal and worth knowing, such as start and stop.
    Notice,
    /// Normal, such as a client that left.
    Info,
    /// For those who look for a fault.
    Debug,
}

/// All levels, the most urgent first.
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
    /// The level of that name.
    pub fn parse(name: &str) -> Option<Level> {
        ALL.iter().find(|(_, n)| *n == name).map(|(level, _)| *level)
    }

    /// nginx's name of the level.
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(level, _)| *level == self).map_or("debug", |(_, n)| n)
    }

    /// The severity of syslog (RFC 5424, section 6.2.1), 0 to 7.
    pub fn severity(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
