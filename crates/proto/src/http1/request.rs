//! Request heads. nginx: ngx_http_process_request_line and what follows it.

use super::error::HeadError;
use super::fields::{FieldsProgress, FieldsReader};
use super::head::{RequestHead, connection};
use super::line::LineParser;
use super::method::Version;
use super::names::{HeaderId, HeaderLine};
use super::window::Window;
use crate::uri;
use crate::{Renew, Span, as_new};

/// The limits and switches of the server that a request is read for.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Size of the buffer that a head is first read into (`client_header_buffer_size`).
    pub first: usize,
    /// Size of one further buffer: no line may be longer (`large_client_header_buffers`).
    pub line: usize,
    /// Size of all further buffers together.
    pub total: usize,
    /// Names may hold underscores (`underscores_in_headers`).
    pub underscores: bool,
    /// Lines with other odd bytes in their names are dropped (`ignore_invalid_headers`).
    pub ignore_invalid: bool,
    /// How many header lines a request may have (`max_headers`).
    pub max_headers: usize,
    /// Adjacent slashes of a path become one (`merge_slashes`).
    pub merge_slashes: bool,
    /// CONNECT is served here.
    pub allow_connect: bool,
    /// Stop with [`HeadProgress::Server`] as soon as the server's name is known, since another
    /// server may have other limits.
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

/// What [`RequestParser::parse`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadProgress {
    /// The head is not complete: call again with more bytes.
    More,
    /// Only with `pause_at_server`: [`RequestHead::server`] is known. Call again with the same
    /// bytes, and the limits of that server.
    Server,
    /// The head is complete.
    Done,
}

/// Reads one request head after another.
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

/// Makes ready for the next request; its buffer begins behind this one's bytes.
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

    /// A parser that has read this head: for a request that is made from another one.
    pub fn with_head(head: RequestHead) -> RequestParser {
        RequestParser { head, stage: Stage::Done, ..RequestParser::default() }
    }

    /// What has been understood so far; all of it after [`HeadProgress::Done`].
    #[inline]
    pub fn head(&self) -> &RequestHead {
        &self.head
    }

    /// The head, for code that changes what was asked.
    pub fn head_mut(&mut self) -> &mut RequestHead {
        &mut self.head
    }

    /// Takes the head out, for a request that outlives this parser's turn.
    pub fn take_head(&mut self) -> RequestHead {
        std::mem::take(&mut self.head)
    }

    /// Whether the request line is complete and in order.
    pub fn line_parsed(&self) -> bool {
        self.stage != Stage::Line
    }

    /// The length of the lines that came whole and could be read, that which was refused for what it says included.
    pub fn lines_len(&self) -> usize {
        let end = match self.stage {
            Stage::Line => self.head.line_end as usize,
            Stage::Fields => self.fields.line_start().unwrap_or(self.fields.pos()),
            Stage::Done => self.head.end as usize,
        };
        end.saturating_sub(self.head.line.start as usize)
    }

    /// Whether all bytes so far were blank lines. They may be thrown away, with [`Renew::renew`],
    /// and should be: nginx takes any number of them.
    pub fn blank(&self) -> bool {
        self.stage == Stage::Line && self.line.blank()
    }

    /// The request line for the log, also when it could not be parsed to its end.
    pub fn logged_line<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        if self.line_parsed() {
            return self.head.line.of(buf);
        }
        let rest = buf.get(self.line.start..).unwrap_or_default();
        let end = memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        rest.get(..end).unwrap_or_default()
    }

    /// Reads on. `buf` begins with the first byte of the request and only grows between calls.
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

    /// The path that is meant, where it is not the one that was sent.
    #[inline]
    pub(super) fn normalise(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<(), uri::BadUri> {
        let head = &mut self.head;
        if !head.complex {
            return Ok(());
        }
        uri::normalise(head.path.of(buf), limits.merge_slashes, &mut head.normalised)
    }

    /// The request line was composed, not read.
    pub(super) fn line_is_there(&mut self) {
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

    /// Acts on a known header, the last of `headers`; `true` if the server's name became known.
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
