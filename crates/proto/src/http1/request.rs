//! Request heads. nginx: ngx_http_process_request_line and what follows it.

use super::error::HeadError;
use super::fields::{Fields, FieldsProgress};
use super::line::LineParser;
use super::method::{Method, Version};
use super::names::{Header, HeaderId};
use crate::Span;
use crate::uri;

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
    /// Stop with [`Progress::Server`] as soon as the server's name is known, since another
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
pub enum Progress {
    /// The head is not complete: call again with more bytes.
    More,
    /// Only with `pause_at_server`: [`RequestHead::server`] is known. Call again with the same
    /// bytes, and the limits of that server.
    Server,
    /// The head is complete.
    Done,
}

/// What the client wishes to happen to the connection; the last `Connection` header counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// It did not say.
    #[default]
    Unspecified,
    /// `close`.
    Close,
    /// `keep-alive`.
    KeepAlive,
}

/// A request head. Spans point into the buffer that was parsed.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    /// The method.
    pub method: Method,
    /// Its name as sent.
    pub method_name: Span,
    /// The request line without its line end (`$request`).
    pub line: Span,
    /// Path, query and fragment as sent (`$request_uri`). One `/` borrowed from elsewhere in the
    /// line when the target has no path.
    pub target: Span,
    /// The path as sent, before `?` and `#`.
    pub path: Span,
    /// The query between `?` and `#`.
    pub args: Option<Span>,
    /// The authority of an absolute-form or CONNECT target, with its port.
    pub host: Option<Span>,
    /// The scheme of an absolute-form target.
    pub schema: Option<Span>,
    /// The version as text (`$server_protocol`); empty for HTTP/0.9.
    pub protocol: Span,
    /// The version.
    pub version: Version,
    /// The minor number of HTTP/1.x.
    pub minor: u16,
    /// The path as sent is not the path that is meant: see [`RequestHead::uri`].
    pub complex: bool,
    /// The path holds `%`.
    pub quoted: bool,
    /// The path holds `+`.
    pub plus: bool,
    /// An absolute-form target whose authority is followed by `?`.
    pub empty_path: bool,
    /// The server's name from the target or else from `Host`, without port and trailing dot.
    pub server: Option<Span>,
    /// The name has upper-case letters: fold it before comparing.
    pub server_upper: bool,
    /// The port that came with the name, 0 if none did.
    pub port: u16,
    /// Header lines in the order sent.
    pub headers: Vec<Header>,
    /// Lines that were left out because of odd names; nginx logs each at `info`.
    pub dropped: Vec<Span>,
    /// What `Connection` said.
    pub connection: Connection,
    /// `Content-Length`.
    pub content_length: Option<u64>,
    /// `Transfer-Encoding: chunked`.
    pub chunked: bool,
    /// Offset behind the request line.
    pub line_end: u32,
    /// Offset behind the head: the body begins here.
    pub end: u32,
    seen: u64,
    normalised: Vec<u8>,
}

impl RequestHead {
    /// The path that is meant: decoded and without dot segments (`$uri`).
    #[inline]
    pub fn uri<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        if self.complex { &self.normalised } else { self.path.of(buf) }
    }

    /// The first header of a name. Costs nothing when there is none.
    #[inline]
    pub fn header(&self, id: HeaderId) -> Option<&Header> {
        if self.seen & id.bit() == 0 {
            return None;
        }
        self.headers.iter().find(|header| header.id == id)
    }

    /// All headers of a name, in the order sent.
    pub fn all(&self, id: HeaderId) -> impl Iterator<Item = &Header> {
        let present = self.seen & id.bit() != 0;
        let headers: &[Header] = if present { &self.headers } else { &[] };
        headers.iter().filter(move |header| header.id == id)
    }

    /// Adds a header line that was not sent.
    pub fn add_header(&mut self, header: Header) {
        self.seen |= header.id.bit();
        self.headers.push(header);
    }

    /// Forgets the request, keeps the memory.
    fn clear(&mut self) {
        let mut headers = std::mem::take(&mut self.headers);
        let mut dropped = std::mem::take(&mut self.dropped);
        let mut normalised = std::mem::take(&mut self.normalised);
        headers.clear();
        dropped.clear();
        normalised.clear();
        *self = RequestHead { headers, dropped, normalised, ..RequestHead::default() };
    }
}

/// Reads one request head after another.
#[derive(Debug, Default)]
pub struct RequestParser {
    pub(super) head: RequestHead,
    stage: Stage,
    line: LineParser,
    fields: Fields,
    window: Window,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Line,
    Fields,
    Done,
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

    /// Makes ready for the next request; its buffer begins behind this one's bytes.
    pub fn reset(&mut self) {
        self.head.clear();
        self.stage = Stage::Line;
        self.line = LineParser::default();
        self.window = Window::default();
    }

    /// What has been understood so far; all of it after [`Progress::Done`].
    #[inline]
    pub fn head(&self) -> &RequestHead {
        &self.head
    }

    /// The head, for those who change what was asked.
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

    /// Whether all bytes so far were blank lines. They may be thrown away, with a [`reset`],
    /// and should be: nginx takes any number of them.
    ///
    /// [`reset`]: RequestParser::reset
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
    pub fn parse(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<Progress, HeadError> {
        loop {
            let end = self.window.end(limits);
            let seen = buf.get(..end).unwrap_or(buf);
            let progress = match self.stage {
                Stage::Line => self.line(seen, limits)?,
                Stage::Fields => self.fields(seen, limits)?,
                Stage::Done => return Ok(Progress::Done),
            };
            if progress != Progress::More {
                return Ok(progress);
            }
            if seen.len() < end {
                return Ok(Progress::More);
            }
            match self.stage {
                Stage::Line => self.window.next_for_line(&self.line, limits)?,
                Stage::Fields => self.window.next_for_fields(&self.fields, limits)?,
                Stage::Done => {}
            }
        }
    }

    #[inline]
    fn line(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<Progress, HeadError> {
        if !self.line.parse(buf, &mut self.head)? {
            return Ok(Progress::More);
        }
        self.normalise(buf, limits).map_err(|uri::BadUri| HeadError::InvalidRequest)?;
        let head = &mut self.head;
        if head.version == Version::Http09 {
            self.stage = Stage::Done;
            head.end = head.line_end;
        } else {
            self.stage = Stage::Fields;
            self.fields = Fields::of_request(head.line_end as usize, limits.underscores);
        }
        if let Some(host) = head.host {
            self.server(buf, host).map_err(|uri::BadHost| HeadError::InvalidHostInLine)?;
            if limits.pause_at_server {
                return Ok(Progress::Server);
            }
        }
        if self.stage == Stage::Done {
            return Ok(Progress::Done);
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

    /// The request line was written by somebody else.
    pub(super) fn line_is_there(&mut self) {
        self.stage = Stage::Done;
    }

    fn fields(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<Progress, HeadError> {
        self.fields.set_underscores(limits.underscores);
        loop {
            let progress = self
                .fields
                .parse(buf)
                .map_err(|e| HeadError::InvalidHeader { line: e.line, byte: e.byte })?;
            match progress {
                FieldsProgress::More => return Ok(Progress::More),
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
                        return Ok(Progress::Server);
                    }
                }
                FieldsProgress::End => {
                    self.head.end = self.fields.pos() as u32;
                    self.stage = Stage::Done;
                    self.head.check(buf, limits)?;
                    return Ok(Progress::Done);
                }
            }
        }
    }

    /// Acts on a known header, the last of `headers`; `true` if the server's name became known.
    #[inline]
    pub(super) fn known(&mut self, buf: &[u8], header: Header) -> Result<bool, HeadError> {
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

impl RequestHead {
    #[cold]
    fn duplicate(&self, second: Header) -> HeadError {
        let first = self.headers.iter().find(|h| h.id == second.id).copied().unwrap_or(second);
        match second.id {
            HeaderId::Host => HeadError::DuplicateHost { second, first },
            _ => HeadError::DuplicateHeader { second, first },
        }
    }

    /// The checks that need the whole head. nginx: ngx_http_process_request_header.
    fn check(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<(), HeadError> {
        const NEED_LOOK: u64 =
            1 << HeaderId::ContentLength as u32 | 1 << HeaderId::TransferEncoding as u32;

        if self.version == Version::Http11 && self.seen & HeaderId::Host.bit() == 0 {
            return Err(HeadError::MissingHost);
        }
        if self.seen & NEED_LOOK != 0 {
            self.check_framing(buf)?;
        }
        match self.method {
            Method::Connect if self.minor != 1 || !limits.allow_connect => Err(HeadError::Connect),
            Method::Connect if self.chunked || self.content_length.is_some_and(|n| n > 0) => {
                Err(HeadError::ConnectWithBody)
            }
            Method::Trace => Err(HeadError::Trace),
            _ => Ok(()),
        }
    }

    fn check_framing(&mut self, buf: &[u8]) -> Result<(), HeadError> {
        if let Some(header) = self.header(HeaderId::ContentLength) {
            let length = offset(header.value.of(buf)).ok_or(HeadError::InvalidContentLength)?;
            self.content_length = Some(length);
        }
        let Some(&Header { value, .. }) = self.header(HeaderId::TransferEncoding) else {
            return Ok(());
        };
        if self.version < Version::Http11 {
            return Err(HeadError::TransferEncodingInHttp10);
        }
        if !value.of(buf).eq_ignore_ascii_case(b"chunked") {
            return Err(HeadError::UnknownTransferEncoding { value });
        }
        if self.content_length.is_some() {
            return Err(HeadError::LengthAndEncoding);
        }
        self.chunked = true;
        Ok(())
    }
}

/// The buffer of nginx that the reading stands in. nginx reads a head into a first buffer and
/// then into a few large ones, moving an unfinished line along, and refuses a head that these
/// do not hold. The buffer here is one piece; this keeps count of what nginx's would be.
#[derive(Debug, Default)]
struct Window {
    /// End of the current buffer, 0 for the first.
    end: usize,
    used: usize,
}

impl Window {
    #[inline]
    fn end(&self, limits: &HeadLimits) -> usize {
        if self.end == 0 { limits.first.max(1) } else { self.end }
    }

    #[cold]
    fn next_for_line(&mut self, line: &LineParser, limits: &HeadLimits) -> Result<(), HeadError> {
        if line.blank() {
            // nginx starts the same buffer anew
            self.end = line.pos + limits.first.max(1);
            return Ok(());
        }
        self.advance(line.start, line.pos, limits).ok_or(HeadError::TooLongUri)
    }

    #[cold]
    fn next_for_fields(&mut self, fields: &Fields, limits: &HeadLimits) -> Result<(), HeadError> {
        let pos = fields.pos();
        match fields.line_start() {
            Some(start) => self.advance(start, pos, limits),
            None => self.advance(pos, pos, limits),
        }
        .ok_or_else(|| {
            let line = Span::new(fields.last_start(), pos);
            if line.is_empty() {
                HeadError::TooLargeRequest
            } else {
                HeadError::TooLongHeader { line }
            }
        })
    }

    /// The line that began at `start` goes on at `pos`, in the next buffer.
    fn advance(&mut self, start: usize, pos: usize, limits: &HeadLimits) -> Option<()> {
        let line = limits.line.max(1);
        if pos - start >= line || self.used >= limits.total / line {
            return None;
        }
        self.used += 1;
        self.end = start + line;
        Some(())
    }
}

/// nginx looks for the words anywhere in the value.
fn connection(value: &[u8]) -> Option<Connection> {
    let holds = |word: &[u8]| value.windows(word.len()).any(|w| w.eq_ignore_ascii_case(word));
    match value {
        b"keep-alive" => Some(Connection::KeepAlive),
        _ if holds(b"close") => Some(Connection::Close),
        _ if holds(b"keep-alive") => Some(Connection::KeepAlive),
        _ => None,
    }
}

/// A decimal number that is a valid file offset. nginx: ngx_atoof.
pub(crate) fn offset(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let mut value: i64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(i64::from(digit - b'0'))?;
    }
    u64::try_from(value).ok()
}
