//! What is wrong with a configuration, and where.

use std::fmt;

use crate::source::Pos;
use crate::tree::{Directive, Word};

/// The severity of an [`Error`]. The names are those of nginx's error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The configuration cannot be used.
    Emerg,
    /// Something must be done at once.
    Alert,
    /// A file could not be read.
    Crit,
    /// An error that does not stop the start.
    Error,
    /// The configuration works, though probably not as meant.
    Warn,
}

impl Level {
    /// The word that stands in brackets at the head of a log line.
    pub fn name(self) -> &'static str {
        match self {
            Level::Emerg => "emerg",
            Level::Alert => "alert",
            Level::Crit => "crit",
            Level::Error => "error",
            Level::Warn => "warn",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One finding about a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The severity.
    pub level: Level,
    /// nginx's text, without the ` in FILE:LINE` that [`crate::Sources::explain`] adds.
    pub message: String,
    /// The position that nginx names: that of its parser, at the end of the directive.
    pub at: Option<Pos>,
    /// The word to point at, when that is not `at` itself.
    pub mark: Option<Pos>,
    /// What to do about it, in weir's own words.
    pub hint: Option<String>,
}

impl Error {
    /// An error that forbids the start, without a place.
    pub fn emerg(message: impl fmt::Display) -> Error {
        Error::new(Level::Emerg, message)
    }

    /// A warning without a place.
    pub fn warn(message: impl fmt::Display) -> Error {
        Error::new(Level::Warn, message)
    }

    /// An error of any level, without a place.
    pub fn new(level: Level, message: impl fmt::Display) -> Error {
        Error { level, message: message.to_string(), at: None, mark: None, hint: None }
    }

    /// The same error at the place that nginx would name.
    pub fn at(mut self, pos: Pos) -> Error {
        self.at = Some(pos);
        self
    }

    /// The same error with its caret under another word.
    pub fn mark(mut self, pos: Pos) -> Error {
        self.mark = Some(pos);
        self
    }

    /// The same error with advice.
    pub fn hint(mut self, hint: impl fmt::Display) -> Error {
        self.hint = Some(hint.to_string());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.level, self.message)
    }
}

impl std::error::Error for Error {}

/// A position in the configuration, for errors that are found later, when the whole is known.
#[derive(Debug, Clone, Copy)]
pub struct Spot {
    end: Pos,
    word: Pos,
}

impl Spot {
    /// A word of a directive.
    pub fn new(d: &Directive, word: &Word) -> Spot {
        Spot { end: d.end, word: word.pos }
    }

    /// The beginning of the word.
    pub fn pos(&self) -> Pos {
        self.word
    }

    /// An error at this position.
    pub fn error(&self, message: impl fmt::Display) -> Error {
        Error::emerg(message).at(self.end).mark(self.word)
    }

    /// A warning at this position.
    pub fn warning(&self, message: impl fmt::Display) -> Error {
        Error::warn(message).at(self.end).mark(self.word)
    }
}
