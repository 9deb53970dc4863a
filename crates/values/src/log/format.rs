//! `log_format`: the parts of a line, and how values are escaped.

use crate::escape::{hex, json_escape, json_escapes};
use crate::subject::Subject;
use crate::template::TemplateError;
use crate::variables::{VariableId, Variables};

/// A named format of log lines.
#[derive(Debug)]
pub struct Format {
    /// The name that `access_log` refers to.
    pub name: Vec<u8>,
    escape: Escape,
    parts: Vec<FormatPart>,
}

/// How the values of variables are escaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escape {
    /// `"`, `\` and bytes that are not printable become `\xXX`. A missing value is `-`.
    Default,
    /// As in a JSON string. A missing value is empty.
    Json,
    /// Not at all.
    None,
}

#[derive(Debug)]
enum FormatPart {
    Text(Vec<u8>),
    Variable(VariableId),
}

impl Format {
    /// A format from the words of a `log_format`.
    pub fn new<'w, S: Subject>(
        variables: &mut Variables<S>,
        name: &[u8],
        escape: Escape,
        words: impl Iterator<Item = &'w [u8]>,
    ) -> Result<Format, TemplateError> {
        let mut parts = Vec::new();
        for word in words {
            parse(variables, word, &mut parts)?;
        }
        Ok(Format { name: name.to_vec(), escape, parts })
    }

    /// Appends the line of a request, without its line end.
    pub fn write<S: Subject>(&self, r: &mut S, out: &mut Vec<u8>) {
        for part in &self.parts {
            match part {
                FormatPart::Text(text) => out.extend_from_slice(text),
                FormatPart::Variable(id) => {
                    let start = out.len();
                    let found = r.variable(*id, out);
                    self.escape.apply(out, start, found);
                }
            }
        }
    }
}

fn parse<S: Subject>(
    variables: &mut Variables<S>,
    word: &[u8],
    parts: &mut Vec<FormatPart>,
) -> Result<(), TemplateError> {
    let mut rest = word;
    while let Some(at) = memchr::memchr(b'$', rest) {
        let invalid = || {
            let from = String::from_utf8_lossy(rest.get(at..).unwrap_or_default()).into_owned();
            TemplateError::Parameter(from)
        };
        text(parts, rest.get(..at).unwrap_or_default());
        let after = rest.get(at + 1..).unwrap_or_default();
        let (bracket, body) = match after.strip_prefix(b"{") {
            Some(body) => (true, body),
            None => (false, after),
        };
        let len = body.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
        let (name, tail) = body.split_at(len);
        if body.is_empty() {
            return Err(invalid());
        }
        rest = match (bracket, tail.strip_prefix(b"}")) {
            (true, Some(tail)) => tail,
            (true, None) => return Err(TemplateError::bracket(name)),
            (false, _) => tail,
        };
        if name.is_empty() {
            return Err(invalid());
        }
        parts.push(FormatPart::Variable(variables.refer(name)));
    }
    text(parts, rest);
    Ok(())
}

fn text(parts: &mut Vec<FormatPart>, more: &[u8]) {
    match parts.last_mut() {
        _ if more.is_empty() => {}
        Some(FormatPart::Text(text)) => text.extend_from_slice(more),
        _ => parts.push(FormatPart::Text(more.to_vec())),
    }
}

impl Escape {
    /// Escapes the value that a variable has appended after `start`.
    fn apply(self, out: &mut Vec<u8>, start: usize, found: bool) {
        if !found {
            out.truncate(start);
            if self == Escape::Default {
                out.push(b'-');
            }
            return;
        }
        let value = out.get(start..).unwrap_or_default();
        if self == Escape::None || !value.iter().any(|b| self.escapes(*b)) {
            return;
        }
        let value = out.split_off(start);
        for byte in value {
            match self {
                Escape::Json => json_escape(&[byte], out),
                _ if !self.escapes(byte) => out.push(byte),
                _ => {
                    out.extend_from_slice(b"\\x");
                    out.extend_from_slice(&hex(byte));
                }
            }
        }
    }

    fn escapes(self, byte: u8) -> bool {
        match self {
            Escape::Default => matches!(byte, 0..0x20 | b'"' | b'\\' | 0x7f..),
            Escape::Json => json_escapes(byte),
            Escape::None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escaped(escape: Escape, value: &[u8]) -> Vec<u8> {
        let mut out = [b"x", value].concat();
        escape.apply(&mut out, 1, true);
        out.split_off(1)
    }

    #[test]
    fn each_way_of_escaping() {
        assert_eq!(
            escaped(Escape::Default, b"a\"b\\c\x01\x7f\xff"),
            b"a\\x22b\\x5Cc\\x01\\x7F\\xFF"
        );
        assert_eq!(escaped(Escape::Json, b"a\"b\\c\n\x01\xff"), b"a\\\"b\\\\c\\n\\u0001\xff");
        assert_eq!(escaped(Escape::None, b"a\"\n"), b"a\"\n");
    }

    #[test]
    fn missing_values() {
        for (escape, shown) in [(Escape::Default, "-"), (Escape::Json, ""), (Escape::None, "")] {
            let mut out = b"[half".to_vec();
            escape.apply(&mut out, 1, false);
            assert_eq!(out, format!("[{shown}").as_bytes());
        }
    }

    proptest! {
        #[test]
        fn a_line_stays_one_line(value: Vec<u8>, json: bool) {
            let escape = if json { Escape::Json } else { Escape::Default };
            let out = escaped(escape, &value);
            prop_assert!(!out.contains(&b'\n'));
            if !json {
                prop_assert!(out.iter().all(|b| (0x20..0x7f).contains(b) && *b != b'"'));
            }
        }
    }
}
