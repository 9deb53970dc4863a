//! Hints about what people often mean when nginx refuses a line: read from the text around the
//! error.

use crate::error::Error;
use crate::known::known;
use crate::source::{Pos, SourceText, Sources};

/// Advice about an error that has none of its own.
pub(crate) fn of(sources: &Sources, error: &Error) -> Option<String> {
    if let Some(name) = unknown_variable(error) {
        let (source, place, line) = used(sources, name)?;
        return Some(format!("it is used in {}:{}: {line}", source.name.display(), place.line));
    }
    let (at, mark) = (error.at?, error.mark.or(error.at)?);
    let source = sources.get(mark.file)?;
    let line = line(source, mark.line)?;
    if let Some(quote) = line.chars().find(|c| "“”„‘’«»".contains(*c)) {
        return Some(format!("{quote} is a letter like others here: quotes are \" and '"));
    }
    if has_bare_braces(line) {
        return Some(
            "a { ends a word: put a regular expression that has braces in quotes".to_owned(),
        );
    }
    if error.message.starts_with("zone ") && error.message.ends_with(" is too small") {
        return Some("a zone has eight pages at least: 32k".to_owned());
    }
    if error.message.contains("value") || error.message.contains("size") {
        let units = line.split([' ', '\t', ';', '=']).find_map(unit);
        if let Some(units) = units {
            return Some(units.to_owned());
        }
    }
    let not_ended = error.message.ends_with("is not terminated by \";\"") && at.line > mark.line;
    let taken_in = error.message.starts_with("invalid") && begins_with_directive(line, mark.column);
    let from = if not_ended { at.line } else { mark.line };
    if not_ended || taken_in {
        let before = unfinished(source, from)?;
        return Some(format!("is a \";\" missing at the end of line {before}?"));
    }
    None
}

fn unknown_variable(error: &Error) -> Option<&str> {
    error.message.strip_prefix("unknown \"")?.strip_suffix("\" variable")
}

/// The first use of an unknown variable. The error itself has no position.
pub(crate) fn first_use(sources: &Sources, error: &Error) -> Option<Pos> {
    Some(used(sources, unknown_variable(error)?)?.1)
}

/// The first use of a variable, with its line.
fn used<'s>(sources: &'s Sources, name: &str) -> Option<(&'s SourceText, Pos, String)> {
    (0..).zip(sources.iter()).find_map(|(file, source)| {
        let text = String::from_utf8_lossy(&source.text);
        let uses = |line: &&str| uses_variable(line.split('#').next().unwrap_or_default(), name);
        let (number, line) = (1..).zip(text.lines()).find(|(_, line)| uses(line))?;
        Some((source, Pos { file, line: number, column: 1 }, line.trim().to_owned()))
    })
}

/// Whether a text uses a variable, as `$name` or `${name}`.
pub fn uses_variable(text: &str, name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices('$').any(|(at, _)| {
        let rest = text.get(at + 1..).unwrap_or_default();
        match rest.strip_prefix('{') {
            Some(braced) => {
                let behind = braced.strip_prefix(name);
                behind.is_some_and(|behind| behind.is_empty() || behind.starts_with('}'))
            }
            None => rest.strip_prefix(name).is_some_and(|rest| !rest.starts_with(letter)),
        }
    })
}

/// `{3}`, `{2,}` or `{2,5}` in a word without quotes.
fn has_bare_braces(line: &str) -> bool {
    let code = line.split(['"', '\'']).next().unwrap_or_default();
    code.match_indices('{').any(|(at, _)| {
        let inside = &code[at + 1..];
        let behind = inside.trim_start_matches(|c: char| c.is_ascii_digit() || c == ',');
        inside.starts_with(|c: char| c.is_ascii_digit()) && behind.starts_with('}')
    })
}

/// Advice on a number with a unit that nginx does not have.
fn unit(word: &str) -> Option<&'static str> {
    let digits = word.find(|c: char| !c.is_ascii_digit()).filter(|at| *at > 0)?;
    match word[digits..].to_ascii_lowercase().as_str() {
        "sec" | "secs" | "second" | "seconds" | "min" | "mins" | "minute" | "minutes" | "hour"
        | "hours" | "hr" | "hrs" | "day" | "days" => {
            Some("times are written like 65s, 10m, 1h30m, 7d or 500ms")
        }
        "kb" | "mb" | "gb" | "kib" | "mib" | "gib" => {
            Some("sizes are written like 512k, 10m or 1g")
        }
        _ => None,
    }
}

/// Whether the line's first word is at this column and names a directive.
fn begins_with_directive(line: &str, column: u32) -> bool {
    let indent = line.len() - line.trim_start().len();
    let word = line.trim_start().split([' ', '\t', ';', '{']).next().unwrap_or_default();
    indent + 1 == column as usize && known(word.as_bytes()).next().is_some()
}

/// The last line with text before this one, if a directive could continue behind it.
fn unfinished(source: &SourceText, number: u32) -> Option<u32> {
    let lines: Vec<&[u8]> =
        source.text.split(|b| *b == b'\n').take(number.saturating_sub(1) as usize).collect();
    let text_of = |(number, line)| Some((number, without_comment(std::str::from_utf8(line).ok()?)));
    let (number, text) = (1..number)
        .zip(lines)
        .rev()
        .filter_map(text_of)
        .find(|(_, text)| !text.trim().is_empty())?;
    (!text.trim_end().ends_with([';', '{', '}'])).then_some(number)
}

/// The part of a line before a `#` that begins a word.
fn without_comment(line: &str) -> &str {
    let begins = |at: &usize| line[..*at].ends_with([' ', '\t', ';', '{', '}']) || *at == 0;
    let comment = line.match_indices('#').map(|(at, _)| at).find(begins);
    comment.map_or(line, |at| &line[..at])
}

fn line(source: &SourceText, number: u32) -> Option<&str> {
    let line = source.text.split(|b| *b == b'\n').nth(number.checked_sub(1)? as usize)?;
    std::str::from_utf8(line).ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::source::Pos;

    fn advised(text: &str, message: &str, at: (u32, u32), mark: (u32, u32)) -> String {
        let mut sources = Sources::default();
        let (name, text) = (PathBuf::from("c.conf"), text.into());
        let file = sources.add(SourceText { name, text, command_line: false });
        let pos = |(line, column)| Pos { file, line, column };
        let error = Error::emerg(message).at(pos(at)).mark(pos(mark));
        of(&sources, &error).unwrap_or_default()
    }

    #[test]
    fn a_forgotten_semicolon_is_found() {
        let text = "listen 80\n\n # a comment\n server_name a;";
        let found = advised(text, "invalid parameter \"server_name\"", (4, 15), (4, 2));
        assert_eq!(found, "is a \";\" missing at the end of line 1?");
        let text = "worker_processes 1\nevents {}";
        let message = "directive \"worker_processes\" is not terminated by \";\"";
        assert_eq!(
            advised(text, message, (2, 8), (1, 1)),
            "is a \";\" missing at the end of line 1?"
        );
        let found =
            |text: &str| advised(text, "invalid parameter \"server_name\"", (3, 15), (3, 2));
        assert_eq!(
            found("listen 80 # all\n\n server_name a;"),
            "is a \";\" missing at the end of line 1?"
        );
        // The line before is whole.
        for text in ["server {\n\n", "listen 80; # all\n# a comment\n", "events { }\n\n"] {
            assert_eq!(found(&format!("{text} server_name a;")), "", "{text}");
        }
        // A word that may be meant.
        assert_eq!(
            advised("listen 80\n backlog;", "invalid parameter \"backlog\"", (2, 9), (2, 2)),
            ""
        );
    }

    #[test]
    fn units_are_told() {
        let value = |text| advised(text, "\"x\" directive invalid value", (1, 9), (1, 1));
        assert!(value("keepalive_timeout 65sec;").contains("65s"));
        assert!(value("client_max_body_size 10MB;").contains("10m"));
        assert!(value("limit_req_zone $uri zone=a:10mb rate=1r/s;").is_empty());
        assert!(value("keepalive_timeout 65x;").is_empty());
    }

    #[test]
    fn braces_and_quotes_are_told() {
        let braces = |text| advised(text, "unknown directive \"3}$\"", (1, 20), (1, 20));
        for text in ["location ~ ^/[0-9]{3}$ {", "rewrite ^/a{2,5} /b;", "rewrite ^/a{2,} /b;"] {
            assert!(braces(text).contains("quotes"), "{text}");
        }
        for text in ["location ~ \"^/[0-9]{3}$\" {", "location / {}", "if ($a) { return 200; }"] {
            assert_eq!(braces(text), "", "{text}");
        }
        assert!(advised("add_header X “a b”;", "invalid parameter", (1, 9), (1, 9)).contains('“'));
    }

    /// To look ahead from each brace, or from the first line on for each line, would take hours.
    #[test]
    fn long_texts_are_read_once() {
        const MANY: usize = 1 << 20;
        let braces = format!("listen {}", "{".repeat(MANY));
        assert_eq!(advised(&braces, "invalid parameter", (1, 9), (1, 9)), "");
        let variables = format!("return 200 {};", "${".repeat(MANY));
        assert_eq!(advised(&variables, "unknown \"nosuch\" variable", (1, 1), (1, 1)), "");
        let number = MANY as u32 + 1;
        let lines = format!("listen 80{}server_name a;", "\n".repeat(MANY));
        let found = advised(&lines, "invalid parameter \"server_name\"", (number, 15), (number, 1));
        assert_eq!(found, "is a \";\" missing at the end of line 1?");
    }

    #[test]
    fn a_variable_is_found_where_it_is_used() {
        let text = "# $nosuch\nset $nosuch_b 1;\nreturn 200 a$nosuch;";
        let found = advised(text, "unknown \"nosuch\" variable", (1, 1), (1, 1));
        assert_eq!(found, "it is used in c.conf:3: return 200 a$nosuch;");
        let braced =
            advised("return 200 ${nosuch}b;", "unknown \"nosuch\" variable", (1, 1), (1, 1));
        assert!(braced.contains(":1:"));
    }
}
