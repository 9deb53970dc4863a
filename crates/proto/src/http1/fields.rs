//! Parses field lines of requests, responses and trailers. It can resume at any byte. nginx:
//! ngx_http_parse_header_line.

use super::names::{HeaderId, HeaderLine};
use crate::Span;

/// Parses field lines up to the empty line that ends them.
#[derive(Clone, Debug, Default)]
pub struct FieldsReader {
    state: FieldState,
    pos: usize,
    name_start: usize,
    name_end: usize,
    value_start: usize,
    value_end: usize,
    invalid: bool,
    underscores: bool,
    upstream: bool,
}

/// The result of [`FieldsReader::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldsProgress {
    /// The bytes ran out.
    More,
    /// A field line.
    Line {
        /// The line.
        header: HeaderLine,
        /// Its name has bytes that names should not have: nginx's `ignore_invalid_headers` drops
        /// the line.
        invalid: bool,
    },
    /// The empty line after the last field.
    End,
}

/// A byte that is not allowed at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldsError {
    /// The line up to the byte.
    pub line: Span,
    /// The byte.
    pub byte: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FieldState {
    #[default]
    Start,
    Name,
    BeforeValue,
    Value,
    /// A second status line among the headers, which some servers send.
    Ignored,
    AlmostDone,
    EndAlmostDone,
}

impl FieldsReader {
    /// Begins at offset `pos`. With `underscores`, names may contain `_` (nginx's
    /// `underscores_in_headers`).
    pub fn of_request(pos: usize, underscores: bool) -> FieldsReader {
        FieldsReader { pos, name_start: pos, underscores, ..FieldsReader::default() }
    }

    /// As [`FieldsReader::of_request`], for the fields or trailers of a response. Underscores are
    /// allowed, and a second status line is skipped.
    pub fn of_response(pos: usize) -> FieldsReader {
        FieldsReader { upstream: true, ..FieldsReader::of_request(pos, true) }
    }

    /// Everything before this offset has been read.
    pub fn pos(&self) -> usize {
        self.pos
    }

    /// The beginning of the line that is being parsed. `None` between lines.
    pub fn line_start(&self) -> Option<usize> {
        (self.state != FieldState::Start).then_some(self.name_start)
    }

    /// The beginning of the last line that was begun.
    pub(super) fn last_start(&self) -> usize {
        self.name_start
    }

    /// Applies the setting of the requested server.
    pub(super) fn set_underscores(&mut self, underscores: bool) {
        self.underscores = underscores;
    }

    /// Parses up to the end of one line. `buf` must begin at the same byte in each call.
    #[inline]
    pub fn parse(&mut self, buf: &[u8]) -> Result<FieldsProgress, FieldsError> {
        if self.state == FieldState::Start
            && let Some(progress) = self.usual_line(buf)
        {
            return Ok(progress);
        }
        self.any_line(buf)
    }

    /// Parses the line if it is whole and ordinary. Otherwise it reads nothing. Most lines are
    /// parsed here, in a fraction of the steps.
    #[inline]
    fn usual_line(&mut self, buf: &[u8]) -> Option<FieldsProgress> {
        let line = buf.get(self.pos..)?;
        let name_len = line.iter().position(|&ch| NAME[ch as usize] != Class::Token)?;
        let (&[b':', b' '], rest) = line.get(name_len..)?.split_first_chunk::<2>()? else {
            return None;
        };
        let value_len = plain_len(rest);
        let (value, end) = rest.split_at_checked(value_len)?;
        let trimmed = value.first().is_some_and(|&ch| ch != b' ') && !value.ends_with(b" ");
        if name_len == 0 || !trimmed || !end.starts_with(b"\r\n") {
            return None;
        }
        let name_start = self.pos;
        let value_start = name_start + name_len + 2;
        let value_end = value_start + value_len;
        self.name_start = name_start;
        self.pos = value_end + 2;
        let id = HeaderId::from_name(line.get(..name_len)?);
        let name = Span::new(name_start, name_start + name_len);
        let value = Span::new(value_start, value_end);
        Some(FieldsProgress::Line { header: HeaderLine { name, value, id }, invalid: false })
    }

    /// Parses any line, byte by byte.
    fn any_line(&mut self, buf: &[u8]) -> Result<FieldsProgress, FieldsError> {
        while let Some(&ch) = buf.get(self.pos) {
            match self.state {
                FieldState::Start => {
                    self.name_start = self.pos;
                    match ch {
                        b'\r' => {
                            self.pos += 1;
                            self.state = FieldState::EndAlmostDone;
                        }
                        b'\n' => return Ok(self.end()),
                        b':' => return Err(self.error(self.pos, ch)),
                        _ => {
                            self.invalid = false;
                            self.state = FieldState::Name;
                        }
                    }
                }
                FieldState::Name => {
                    if let Some(header) = self.name(buf)? {
                        return Ok(header);
                    }
                }
                FieldState::BeforeValue => {
                    if ch == b' ' {
                        self.pos += 1;
                    } else {
                        self.value_start = self.pos;
                        self.state = FieldState::Value;
                    }
                }
                FieldState::Value => {
                    if let Some(header) = self.value(buf)? {
                        return Ok(header);
                    }
                }
                FieldState::Ignored => {
                    self.pos += 1;
                    if ch == b'\n' {
                        self.state = FieldState::Start;
                    }
                }
                FieldState::AlmostDone => match ch {
                    b'\n' => return Ok(self.line(buf)),
                    b'\r' => self.pos += 1,
                    _ => {
                        // nginx quotes the byte behind the value: the CR, or a space before it
                        let byte = buf.get(self.value_end).copied().unwrap_or(b'\r');
                        return Err(self.error(self.value_end, byte));
                    }
                },
                FieldState::EndAlmostDone => match ch {
                    b'\n' => return Ok(self.end()),
                    _ => return Err(self.error(self.name_start, b'\r')),
                },
            }
        }
        Ok(FieldsProgress::More)
    }

    /// Parses a name, or a line without a colon, which nginx takes as a name with an empty value.
    fn name(&mut self, buf: &[u8]) -> Result<Option<FieldsProgress>, FieldsError> {
        let mut pos = self.pos;
        while let Some(&ch) = buf.get(pos) {
            match NAME[ch as usize] {
                Class::Token => {}
                Class::Underscore => self.invalid |= !self.underscores,
                Class::Odd => {
                    if ch == b'/' && self.upstream && pos - self.name_start == 4 {
                        let name = Span::new(self.name_start, pos);
                        if name.of(buf) == b"HTTP" {
                            self.pos = pos + 1;
                            self.state = FieldState::Ignored;
                            return Ok(None);
                        }
                    }
                    self.invalid = true;
                }
                Class::Colon => {
                    self.name_end = pos;
                    self.pos = pos + 1;
                    self.state = FieldState::BeforeValue;
                    return Ok(None);
                }
                Class::End => {
                    self.name_end = pos;
                    self.value_start = pos;
                    self.pos = pos;
                    return Ok(self.end_of_value(buf, ch));
                }
                Class::Bad => return Err(self.error(pos, ch)),
            }
            pos += 1;
        }
        self.pos = pos;
        Ok(None)
    }

    fn value(&mut self, buf: &[u8]) -> Result<Option<FieldsProgress>, FieldsError> {
        let rest = buf.get(self.pos..).unwrap_or_default();
        let len = plain_len(rest);
        self.pos += len;
        match rest.get(len) {
            None => Ok(None),
            Some(0) => Err(self.error(self.pos, 0)),
            Some(&ch) => Ok(self.end_of_value(buf, ch)),
        }
    }

    /// Handles the CR or LF after a value.
    fn end_of_value(&mut self, buf: &[u8], ch: u8) -> Option<FieldsProgress> {
        let value = buf.get(self.value_start..self.pos).unwrap_or_default();
        let trailing = value.iter().rev().take_while(|&&b| b == b' ').count();
        self.value_end = self.pos - trailing;
        if ch == b'\n' {
            return Some(self.line(buf));
        }
        self.pos += 1;
        self.state = FieldState::AlmostDone;
        if buf.get(self.pos) == Some(&b'\n') {
            return Some(self.line(buf));
        }
        None
    }

    /// Returns the line. The line feed is at `self.pos`.
    fn line(&mut self, buf: &[u8]) -> FieldsProgress {
        self.pos += 1;
        self.state = FieldState::Start;
        let name = Span::new(self.name_start, self.name_end);
        let value = Span::new(self.value_start, self.value_end);
        let id = HeaderId::from_name(name.of(buf));
        FieldsProgress::Line { header: HeaderLine { name, value, id }, invalid: self.invalid }
    }

    fn end(&mut self) -> FieldsProgress {
        self.pos += 1;
        self.state = FieldState::Start;
        FieldsProgress::End
    }

    #[cold]
    fn error(&self, end: usize, byte: u8) -> FieldsError {
        FieldsError { line: Span::new(self.name_start, end), byte }
    }
}

/// The number of leading bytes that are neither NUL, CR nor LF. It tests eight bytes at once:
/// values are short, and a call of a vector routine would cost more than it saves.
#[inline]
fn plain_len(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    let mut len = 0;
    while let Some(&word) = bytes.get(len..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(word);
        // the high bit of each byte below 0x0e; a borrow can only set bits above a true one
        let low = word.wrapping_sub(ONES * 0x0e) & !word & HIGHS;
        if low == 0 {
            len += 8;
            continue;
        }
        len += low.trailing_zeros() as usize / 8;
        match bytes.get(len) {
            Some(0 | b'\r' | b'\n') => return len,
            _ => len += 1,
        }
    }
    let tail = bytes.get(len..).unwrap_or_default();
    len + tail.iter().take_while(|&&b| !matches!(b, 0 | b'\r' | b'\n')).count()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Token,
    Underscore,
    /// A byte that makes the line invalid, so that it may be dropped.
    Odd,
    Colon,
    /// CR, LF.
    End,
    /// Space, other control characters, DEL: the request is refused.
    Bad,
}

static NAME: [Class; 256] = classes();

const fn classes() -> [Class; 256] {
    let mut classes = [Class::Odd; 256];
    let mut ch = 0;
    while ch < 256 {
        if (ch as u8).is_ascii_alphanumeric() || ch as u8 == b'-' {
            classes[ch] = Class::Token;
        } else if ch <= 0x20 || ch == 0x7f {
            classes[ch] = Class::Bad;
        }
        ch += 1;
    }
    classes[b'_' as usize] = Class::Underscore;
    classes[b':' as usize] = Class::Colon;
    classes[b'\r' as usize] = Class::End;
    classes[b'\n' as usize] = Class::End;
    classes
}
