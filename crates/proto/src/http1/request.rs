//! Parses request heads. nginx: ngx_http_process_request_line and the functions after it.

use super::error::HeadError;
use super::fields::{FieldsProgress, FieldsReader};
use super::head::{RequestHead, connection};
use super::line::LineParser;
use super::method::Version;
use super::names::{HeaderId, HeaderLine};
use super::window::Window;
use crate::uri;
use crate::{Renew, Span, as_new};

/// The limits and switches of a server for request heads.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// The size of the first buffer for a head (`client_header_buffer_size`).
    pub first: usize,
    /// The size of each further buffer, which no line may exceed (`large_client_header_buffers`).
    pub line: usize,
    /// The size of all further buffers together.
    pub total: usize,
    /// Names may contain underscores (`underscores_in_headers`).
    pub underscores: bool,
    /// Lines whose names have other odd bytes are dropped (`ignore_invalid_headers`).
    pub ignore_invalid: bool,
    /// The most header lines of a request (`max_headers`).
    pub max_headers: usize,
    /// Adjacent slashes of a path become one (`merge_slashes`).
    pub merge_slashes: bool,
    /// CONNECT is allowed.
    pub allow_connect: bool,
    /// Stop with [`HeadProgress::Server`] once the server's name is known, since another server may
    /// have other limits.
    pub pause_at_server: bool,
}

impl Default for HeadLimits {
    /// nginx's defaults.
    fn default() -> HeadLimits {
        HeadLimits {
            first: 1024,
            line: 8192,
            total: 4 * 8192,
            underscores: false,
            ignore_invalid: true,
            max_headers: 1000,
            merge_slashes: true,
            allow_connect: false,
            pause_at_server: false,
        }
    }
}

/// The result of [`RequestParser::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadProgress {
    /// The head is not complete. Call again with more bytes.
    More,
    /// Only with `pause_at_server`: [`RequestHead::server`] is known. Call again with the same
    /// bytes and that server's limits.
    Server,
    /// The head is complete.
    Done,
}

/// Parses one request head after another.
#[derive(Debug, Default)]
pub struct RequestParser {
    pub(super) head: RequestHead,
    stage: Stage,
    line: LineParser,
    fields: FieldsReader,
    window: Window,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Line,
    Fields,
    Done,
}

/// Prepares for the next request. Its buffer must begin after the bytes of this one.
impl Renew for RequestParser {
    fn renew(&mut self) {
        as_new!(self, RequestParser { head; stage, line, fields, window });
    }
}

impl RequestParser {
    /// A parser for the first request.
    pub fn new() -> RequestParser {
        RequestParser::default()
    }

    /// A parser with a complete head, for a request that is made from another one.
    pub fn with_head(head: RequestHead) -> RequestParser {
        RequestParser { head, stage: Stage::Done, ..RequestParser::default() }
    }

    /// The head as parsed so far. It is complete after [`HeadProgress::Done`].
    #[inline]
    pub fn head(&self) -> &RequestHead {
        &self.head
    }

    /// The head, for code that changes the request.
    pub fn head_mut(&mut self) -> &mut RequestHead {
        &mut self.head
    }

    /// Takes the head, for a request that outlives this parser.
    pub fn take_head(&mut self) -> RequestHead {
        std::mem::take(&mut self.head)
    }

    /// Whether the request line is complete and valid.
    pub fn line_parsed(&self) -> bool {
        self.stage != Stage::Line
    }

    /// The length of all complete lines that could be parsed, including one that was refused for
    /// its contents.
    pub fn lines_len(&self) -> usize {
        let end = match self.stage {
            Stage::Line => self.head.line_end as usize,
            Stage::Fields => self.fields.line_start().unwrap_or(self.fields.pos()),
            Stage::Done => self.head.end as usize,
        };
        end.saturating_sub(self.head.line.start as usize)
    }

    /// Whether all bytes so far were blank lines. They should be discarded with [`Renew::renew`],
    /// since nginx accepts any number of them.
    pub fn blank(&self) -> bool {
        self.stage == Stage::Line && self.line.blank()
    }

    /// The request line for the log, even if it could not be parsed to its end.
    pub fn logged_line<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        if self.line_parsed() {
            return self.head.line.of(buf);
        }
        let rest = buf.get(self.line.start..).unwrap_or_default();
        let end = memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        rest.get(..end).unwrap_or_default()
    }

    /// Parses the next bytes. `buf` begins with the first byte of the request and only grows
    /// between calls.
    pub fn parse(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<HeadProgress, HeadError> {
        loop {
            let end = self.window.end(limits);
            let seen = buf.get(..end).unwrap_or(buf);
            let progress = match self.stage {
                Stage::Line => self.line(seen, limits)?,
                Stage::Fields => self.fields(seen, limits)?,
                Stage::Done => return Ok(HeadProgress::Done),
            };
            if progress != HeadProgress::More {
                return Ok(progress);
            }
            if seen.len() < end {
                return Ok(HeadProgress::More);
            }
            match self.stage {
                Stage::Line => self.window.next_for_line(&self.line, limits)?,
                Stage::Fields => self.window.next_for_fields(&self.fields, limits)?,
                Stage::Done => {}
            }
        }
    }

    #[inline]
    fn line(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<HeadProgress, HeadError> {
        if !self.line.parse(buf, &mut self.head)? {
            return Ok(HeadProgress::More);
        }
        self.normalise(buf, limits).map_err(|uri::BadUri| HeadError::InvalidRequest)?;
        let head = &mut self.head;
        if head.version == Version::Http09 {
            self.stage = Stage::Done;
            head.end = head.line_end;
        } else {
            self.stage = Stage::Fields;
            self.fields = FieldsReader::of_request(head.line_end as usize, limits.underscores);
        }
        if let Some(host) = head.host {
            self.server(buf, host).map_err(|uri::BadHost| HeadError::InvalidHostInLine)?;
            if limits.pause_at_server {
                return Ok(HeadProgress::Server);
            }
        }
        if self.stage == Stage::Done {
            return Ok(HeadProgress::Done);
        }
        self.fields(buf, limits)
    }

    /// Computes the normalised path, if it differs from the one that was sent.
    #[inline]
    pub(super) fn normalise(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<(), uri::BadUri> {
        let head = &mut self.head;
        if !head.complex {
            return Ok(());
        }
        uri::normalise(head.path.of(buf), limits.merge_slashes, &mut head.normalised)
    }

    /// Marks the request line as parsed, since it was composed.
    pub(super) fn line_composed(&mut self) {
        self.stage = Stage::Done;
    }

    fn fields(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<HeadProgress, HeadError> {
        self.fields.set_underscores(limits.underscores);
        loop {
            let progress = self
                .fields
                .parse(buf)
                .map_err(|e| HeadError::InvalidHeader { line: e.line, byte: e.byte })?;
            match progress {
                FieldsProgress::More => return Ok(HeadProgress::More),
                FieldsProgress::Line { header, invalid: true } if limits.ignore_invalid => {
                    self.head
                        .dropped
                        .push(Span { start: header.name.start, end: header.value.end });
                }
                FieldsProgress::Line { header, .. } => {
                    if self.head.headers.len() >= limits.max_headers {
                        return Err(HeadError::TooManyHeaders);
                    }
                    self.head.headers.push(header);
                    if header.id != HeaderId::Other
                        && self.known(buf, header)?
                        && limits.pause_at_server
                    {
                        return Ok(HeadProgress::Server);
                    }
                }
                FieldsProgress::End => {
                    self.head.end = self.fields.pos() as u32;
                    self.stage = Stage::Done;
                    self.head.check(buf, limits)?;
                    return Ok(HeadProgress::Done);
                }
            }
        }
    }

    /// Handles a known field, which is the last of `headers`. `true` if it makes the server's name
    /// known.
    #[inline]
    pub(super) fn known(&mut self, buf: &[u8], header: HeaderLine) -> Result<bool, HeadError> {
        let head = &mut self.head;
        if head.seen & header.id.bit() != 0 && header.id.unique() {
            return Err(head.duplicate(header));
        }
        head.seen |= header.id.bit();
        match header.id {
            HeaderId::Host => {
                let wanted = head.server.is_none();
                if wanted {
                    self.server(buf, header.value)
                } else {
                    uri::host_valid(header.value.of(buf)).map(|_| ())
                }
                .map_err(|uri::BadHost| HeadError::InvalidHost)?;
                Ok(wanted)
            }
            HeaderId::Connection => {
                head.connection = connection(header.value.of(buf)).unwrap_or(head.connection);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    fn server(&mut self, buf: &[u8], host: Span) -> Result<(), uri::BadHost> {
        let valid = uri::host_valid(host.of(buf))?;
        let start = host.start as usize;
        self.head.server = Some(Span::new(start, start + valid.len));
        self.head.server_upper = valid.upper;
        self.head.port = valid.port;
        Ok(())
    }
}
