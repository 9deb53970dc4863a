//! The texts that a configuration was read from, and how an error points into them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::advice;
use crate::error::Error;

/// The name of the text that was given with `-g`.
pub(crate) const COMMAND_LINE: &str = "command line";

/// nginx cuts its messages after this many bytes.
const LONGEST_MESSAGE: usize = 1024;

/// How many bytes of a long line are shown around the place of an error.
const SHOWN: usize = 160;

/// A place in one of the [`Sources`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pos {
    /// Index into [`Sources`].
    pub file: u32,
    /// Line, from 1.
    pub line: u32,
    /// Column in bytes, from 1.
    pub column: u32,
}

/// One text.
#[derive(Clone, Debug, Default)]
pub struct SourceText {
    /// The path as nginx would print it; for `-g` the words "command line".
    pub name: PathBuf,
    /// The bytes as they were read.
    pub text: Vec<u8>,
    /// The text was given with `-g`.
    pub command_line: bool,
}

/// All texts, in the order in which they were first read. A file that is included twice is here
/// once.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    list: Vec<Arc<SourceText>>,
    by_name: HashMap<PathBuf, u32>,
}

impl Sources {
    /// The texts in the order in which they were first read, as `-T` prints them.
    pub fn iter(&self) -> impl Iterator<Item = &SourceText> {
        self.list.iter().map(AsRef::as_ref)
    }

    /// The text of a [`Pos`].
    pub fn get(&self, file: u32) -> Option<&SourceText> {
        self.list.get(file as usize).map(AsRef::as_ref)
    }

    /// Sources that cannot be looked up by name.
    pub(crate) fn of(list: impl Iterator<Item = Arc<SourceText>>) -> Sources {
        Sources { list: list.collect(), by_name: HashMap::new() }
    }

    pub(crate) fn add(&mut self, source: SourceText) -> u32 {
        let file = self.list.len() as u32;
        if !source.command_line {
            self.by_name.insert(source.name.clone(), file);
        }
        self.list.push(Arc::new(source));
        file
    }

    pub(crate) fn set_text(&mut self, file: u32, text: Vec<u8>) {
        if let Some(source) = self.list.get_mut(file as usize) {
            Arc::make_mut(source).text = text;
        }
    }

    pub(crate) fn find(&self, name: &Path) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// nginx's line for an error: the message and ` in FILE:LINE` or ` in command line`.
    pub fn first_line(&self, error: &Error) -> String {
        let Some((pos, source)) = error.at.and_then(|p| Some((p, self.get(p.file)?))) else {
            return error.message.clone();
        };
        let message = cut(&error.message, LONGEST_MESSAGE);
        if source.command_line {
            format!("{message} in {COMMAND_LINE}")
        } else {
            format!("{message} in {}:{}", source.name.display(), pos.line)
        }
    }

    /// The position where an error should be looked for: its own, or the first use of an unknown
    /// variable.
    pub fn place(&self, error: &Error) -> Option<Pos> {
        error.mark.or(error.at).or_else(|| advice::first_use(self, error))
    }

    /// [`Sources::first_line`], then the source line, a caret under the place, and the hint.
    pub fn explain(&self, error: &Error) -> String {
        let mut out = self.first_line(error);
        if let Some(pos) = error.mark.or(error.at)
            && let Some(line) = self.line(pos)
        {
            out.push_str(&excerpt(line, pos));
        }
        if let Some(hint) = error.hint.clone().or_else(|| advice::of(self, error)) {
            out.push_str("\n  ");
            out.push_str(&hint);
        }
        out
    }

    fn line(&self, pos: Pos) -> Option<&[u8]> {
        let text = &self.get(pos.file)?.text;
        let line = text.split(|&b| b == b'\n').nth(pos.line.checked_sub(1)? as usize)?;
        Some(line.strip_suffix(b"\r").unwrap_or(line))
    }
}

/// At most `bytes` bytes of a text, without cutting a character.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|n| text.is_char_boundary(*n));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

/// The line with its number, and the caret below it. Tabs stay tabs, so that both lines agree.
fn excerpt(line: &[u8], pos: Pos) -> String {
    let column = (pos.column as usize).saturating_sub(1).min(line.len());
    let from = column.saturating_sub(SHOWN / 2);
    let to = line.len().min(from + SHOWN);
    let before = printable(line.get(from..column).unwrap_or_default());
    let after = printable(line.get(column..to).unwrap_or_default());
    let indent: String = before.chars().map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
    let number = pos.line.to_string();
    let margin = " ".repeat(number.len());
    format!("\n  {number} | {before}{after}\n  {margin} | {indent}^")
}

/// Text from a file must not control the terminal that shows it.
fn printable(bytes: &[u8]) -> String {
    let visible =
        |c: char| if c.is_control() && c != '\t' { char::REPLACEMENT_CHARACTER } else { c };
    String::from_utf8_lossy(bytes).chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> Sources {
        let mut sources = Sources::default();
        let text = b"user x;\n\tservr {\n}\n".to_vec();
        sources.add(SourceText { name: "/p/nginx.conf".into(), text, command_line: false });
        let text = b"daemn off;".to_vec();
        sources.add(SourceText { name: COMMAND_LINE.into(), text, command_line: true });
        sources
    }

    #[test]
    fn file_line_caret_hint() {
        let error = Error::emerg("unknown directive \"servr\"")
            .at(Pos { file: 0, line: 2, column: 8 })
            .mark(Pos { file: 0, line: 2, column: 2 })
            .hint("did you mean \"server\"?");
        assert_eq!(
            sources().explain(&error),
            "unknown directive \"servr\" in /p/nginx.conf:2\n  2 | \tservr {\n    | \t^\n  \
             did you mean \"server\"?"
        );
    }

    #[test]
    fn command_line_has_no_line_number() {
        let error =
            Error::emerg("unknown directive \"daemn\"").at(Pos { file: 1, line: 1, column: 1 });
        let text = sources().explain(&error);
        assert!(text.starts_with("unknown directive \"daemn\" in command line\n  1 | daemn off;"));
    }

    #[test]
    fn positions_outside_the_text_are_harmless() {
        for pos in [
            Pos { file: 7, line: 1, column: 1 },
            Pos { file: 0, line: 0, column: 0 },
            Pos { file: 0, line: 99, column: 1 },
            Pos { file: 0, line: 1, column: 999 },
        ] {
            assert!(sources().explain(&Error::emerg("m").at(pos)).starts_with('m'));
        }
    }

    #[test]
    fn long_messages_are_cut() {
        let error = Error::emerg("\u{e4}".repeat(4000)).at(Pos { file: 0, line: 1, column: 1 });
        let text = sources().first_line(&error);
        assert_eq!(text.len(), LONGEST_MESSAGE + " in /p/nginx.conf:1".len());
    }

    #[test]
    fn control_characters_are_not_shown() {
        let mut sources = Sources::default();
        let text = b"\x1b[2Jx".to_vec();
        sources.add(SourceText { name: "f".into(), text, command_line: false });
        let text = sources.explain(&Error::emerg("m").at(Pos { file: 0, line: 1, column: 1 }));
        assert!(!text.contains('\x1b'));
    }
}
