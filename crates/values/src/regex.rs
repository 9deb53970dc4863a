//! Regular expressions of a configuration: PCRE, with captures that become variables.

use std::fmt;

use pcre2::bytes::{Regex as Pcre, RegexBuilder};
use weir_engine::operation;
use weir_proto::{Renew, as_new};

use crate::subject::Subject;
use crate::variables::{VariableId, Variables};

/// A compiled pattern. Named groups set the variables of their names when it matches.
#[derive(Clone)]
pub struct Regex {
    pcre: Pcre,
    text: String,
    named: Vec<(usize, VariableId)>,
}

/// The captures `$1`...: the subject of the last match, and its groups.
#[derive(Debug, Default, Clone)]
pub struct Captures {
    subject: Vec<u8>,
    groups: Vec<Option<(usize, usize)>>,
}

/// The result of a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matched {
    /// It matches.
    Yes,
    /// It does not.
    No,
    /// PCRE gave up, since a limit was exceeded. This was logged.
    Failed,
}

/// PCRE gave up, since a limit was exceeded. The text is for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GaveUp(String);

/// Why a pattern is refused; shown in nginx's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegexError {
    /// It is not UTF-8.
    Encoding(String),
    /// PCRE refuses it.
    Pcre {
        /// PCRE's words.
        what: String,
        /// The pattern.
        pattern: String,
        /// The pattern from the error on, if PCRE knows the position.
        rest: Option<String>,
    },
    /// A named group has the name of a variable that cannot be set.
    Duplicate(String),
}

impl fmt::Display for RegexError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegexError::Encoding(pattern) => write!(f, "pattern \"{pattern}\" is not UTF-8"),
            RegexError::Pcre { what, pattern, rest } => {
                write!(f, "pcre2_compile() failed: {what} in \"{pattern}\"")?;
                rest.as_ref().map_or(Ok(()), |rest| write!(f, " at \"{rest}\""))
            }
            RegexError::Duplicate(name) => write!(f, "the duplicate \"{name}\" variable"),
        }
    }
}

impl fmt::Display for GaveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Captures {
    /// Group `n` of the last match. `None` if it took no part in the match.
    pub fn get(&self, n: usize) -> Option<&[u8]> {
        let (start, end) = (*self.groups.get(n)?)?;
        self.subject.get(start..end)
    }
}

impl Renew for Captures {
    fn renew(&mut self) {
        as_new!(self, Captures { subject, groups; });
    }
}

/// The most steps of a match before PCRE gives up, unless the pattern begins with a limit of its
/// own. PCRE's default is ten times as much: one request could stall a loop for a tenth of a second
/// at each pattern.
const MATCH_LIMIT: &str = "(*LIMIT_MATCH=1000000)";

/// Compiles a pattern. Also returns its text.
pub fn compile(pattern: &[u8], caseless: bool) -> Result<(Pcre, String), RegexError> {
    compile_with(pattern, |builder| {
        builder.caseless(caseless);
    })
}

/// As [`compile`], with other options.
pub fn compile_with(
    pattern: &[u8],
    set: impl FnOnce(&mut RegexBuilder),
) -> Result<(Pcre, String), RegexError> {
    let text = std::str::from_utf8(pattern)
        .map_err(|_| RegexError::Encoding(String::from_utf8_lossy(pattern).into_owned()))?;
    let mut builder = RegexBuilder::new();
    set(&mut builder);
    let mut own = text.split(')').take_while(|verb| verb.starts_with("(*"));
    let limit = match own.any(|verb| verb.starts_with("(*LIMIT_MATCH=")) {
        true => "",
        false => MATCH_LIMIT,
    };
    let pcre = builder.jit_if_available(true).build(&format!("{limit}{text}")).map_err(|e| {
        let at = e.offset().map(|at| at.saturating_sub(limit.len()));
        let rest = at.and_then(|at| text.get(at..)).filter(|rest| !rest.is_empty());
        let what = e.to_string();
        RegexError::Pcre {
            what: what.rsplit(": ").next().unwrap_or(&what).to_owned(),
            pattern: text.to_owned(),
            rest: rest.map(str::to_owned),
        }
    })?;
    Ok((pcre, text.to_owned()))
}

impl Regex {
    /// Compiles a pattern. Named groups become variables.
    pub fn new<S: Subject>(
        variables: &mut Variables<S>,
        pattern: &[u8],
        caseless: bool,
    ) -> Result<Regex, RegexError> {
        let (pcre, text) = compile(pattern, caseless)?;
        let mut named = Vec::new();
        for (group, name) in pcre.capture_names().iter().enumerate() {
            if let Some(name) = name {
                if variables.is_fixed(name.as_bytes()) {
                    return Err(RegexError::Duplicate(name.clone()));
                }
                named.push((group, variables.captured(name.as_bytes())));
            }
        }
        Ok(Regex { pcre, text, named })
    }

    /// The number of groups, without the whole match.
    pub fn groups(&self) -> usize {
        self.pcre.captures_len() - 1
    }

    /// The pattern as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Matches without captures. A pattern that exceeds PCRE's match limit does not match.
    pub fn is_match(&self, subject: &[u8]) -> bool {
        operation("regex", || self.pcre.is_match(subject)).unwrap_or(false)
    }

    /// As [`Regex::is_match`], with an error if the limit is exceeded.
    pub fn test(&self, subject: &[u8]) -> Result<bool, GaveUp> {
        let matched = operation("regex", || self.pcre.is_match(subject));
        matched.map_err(|error| self.gave_up(subject, &error))
    }

    /// As [`Regex::is_match`], for callers that withhold something on a match: a pattern that
    /// exceeds the limit matches.
    pub fn may_match(&self, subject: &[u8]) -> bool {
        operation("regex", || self.pcre.is_match(subject)).unwrap_or(true)
    }

    /// Matches and keeps the captures. A pattern that exceeds PCRE's match limit does not match.
    pub fn matches<S: Subject>(&self, r: &mut S, subject: &[u8]) -> bool {
        self.decide(r, subject) == Matched::Yes
    }

    /// As [`Regex::matches`], but tells a failure from a pattern that does not match.
    pub fn decide<S: Subject>(&self, r: &mut S, subject: &[u8]) -> Matched {
        match self.keep_groups(r, subject) {
            Ok(true) => Matched::Yes,
            Ok(false) => Matched::No,
            Err(gave_up) => {
                r.log(weir_log::Level::Alert, format_args!("{gave_up}"));
                Matched::Failed
            }
        }
    }

    /// As [`Regex::decide`], and drops the captures of earlier matches if this one does not match.
    pub fn try_match<S: Subject>(&self, r: &mut S, subject: &[u8]) -> Matched {
        let matched = self.decide(r, subject);
        if matched == Matched::No {
            r.captures().renew();
        }
        matched
    }

    /// As [`Regex::decide`], for callers that write to the log themselves.
    pub fn keep_groups<S: Subject>(&self, r: &mut S, subject: &[u8]) -> Result<bool, GaveUp> {
        if self.groups() == 0 {
            let matched = self.test(subject)?;
            if matched {
                r.captures().renew();
            }
            return Ok(matched);
        }
        let mut spans = self.pcre.capture_locations();
        match operation("regex", || self.pcre.captures_read(&mut spans, subject)) {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(false),
            Err(error) => return Err(self.gave_up(subject, &error)),
        }
        let captures = r.captures();
        captures.subject.clear();
        captures.subject.extend_from_slice(subject);
        captures.groups.clear();
        captures.groups.extend((0..spans.len()).map(|n| spans.get(n)));
        for &(group, id) in &self.named {
            let value = r.captures().get(group).unwrap_or_default().to_vec();
            r.store_variable(id, value);
        }
        Ok(true)
    }

    fn gave_up(&self, subject: &[u8], error: &pcre2::Error) -> GaveUp {
        GaveUp(format!(
            "pcre2_match() failed: {} on \"{}\" using \"{}\"",
            error.code(),
            String::from_utf8_lossy(subject),
            self.text
        ))
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "~{}", self.text)
    }
}
