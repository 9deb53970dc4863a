//! Expands variables in values of parameters, and evaluates the expression of `if`.

use weir_log::Level;

use super::commands::Fault;
use super::{complain, shared};
use crate::regex;
use crate::request::Request;
use weir_values::Subject;

/// The maximum length of an expanded text. Each command could double a value.
const LONGEST: usize = 1 << 20;

/// Expands variables, and removes backslashes before quotes, `$` and backslashes. With
/// `below_page`, a result that does not begin with a slash is appended to the page's directory. If
/// variables expand to nothing, the result stays empty.
pub fn evaluate(r: &mut Request, text: &[u8], below_page: bool) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(&byte) = rest.first() {
        rest = match byte {
            b'$' => {
                let (name, after) = variable_name(r, text, &rest[1..])?;
                append_variable(r, name, &mut out);
                if out.len() > LONGEST {
                    let text = weir_log::Bytes(text);
                    complain(r, Level::Error, format_args!("too long value of \"{text}\""));
                    return Err(Fault::Command);
                }
                after
            }
            _ => plain(rest, &mut out),
        };
    }
    let is_said = !out.is_empty() || !text.contains(&b'$');
    if below_page && is_said && out.first() != Some(&b'/') {
        let end = memchr::memrchr(b'/', &r.path).map_or(0, |at| at + 1);
        out.splice(..0, r.path[..end].iter().copied());
    }
    Ok(out)
}

/// Appends the text up to the next variable.
fn plain<'a>(text: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let mut quoted = false;
    for (i, &byte) in text.iter().enumerate() {
        match (quoted, byte) {
            (false, b'\\') => {
                quoted = true;
                continue;
            }
            (false, b'$') => return &text[i..],
            (true, b'\\' | b'\'' | b'"' | b'$') | (false, _) => {}
            (true, _) => out.push(b'\\'),
        }
        quoted = false;
        out.push(byte);
    }
    &[]
}

fn variable_name<'a>(
    r: &Request,
    text: &[u8],
    after: &'a [u8],
) -> Result<(&'a [u8], &'a [u8]), Fault> {
    let braced = after.first() == Some(&b'{');
    let body = if braced { &after[1..] } else { after };
    let len = body.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
    let (name, mut rest) = body.split_at(len);
    if body.is_empty() {
        return Err(invalid_name(r, text));
    }
    if braced {
        rest = match rest.strip_prefix(b"}") {
            Some(rest) => rest,
            None => {
                let name = weir_log::Bytes(name);
                complain(
                    r,
                    Level::Error,
                    format_args!("the closing bracket in \"{name}\" variable is missing"),
                );
                return Err(Fault::Command);
            }
        };
    }
    if name.is_empty() {
        return Err(invalid_name(r, text));
    }
    Ok((name, rest))
}

fn invalid_name(r: &Request, text: &[u8]) -> Fault {
    let text = weir_log::Bytes(text);
    complain(r, Level::Error, format_args!("invalid variable name in \"{text}\""));
    Fault::Command
}

/// Appends a variable of the page or of the server. False if it is not set.
pub fn append_variable(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    if let Some(value) = shared(r).borrow().get(name) {
        out.extend_from_slice(value);
        return true;
    }
    r.variable_named(name, out)
}

/// Evaluates the expression of an `if`: `$a`, `$a = text`, `$a != text` or `$a = /pattern/`.
pub fn holds(r: &mut Request, expression: &[u8]) -> Result<bool, Fault> {
    let end = expression
        .iter()
        .position(|b| !b.is_ascii_alphanumeric() && !b"${}_\"'".contains(b))
        .unwrap_or(expression.len());
    let (left, rest) = expression.split_at(end);
    let left = evaluate(r, &left.to_ascii_lowercase(), false)?;
    let rest = skip_spaces(rest);
    if rest.is_empty() {
        return Ok(!left.is_empty());
    }
    let (not, right) = match rest {
        [b'=', right @ ..] => (false, right),
        [b'!', b'=', right @ ..] => (true, right),
        _ => return Err(invalid(r, expression)),
    };
    let equal = match skip_spaces(right) {
        [b'/', pattern @ .., b'/'] => {
            let pattern = evaluate(r, pattern, false)?;
            matches(r, &pattern, left)?
        }
        [b'/', _, ..] => return Err(invalid(r, expression)),
        [b'\\', right @ ..] if right.first() == Some(&b'/') => left == evaluate(r, right, false)?,
        right => left == evaluate(r, right, false)?,
    };
    Ok(equal != not)
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    let spaces = text.iter().take_while(|b| **b == b' ').count();
    &text[spaces..]
}

fn invalid(r: &Request, expression: &[u8]) -> Fault {
    let expression = weir_log::Bytes(expression);
    complain(r, Level::Error, format_args!("invalid expression in \"{expression}\""));
    Fault::Command
}

/// Matches a pattern and stores its captures. Numbered ones last until the next match, named ones
/// become variables.
fn matches(r: &mut Request, pattern: &[u8], subject: Vec<u8>) -> Result<bool, Fault> {
    let (regex, text) = regex::compile(pattern, false).map_err(|message| {
        complain(r, Level::Error, format_args!("{message}"));
        Fault::Command
    })?;
    let mut spans = regex.capture_locations();
    let found = regex.captures_read(&mut spans, &subject).map_err(|error| {
        let subject = weir_log::Bytes(&subject);
        complain(
            r,
            Level::Alert,
            format_args!(
                "pcre2_match() failed: {} on \"{subject}\" using \"{text}\"",
                error.code()
            ),
        );
        Fault::Command
    })?;
    if found.is_none() {
        return Ok(false);
    }
    let group = |n: usize| {
        spans.get(n).and_then(|(start, end)| subject.get(start..end)).unwrap_or_default().to_vec()
    };
    let shared = shared(r);
    let mut shared = shared.borrow_mut();
    // Captures behind the last one that matched do not exist.
    let last = (0..spans.len()).rev().find(|n| spans.get(*n).is_some());
    // The name of a numbered capture is one digit.
    let count = last.map_or(0, |last| last + 1).min(10);
    shared.groups = (0..count).map(group).collect();
    for (n, name) in regex.capture_names().iter().enumerate() {
        if let Some(name) = name {
            // Without room, the variable keeps its value.
            let _ = shared.set(name.as_bytes(), group(n));
        }
    }
    Ok(true)
}
