//! The operations that the directives of the module compile to.

use weir_conf::Pos;

use crate::modules::lua::Script;
use crate::regex::Regex;
use crate::site::location::LocationId;
use crate::variables::VariableId;
use weir_values::Template;

/// Whether `return` sends its text as `Location`.
pub fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// An operation.
#[derive(Debug, Clone)]
pub enum Op {
    /// `rewrite`
    Rewrite(Box<Rewrite>),
    /// `return`. Without a text, a status from 400 on sends its error page.
    Return { status: u16, text: Option<Template>, line: Pos },
    /// `break`
    Break,
    /// `set`
    Set { variable: VariableId, value: Template },
    /// `set_by_lua`
    SetByLua { variable: VariableId, script: Script, args: Vec<Template> },
    /// `if`: if the test fails, the next `len` operations are skipped. If it holds, the settings of
    /// its block apply.
    If { test: Test, block: Option<LocationId>, len: usize },
}

/// `rewrite PATTERN REPLACEMENT [FLAG]`
#[derive(Debug, Clone)]
pub struct Rewrite {
    /// The pattern for the path.
    pub pattern: Regex,
    /// The new path, or the URL of a redirect.
    pub path: Template,
    /// The new query string, if the replacement has one. That of a redirect is in `path`.
    pub args: Option<Template>,
    /// Whether the replacement has a query string. The old one is then appended with `&`.
    pub has_query: bool,
    /// Whether the old query string is appended. A `?` at the end of the replacement prevents that.
    pub keep_args: bool,
    /// What happens after a match.
    pub then: Then,
    /// The place of the directive.
    pub line: Pos,
}

/// What happens after a `rewrite` has matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The next operation runs.
    Go,
    /// `last`: a new location is searched for.
    Last,
    /// `break`: the location stays.
    Break,
    /// The client is redirected with this status.
    Redirect(u16),
}

/// The condition of an `if`.
#[derive(Debug, Clone)]
pub enum Test {
    /// `$variable`: neither empty nor `0`.
    True(VariableId),
    /// `$variable = value`, and `!=` with `not`.
    Equal { variable: VariableId, value: Template, not: bool },
    /// `$variable ~ pattern` and `~*`, with `not` `!~` and `!~*`.
    Match { variable: VariableId, pattern: Regex, not: bool },
    /// `-f path` and alike, with `not` `!-f`.
    File { kind: FileTest, path: Template, not: bool },
}

/// A test of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileTest {
    /// `-f`: it is a regular file.
    Plain,
    /// `-d`: it is a directory.
    Directory,
    /// `-e`: it is a file or a directory.
    Exists,
    /// `-x`: its owner may execute it.
    Executable,
}
