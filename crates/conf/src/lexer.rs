//! Bytes to statements: the words up to the next `;`, `{` or `}`. nginx: ngx_conf_read_token().

use crate::error::Error;
use crate::source::Pos;
use crate::tree::Word;

/// nginx reads files through a buffer of this many bytes, and no word may be longer.
pub(crate) const LONGEST: usize = 4096;

/// How many bytes of a word that is too long are shown.
const SHOWN: usize = 10;

/// What ended a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatementEnd {
    Semicolon,
    Open,
    Close,
    EndOfText,
}

/// Words and what ended them. [`StatementEnd::Close`] and [`StatementEnd::EndOfText`] have no
/// words.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) words: Vec<Word>,
    pub(crate) stop: StatementEnd,
    /// The position of `;`, `{` or `}`, or of the end.
    pub(crate) at: Pos,
}

/// Reads one text.
pub(crate) struct Lexer<'a> {
    text: &'a [u8],
    file: u32,
    command_line: bool,
    offset: usize,
    line: u32,
    line_start: usize,
}

/// The token that is being read. Its length is limited.
#[derive(Clone, Copy)]
struct TokenRun {
    offset: usize,
    pos: Pos,
    quote: Option<u8>,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a [u8], file: u32, command_line: bool) -> Lexer<'a> {
        Lexer { text, file, command_line, offset: 0, line: 1, line_start: 0 }
    }

    /// The next statement.
    pub(crate) fn statement(&mut self) -> Result<Statement, Error> {
        let mut words = Vec::new();
        loop {
            let Some(byte) = self.next() else {
                return self.end_of_text(words);
            };
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                b'#' => self.comment()?,
                b';' | b'{' if words.is_empty() => return Err(self.unexpected(byte)),
                b';' => return Ok(self.stopped(words, StatementEnd::Semicolon)),
                b'{' => return Ok(self.stopped(words, StatementEnd::Open)),
                b'}' if words.is_empty() => return Ok(self.stopped(words, StatementEnd::Close)),
                b'}' => return Err(self.unexpected(byte)),
                b'"' | b'\'' => {
                    if let Some(stop) = self.quoted(byte, &mut words)? {
                        return Ok(self.stopped(words, stop));
                    }
                }
                first => {
                    if let Some(stop) = self.bare(first, &mut words)? {
                        return Ok(self.stopped(words, stop));
                    }
                }
            }
        }
    }

    /// The position of the last byte that was read.
    pub(crate) fn here(&self) -> Pos {
        let column = self.offset.saturating_sub(self.line_start).max(1) as u32;
        Pos { file: self.file, line: self.line, column }
    }

    /// The rest of the text, for a body that is not made of words.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.text.get(self.offset..).unwrap_or_default()
    }

    /// Skips bytes of [`Lexer::rest`].
    pub(crate) fn skip(&mut self, bytes: usize) {
        for _ in 0..bytes {
            self.next();
        }
    }

    /// Reads a byte. A line break belongs to the next line, as in nginx.
    fn next(&mut self) -> Option<u8> {
        let byte = *self.text.get(self.offset)?;
        self.offset += 1;
        if byte == b'\n' {
            self.line = self.line.saturating_add(1);
            self.line_start = self.offset;
        }
        Some(byte)
    }

    /// The next byte of a token, which must not exceed the limit.
    fn next_of(&mut self, run: TokenRun) -> Result<Option<u8>, Error> {
        let full = self.offset - run.offset == LONGEST && self.offset < self.text.len();
        if full && !self.command_line {
            return Err(self.too_long(run));
        }
        Ok(self.next())
    }

    fn comment(&mut self) -> Result<(), Error> {
        let run = self.run_from_last_byte();
        while self.next_of(run)?.is_some_and(|byte| byte != b'\n') {}
        Ok(())
    }

    /// Reads a word in quotes, and the byte behind it, which must not begin another word.
    fn quoted(&mut self, quote: u8, words: &mut Vec<Word>) -> Result<Option<StatementEnd>, Error> {
        let pos = self.here();
        let mut run = TokenRun { offset: self.offset, pos, quote: Some(quote) };
        loop {
            match self.next_of(run)? {
                None => return Err(self.cut_off(pos).hint("this quote is not closed")),
                Some(b'\\') => drop(self.next_of(run)?),
                Some(byte) if byte == quote => break,
                Some(_) => {}
            }
        }
        let bytes = self.text.get(run.offset..self.offset - 1).unwrap_or_default();
        words.push(Word { bytes: unescape(bytes), pos, quoted: true });
        run.quote = None;
        match self.next_of(run)? {
            None => Err(self.cut_off(pos)),
            Some(b' ' | b'\t' | b'\r' | b'\n') => Ok(None),
            Some(b';') => Ok(Some(StatementEnd::Semicolon)),
            Some(b'{') => Ok(Some(StatementEnd::Open)),
            // `if ($a = "b")` needs no space before the parenthesis.
            Some(b')') => self.bare(b')', words),
            Some(byte) => Err(self
                .unexpected(byte)
                .hint("a space or \";\" must follow a quote; is a quote before it not closed?")),
        }
    }

    /// Reads a word without quotes, and the byte that ends it. `${` does not end it.
    fn bare(&mut self, first: u8, words: &mut Vec<Word>) -> Result<Option<StatementEnd>, Error> {
        let run = self.run_from_last_byte();
        let mut escaped = first == b'\\';
        let mut variable = first == b'$';
        let stop = loop {
            let Some(byte) = self.next_of(run)? else {
                return Err(self.cut_off(run.pos));
            };
            if std::mem::take(&mut escaped) || (byte == b'{' && variable) {
                continue;
            }
            variable = byte == b'$';
            match byte {
                b'\\' => escaped = true,
                b' ' | b'\t' | b'\r' | b'\n' => break None,
                b';' => break Some(StatementEnd::Semicolon),
                b'{' => break Some(StatementEnd::Open),
                _ => {}
            }
        };
        let bytes = self.text.get(run.offset..self.offset - 1).unwrap_or_default();
        words.push(Word { bytes: unescape(bytes), pos: run.pos, quoted: false });
        Ok(stop)
    }

    fn run_from_last_byte(&self) -> TokenRun {
        TokenRun { offset: self.offset - 1, pos: self.here(), quote: None }
    }

    fn stopped(&self, words: Vec<Word>, stop: StatementEnd) -> Statement {
        Statement { words, stop, at: self.here() }
    }

    fn end_of_text(&self, words: Vec<Word>) -> Result<Statement, Error> {
        match words.first() {
            None => Ok(self.stopped(words, StatementEnd::EndOfText)),
            Some(first) => Err(self.cut_off(first.pos)),
        }
    }

    /// The error for a text that ends within what began at `start`.
    fn cut_off(&self, start: Pos) -> Error {
        let message = if self.command_line {
            "unexpected end of parameter, expecting \";\""
        } else {
            "unexpected end of file, expecting \";\" or \"}\""
        };
        Error::emerg(message).at(self.here()).mark(start)
    }

    fn unexpected(&self, byte: u8) -> Error {
        let shown = String::from_utf8_lossy(&[byte]).into_owned();
        Error::emerg(format!("unexpected \"{shown}\"")).at(self.here())
    }

    fn too_long(&self, run: TokenRun) -> Error {
        let message = match run.quote {
            Some(quote) => format!(
                "too long parameter, probably missing terminating \"{}\" character",
                char::from(quote)
            ),
            None => {
                let head = self.text.get(run.offset..run.offset + SHOWN).unwrap_or_default();
                format!("too long parameter \"{}...\" started", String::from_utf8_lossy(head))
            }
        };
        Error::emerg(message).at(run.pos)
    }
}

/// Removes backslashes. Only these six are escapes. Before any other byte the backslash stays, as
/// regular expressions need it.
fn unescape(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        let (byte, len) = match (first, tail.first()) {
            (b'\\', Some(b @ (b'"' | b'\'' | b'\\'))) => (*b, 2),
            (b'\\', Some(b't')) => (b'\t', 2),
            (b'\\', Some(b'r')) => (b'\r', 2),
            (b'\\', Some(b'n')) => (b'\n', 2),
            (byte, _) => (*byte, 1),
        };
        out.push(byte);
        rest = rest.get(len..).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests;
