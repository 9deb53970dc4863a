//! Heads of upstream responses. nginx: ngx_http_parse_status_line, ngx_http_proxy_process_header.

use std::borrow::Cow;

use super::fields::{FieldsError, FieldsProgress, FieldsReader};
use super::head::offset;
use super::method::Version;
use super::names::{HeaderId, HeaderLine};
use super::request::HeadProgress;
use crate::Span;

/// Room for the fields of most responses.
const USUAL: usize = 16;

/// Why a response head is refused. Each error is the upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// There is no status line. nginx then takes all bytes as the body of an HTTP/0.9 response,
    /// unless the answer is cached or the connection must stay usable. The caller decides.
    NoStatusLine,
    /// A header line has a byte that is not allowed at its place.
    InvalidHeader {
        /// The line up to the byte.
        line: Span,
        /// The byte.
        byte: u8,
    },
}

impl ResponseError {
    /// The text for the error log. `buf` is the parsed buffer.
    pub fn reason(&self, buf: &[u8]) -> Cow<'static, str> {
        match *self {
            ResponseError::NoStatusLine => "upstream sent no valid HTTP/1.0 header".into(),
            ResponseError::InvalidHeader { line, byte } => {
                let line = String::from_utf8_lossy(line.of(buf));
                format!("upstream sent invalid header: \"{line}\\x{byte:02x}...\"").into()
            }
        }
    }
}

/// A response head. Spans point into the buffer that was parsed.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    /// The version. Below 1.1, the connection is not kept.
    pub version: Version,
    /// The status code.
    pub status: u16,
    /// Status code and reason phrase, as nginx passes them on: `404 Not Found`.
    pub status_line: Span,
    /// The reason phrase. It may be empty.
    pub reason: Span,
    /// Header lines in the order sent, including those with odd names.
    pub headers: Vec<HeaderLine>,
    /// Offset behind the head: the body begins here.
    pub end: u32,
    seen: u64,
}

impl ResponseHead {
    /// The first field with this name. Costs nothing if there is none.
    #[inline]
    pub fn header(&self, id: HeaderId) -> Option<&HeaderLine> {
        if self.seen & id.bit() == 0 {
            return None;
        }
        self.headers.iter().find(|header| header.id == id)
    }

    /// `Content-Length` as nginx reads it. `Some(None)` if it is no valid number.
    pub fn content_length(&self, buf: &[u8]) -> Option<Option<u64>> {
        self.header(HeaderId::ContentLength).map(|header| offset(header.value.of(buf)))
    }

    fn clear(&mut self) {
        let mut headers = std::mem::take(&mut self.headers);
        headers.clear();
        *self = ResponseHead { headers, ..ResponseHead::default() };
    }
}

/// Parses one response head after another.
#[derive(Debug, Default)]
pub struct ResponseParser {
    head: ResponseHead,
    state: ResponseState,
    pos: usize,
    matched: u8,
    major: u16,
    minor: u16,
    digits: u8,
    fields: FieldsReader,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum ResponseState {
    #[default]
    Protocol,
    MajorFirst,
    Major,
    MinorFirst,
    Minor,
    Status,
    AfterStatus,
    Text,
    AlmostDone,
    Fields,
    Done,
}

impl ResponseParser {
    /// A parser for the first response.
    pub fn new() -> ResponseParser {
        ResponseParser::default()
    }

    /// A parser for the head of a CGI script, which has header lines only.
    pub fn of_script() -> ResponseParser {
        let fields = FieldsReader::of_response(0);
        ResponseParser { state: ResponseState::Fields, fields, ..ResponseParser::default() }
    }

    /// Prepares for the next response. Its buffer must begin after the bytes of this one.
    pub fn reset(&mut self) {
        self.head.clear();
        let head = std::mem::take(&mut self.head);
        *self = ResponseParser { head, ..ResponseParser::default() };
    }

    /// The head as parsed so far. It is complete after [`HeadProgress::Done`].
    #[inline]
    pub fn head(&self) -> &ResponseHead {
        &self.head
    }

    /// Takes the head, for a response that outlives this parser.
    pub fn take_head(&mut self) -> ResponseHead {
        std::mem::take(&mut self.head)
    }

    /// Parses the next bytes. `buf` begins with the first byte of the response and only grows
    /// between calls.
    pub fn parse(&mut self, buf: &[u8]) -> Result<HeadProgress, ResponseError> {
        if !self.status_line(buf)? {
            return Ok(HeadProgress::More);
        }
        if self.state == ResponseState::Done {
            return Ok(HeadProgress::Done);
        }
        loop {
            let progress = self.fields.parse(buf).map_err(|FieldsError { line, byte }| {
                ResponseError::InvalidHeader { line, byte }
            })?;
            match progress {
                FieldsProgress::More => return Ok(HeadProgress::More),
                FieldsProgress::Line { header, .. } => {
                    if header.id != HeaderId::Other {
                        self.head.seen |= header.id.bit();
                    }
                    if self.head.headers.capacity() == 0 {
                        self.head.headers.reserve(USUAL);
                    }
                    self.head.headers.push(header);
                }
                FieldsProgress::End => {
                    self.head.end = self.fields.pos() as u32;
                    self.state = ResponseState::Done;
                    return Ok(HeadProgress::Done);
                }
            }
        }
    }

    /// Parses the status line. `true` once it is complete.
    fn status_line(&mut self, buf: &[u8]) -> Result<bool, ResponseError> {
        while self.state < ResponseState::Fields {
            let Some(&ch) = buf.get(self.pos) else {
                return Ok(false);
            };
            match self.state {
                ResponseState::Status => self.status(ch)?,
                ResponseState::AfterStatus | ResponseState::Text | ResponseState::AlmostDone => {
                    self.text(ch)?
                }
                _ => self.protocol(buf, ch)?,
            }
            self.pos += 1;
        }
        Ok(true)
    }

    fn protocol(&mut self, buf: &[u8], ch: u8) -> Result<(), ResponseError> {
        const USUAL: &[u8] = b"HTTP/1.1 ";

        if self.pos == 0 && buf.starts_with(USUAL) {
            (self.major, self.minor) = (1, 1);
            self.pos = USUAL.len() - 1;
            self.state = ResponseState::Status;
            return Ok(());
        }
        match (self.state, ch) {
            (ResponseState::Protocol, _) if b"HTTP/".get(self.matched as usize) == Some(&ch) => {
                self.matched += 1;
                if ch == b'/' {
                    self.state = ResponseState::MajorFirst;
                }
            }
            (ResponseState::MajorFirst, b'1'..=b'9') => {
                self.major = u16::from(ch - b'0');
                self.state = ResponseState::Major;
            }
            (ResponseState::Major, b'.') => self.state = ResponseState::MinorFirst,
            (ResponseState::Major, b'0'..=b'9') if self.major <= 99 => {
                self.major = self.major * 10 + u16::from(ch - b'0');
            }
            (ResponseState::MinorFirst, b'0'..=b'9') => {
                self.minor = u16::from(ch - b'0');
                self.state = ResponseState::Minor;
            }
            (ResponseState::Minor, b' ') => self.state = ResponseState::Status,
            (ResponseState::Minor, b'0'..=b'9') if self.minor <= 99 => {
                self.minor = self.minor * 10 + u16::from(ch - b'0');
            }
            _ => return Err(ResponseError::NoStatusLine),
        }
        Ok(())
    }

    fn status(&mut self, ch: u8) -> Result<(), ResponseError> {
        match ch {
            b' ' => {}
            b'0'..=b'9' => {
                self.head.status = self.head.status * 10 + u16::from(ch - b'0');
                self.digits += 1;
                if self.digits == 3 {
                    self.head.status_line = Span::new(self.pos.saturating_sub(2), self.pos + 1);
                    self.state = ResponseState::AfterStatus;
                }
            }
            _ => return Err(ResponseError::NoStatusLine),
        }
        Ok(())
    }

    fn text(&mut self, ch: u8) -> Result<(), ResponseError> {
        match (self.state, ch) {
            // IIS sends sub-codes: 403.1
            (ResponseState::AfterStatus, b' ' | b'.') => {
                self.head.reason.start = self.pos as u32 + 1;
                self.state = ResponseState::Text;
            }
            (ResponseState::AfterStatus | ResponseState::Text, b'\r') => {
                self.state = ResponseState::AlmostDone
            }
            (ResponseState::AfterStatus | ResponseState::Text, b'\n') => self.end_line(self.pos),
            (ResponseState::Text, _) => {}
            (ResponseState::AlmostDone, b'\n') => self.end_line(self.pos - 1),
            _ => return Err(ResponseError::NoStatusLine),
        }
        Ok(())
    }

    /// Completes the status line. The line feed is at `self.pos`, and the text of the line ends at
    /// `end`.
    fn end_line(&mut self, end: usize) {
        let head = &mut self.head;
        head.version = match (self.major, self.minor) {
            (1, minor) => Version::of_minor(minor),
            _ => Version::Http11,
        };
        head.status_line.end = end as u32;
        head.reason.end = end as u32;
        if head.reason.start == 0 {
            head.reason.start = end as u32;
        }
        self.fields = FieldsReader::of_response(self.pos + 1);
        self.state = ResponseState::Fields;
    }
}
