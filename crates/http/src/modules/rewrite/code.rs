//! What the directives of the module become.

use weir_conf::Pos;

use crate::modules::lua::Script;
use crate::regex::Regex;
use crate::site::location::LocationId;
use crate::variables::VariableId;
use weir_values::Template;

/// Statuses that send their text as `Location`.
pub fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// One step.
#[derive(Debug, Clone)]
pub enum Op {
    /// `rewrite`
    Rewrite(Box<Rewrite>),
    /// `return`; without a text, codes from 400 show the page for the code.
    Return { status: u16, text: Option<Template>, line: Pos },
    /// `break`
    Break,
    /// `set`
    Set { variable: VariableId, value: Template },
    /// `set_by_lua`
    SetByLua { variable: VariableId, script: Script, args: Vec<Template> },
    /// `if`: the next `len` steps, and the settings of its block, only if the test holds.
    If { test: Test, block: Option<LocationId>, len: usize },
}

/// `rewrite PATTERN REPLACEMENT [FLAG]`
#[derive(Debug, Clone)]
pub struct Rewrite {
    /// What the path must match.
    pub pattern: Regex,
    /// The new path; for a redirect the whole URL.
    pub path: Template,
    /// The new query, where the replacement has one; a redirect's stays in `path`.
    pub args: Option<Template>,
    /// The replacement has a query, so that the old one is put behind it with `&`.
    pub has_query: bool,
    /// The old query is kept; a `?` at the end of the replacement says no.
    pub keep_args: bool,
    /// What follows.
    pub then: Then,
    /// Where it is written.
    pub line: Pos,
}

/// What follows a `rewrite` that matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// The next step.
    Go,
    /// `last`: a location is looked for.
    Last,
    /// `break`: the location stays.
    Break,
    /// The client is sent there, with this status.
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
    /// `-f path` and kin, with `not` `!-f`.
    File { kind: FileTest, path: Template, not: bool },
}

/// What is asked about a file.
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
