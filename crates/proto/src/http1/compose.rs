//! Request heads that arrive as fields, over HTTP/2 and HTTP/3. They become the same
//! [`RequestHead`], over a text like that of an HTTP/1 head. So code that reads a request need not
//! know its version. nginx: ngx_http_v2_pseudo_header, ngx_http_v2_run_request,
//! ngx_http_v3_process_pseudo_header.

use std::fmt;

use super::error::HeadError;
use super::head::{ConnectionHeader, offset};
use super::line::LineParser;
use super::method::{Method, Version};
use super::names::{HeaderId, HeaderLine};
use super::request::{HeadLimits, RequestParser};
use crate::{Renew, Span, as_new};

/// Why a head is refused. The text is nginx's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComposeError {
    /// A name has bytes that no name may have.
    InvalidName(Box<[u8]>),
    /// A value has bytes that would end its line.
    InvalidValue(Box<[u8]>, Box<[u8]>),
    /// A pseudo-header comes after a field.
    LatePseudo,
    /// Requests do not have this pseudo-header.
    UnknownPseudo(Box<[u8]>),
    /// A pseudo-header comes twice.
    Duplicate(&'static str),
    /// A pseudo-header has no value.
    Empty(&'static str),
    /// A required pseudo-header is missing.
    Missing(&'static str),
    /// `:path` is not a path.
    InvalidPath(Box<[u8]>),
    /// `:method` is not made of capital letters, `_` and `-`.
    InvalidMethod(Box<[u8]>),
    /// `:scheme` is not a scheme.
    InvalidScheme(Box<[u8]>),
    /// `:authority` does not hold a host.
    InvalidAuthority,
    /// A connection-specific field of HTTP/1.
    OfHttp1(&'static str),
    /// `TE` may only have the value `trailers`.
    InvalidTe,
    /// Neither `:authority` nor `Host`.
    NoHost,
    /// `:authority` and `Host` differ.
    HostDiffers,
    /// The head exceeds `large_client_header_buffers`.
    TooLarge,
    /// There is no body, although `Content-Length` announces one.
    NoBody,
    /// The client cancelled the request before its head was complete.
    Cut,
    /// The head did not arrive in time.
    TimedOut,
    /// CONNECT is not served.
    Connect,
    /// TRACE is not served.
    Trace,
    /// An error that heads of HTTP/1 have, too. Its text is in the draft's buffer.
    Head(HeadError),
}

impl ComposeError {
    /// The status that nginx answers with.
    pub fn status(&self) -> u16 {
        match self {
            ComposeError::Connect | ComposeError::Trace => 405,
            ComposeError::TooLarge => 494,
            ComposeError::TimedOut => 408,
            ComposeError::Head(error) => error.status(),
            _ => 400,
        }
    }

    /// Whether the request breaks the rules of its version (RFC 9113, section 8.1.1). Others are refused by choice.
    pub fn is_malformed(&self) -> bool {
        !matches!(self, ComposeError::Connect | ComposeError::Trace | ComposeError::TooLarge)
    }

    /// The text for the error log. `buf` is the text of the head.
    pub fn reason(&self, buf: &[u8], version: Version) -> String {
        match self {
            ComposeError::Head(error) => error.reason(buf).into_owned(),
            ComposeError::NoBody | ComposeError::Cut => {
                "client prematurely closed stream".to_owned()
            }
            ComposeError::TimedOut => "client timed out (110: Connection timed out)".to_owned(),
            other => VersionedError(other, version).to_string(),
        }
    }
}

/// An error in nginx's words for a version.
struct VersionedError<'a>(&'a ComposeError, Version);

impl fmt::Display for ComposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        VersionedError(self, Version::Http20).fmt(f)
    }
}

impl fmt::Display for VersionedError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VersionedError(error, version) = self;
        let text = String::from_utf8_lossy;
        // For HTTP/2, nginx quotes only one of them.
        let quoted = |name: &str| match *version == Version::Http30 || name == ":authority" {
            true => format!("\"{name}\""),
            false => name.to_owned(),
        };
        f.write_str("client sent ")?;
        match error {
            ComposeError::InvalidName(name) => write!(f, "invalid header name: \"{}\"", text(name)),
            ComposeError::InvalidValue(name, value) => {
                let (name, value) = (text(name), text(value));
                write!(f, "header \"{name}\" with invalid value: \"{value}\"")
            }
            ComposeError::LatePseudo => f.write_str("out of order pseudo-headers"),
            ComposeError::UnknownPseudo(name) => {
                write!(f, "unknown pseudo-header \"{}\"", text(name))
            }
            ComposeError::Duplicate(name) => write!(f, "duplicate {} header", quoted(name)),
            ComposeError::Empty(name) => write!(f, "empty {} header", quoted(name)),
            ComposeError::Missing(name) => write!(f, "no {} header", quoted(name)),
            ComposeError::InvalidPath(path) => {
                write!(f, "invalid {} header: \"{}\"", quoted(":path"), text(path))
            }
            ComposeError::InvalidMethod(name) => write!(f, "invalid method: \"{}\"", text(name)),
            ComposeError::InvalidScheme(name) => {
                write!(f, "invalid {} header: \"{}\"", quoted(":scheme"), text(name))
            }
            ComposeError::InvalidAuthority => f.write_str("invalid \":authority\" header"),
            ComposeError::OfHttp1(name) => write!(f, "\"{name}\" header"),
            ComposeError::InvalidTe => f.write_str("invalid \"TE\" header"),
            ComposeError::NoHost => f.write_str("neither \":authority\" nor \"Host\" header"),
            ComposeError::HostDiffers => {
                f.write_str("\":authority\" and \"Host\" headers with different values")
            }
            ComposeError::Connect => f.write_str("CONNECT method"),
            ComposeError::Trace => f.write_str("TRACE method"),
            ComposeError::TooLarge => f.write_str("too large header"),
            ComposeError::NoBody => f.write_str("no body, though it was announced"),
            ComposeError::Cut => f.write_str("no whole head"),
            ComposeError::TimedOut => f.write_str("no whole head in time"),
            ComposeError::Head(_) => f.write_str("invalid request"),
        }
    }
}

/// The state in which a head is composed.
pub struct HeadDraft<'a> {
    /// The limits of the head.
    pub limits: &'a HeadLimits,
    /// The limits from the name of this host on, if the host has a server of its own.
    pub limits_of: &'a dyn Fn(&[u8]) -> Option<&'a HeadLimits>,
    /// Gets the parsed head.
    pub parser: &'a mut RequestParser,
    /// Gets the text of the head.
    pub buf: &'a mut Vec<u8>,
}

impl<'a> HeadDraft<'a> {
    /// A head with the same limits for every host.
    pub fn new(
        limits: &'a HeadLimits,
        parser: &'a mut RequestParser,
        buf: &'a mut Vec<u8>,
    ) -> HeadDraft<'a> {
        HeadDraft { limits, limits_of: &|_| None, parser, buf }
    }

    /// Applies the limits of the requested server from here on.
    fn take_limits(&mut self) {
        let head = &self.parser.head;
        let Some(server) = head.server else { return };
        let name = server.of(self.buf);
        let own = match head.server_upper {
            true => (self.limits_of)(&name.to_ascii_lowercase()),
            false => (self.limits_of)(name),
        };
        self.limits = own.unwrap_or(self.limits);
    }
}

/// A pseudo-header. RFC 9113 section 8.3.1.
#[derive(Clone, Copy)]
enum Pseudo {
    Method,
    Scheme,
    Path,
    Authority,
}

impl Pseudo {
    fn from_name(name: &[u8]) -> Option<Pseudo> {
        Some(match name {
            b":method" => Pseudo::Method,
            b":scheme" => Pseudo::Scheme,
            b":path" => Pseudo::Path,
            b":authority" => Pseudo::Authority,
            _ => return None,
        })
    }
}

/// Composes one head after another.
#[derive(Debug, Default)]
pub struct Composer {
    /// The values of the pseudo-headers.
    text: Vec<u8>,
    method: Option<Span>,
    scheme: Option<Span>,
    path: Option<Span>,
    authority: Option<Span>,
    /// The value of `Cookie`, which may arrive in several fields: RFC 9113, section 8.2.3.
    cookie: Vec<u8>,
    /// A `Cookie` field has arrived, even if it was empty.
    cookies: bool,
    /// The request line is in the buffer.
    line: bool,
    /// A `Host` field has arrived.
    host: bool,
    fault: Option<ComposeError>,
    /// The heads arrive over HTTP/3.
    http3: bool,
}

impl Composer {
    /// Composes heads over HTTP/3. [`Composer::default`] composes those over HTTP/2.
    pub fn of_http3() -> Composer {
        Composer { http3: true, ..Composer::default() }
    }

    fn version(&self) -> (Version, &'static [u8]) {
        match self.http3 {
            true => (Version::Http30, b"HTTP/3.0"),
            false => (Version::Http20, b"HTTP/2.0"),
        }
    }

    /// Takes a field of the block. After an error, fields are ignored, and [`Composer::finish`]
    /// returns the error.
    pub fn field(&mut self, name: &[u8], value: &[u8], to: &mut HeadDraft<'_>) {
        if self.fault.is_none() {
            self.fault = self.take(name, value, to).err();
        }
    }

    /// Makes [`Composer::finish`] fail, for a block of which not all fields arrive here. The error of an earlier field stays.
    pub fn fail(&mut self, fault: ComposeError) {
        self.fault.get_or_insert(fault);
    }

    /// Ends the block. With `ended`, no body follows. Prepares for the next head.
    pub fn finish(&mut self, ended: bool, to: &mut HeadDraft<'_>) -> Result<(), ComposeError> {
        let result = match self.fault.take() {
            Some(fault) => Err(fault),
            None => self.end(ended, to),
        };
        if !self.line && result.is_err() {
            // For the log, as far as it is known.
            let _ = self.request_line(to);
            if !self.line {
                self.pieces(to);
            }
        }
        let of_http3 = self.http3;
        as_new!(self, Composer {
            text, cookie; method, scheme, path, authority, cookies, line, host, fault, http3
        });
        self.http3 = of_http3;
        result
    }

    fn take(
        &mut self,
        name: &[u8],
        value: &[u8],
        to: &mut HeadDraft<'_>,
    ) -> Result<(), ComposeError> {
        let pseudo = Pseudo::from_name(name);
        let mut odd = pseudo.is_none() && check_name(name, to.limits)?;
        if has_line_end(value) {
            return Err(ComposeError::InvalidValue(name.into(), value.into()));
        }
        if name.starts_with(b":") {
            if self.line {
                return Err(ComposeError::LatePseudo);
            }
            let pseudo = pseudo.ok_or_else(|| ComposeError::UnknownPseudo(name.into()))?;
            return self.pseudo(pseudo, value);
        }
        if !self.line {
            self.request_line(to)?;
            // Checks again, by the limits of the server that is known now.
            odd = check_name(name, to.limits)?;
        }
        if odd && to.limits.ignore_invalid {
            let span = append(to.buf, name, value);
            to.parser.head.dropped.push(Span { start: span.name.start, end: span.value.end });
            return Ok(());
        }
        if name == b"cookie" {
            if self.cookies {
                self.cookie.extend_from_slice(b"; ");
            }
            self.cookies = true;
            self.cookie.extend_from_slice(value);
            return Ok(());
        }
        self.header(name, value, to)
    }

    fn pseudo(&mut self, pseudo: Pseudo, value: &[u8]) -> Result<(), ComposeError> {
        let (place, name) = match pseudo {
            Pseudo::Method => (&mut self.method, ":method"),
            Pseudo::Scheme => (&mut self.scheme, ":scheme"),
            Pseudo::Path => (&mut self.path, ":path"),
            Pseudo::Authority => (&mut self.authority, ":authority"),
        };
        if place.is_some() {
            return Err(ComposeError::Duplicate(name));
        }
        match pseudo {
            Pseudo::Authority => {}
            _ if value.is_empty() => return Err(ComposeError::Empty(name)),
            Pseudo::Scheme if !is_scheme(value) => {
                return Err(ComposeError::InvalidScheme(value.into()));
            }
            Pseudo::Method if !value.iter().all(|&b| is_method_byte(b)) => {
                return Err(ComposeError::InvalidMethod(value.into()));
            }
            _ => {}
        }
        let start = self.text.len();
        self.text.extend_from_slice(value);
        *place = Some(Span::new(start, self.text.len()));
        Ok(())
    }

    /// Writes the request line, and a `Host` line from `:authority`.
    fn request_line(&mut self, to: &mut HeadDraft<'_>) -> Result<(), ComposeError> {
        let method = self.method.ok_or(ComposeError::Missing(":method"))?;
        self.scheme.ok_or(ComposeError::Missing(":scheme"))?;
        let path = self.path.ok_or(ComposeError::Missing(":path"))?;
        self.line = true;
        let HeadDraft { limits, parser, buf, .. } = to;
        let head = &mut parser.head;
        buf.clear();
        buf.extend_from_slice(method.of(&self.text));
        head.method_name = Span::new(0, buf.len());
        head.method = Method::from_name(buf);
        buf.push(b' ');
        let target = buf.len();
        buf.extend_from_slice(path.of(&self.text));
        let end = buf.len();
        let (version, name) = self.version();
        buf.push(b' ');
        buf.extend_from_slice(name);
        head.line = Span::new(0, buf.len());
        head.protocol = Span::new(end + 1, buf.len());
        (head.version, head.minor) = (version, 0);
        head.connection = ConnectionHeader::KeepAlive;
        buf.extend_from_slice(b"\r\n");
        head.line_end = buf.len() as u32;
        parser.line_composed();
        if !LineParser::target(buf, target, end, &mut parser.head) {
            return Err(ComposeError::InvalidPath(path.of(&self.text).into()));
        }
        if parser.normalise(buf, limits).is_err() {
            // An invalid path must not be used in part.
            (parser.head.path, parser.head.complex) = (Span::default(), false);
            return Err(ComposeError::Head(HeadError::InvalidRequest));
        }
        let Some(authority) = self.authority else { return Ok(()) };
        let header = append(buf, b"host", authority.of(&self.text));
        parser.head.headers.push(header);
        parser.known(buf, header).map_err(|_| ComposeError::InvalidAuthority)?;
        to.take_limits();
        Ok(())
    }

    /// Writes the known parts of a head without request line, for the log.
    fn pieces(&self, to: &mut HeadDraft<'_>) {
        let HeadDraft { parser: RequestParser { head, .. }, buf, .. } = to;
        buf.clear();
        buf.extend_from_slice(b"\r\n");
        let mut put = |text: &[u8]| {
            let start = buf.len();
            buf.extend_from_slice(text);
            Span::new(start, buf.len())
        };
        let of = |piece: Option<Span>| piece.unwrap_or_default().of(&self.text);
        let (version, name) = self.version();
        (head.version, head.protocol) = (version, put(name));
        (head.method, head.method_name) =
            (Method::from_name(of(self.method)), put(of(self.method)));
        head.target = put(of(self.path));
    }

    fn header(
        &mut self,
        name: &[u8],
        value: &[u8],
        to: &mut HeadDraft<'_>,
    ) -> Result<(), ComposeError> {
        let HeadDraft { limits, parser, buf, .. } = to;
        // The client has not sent the `Host` line that was made from `:authority`.
        let sent = parser.head.headers.len() - usize::from(self.authority.is_some());
        if sent >= limits.max_headers {
            return Err(ComposeError::Head(HeadError::TooManyHeaders));
        }
        if name == b"host"
            && !std::mem::replace(&mut self.host, true)
            && let Some(authority) = self.authority
        {
            let same = authority.of(&self.text) == value;
            return if same { Ok(()) } else { Err(ComposeError::HostDiffers) };
        }
        let header = append(buf, name, value);
        parser.head.headers.push(header);
        if header.id != HeaderId::Other && parser.known(buf, header).map_err(ComposeError::Head)? {
            to.take_limits();
        }
        Ok(())
    }

    /// Makes the checks that need the whole head.
    fn end(&mut self, ended: bool, to: &mut HeadDraft<'_>) -> Result<(), ComposeError> {
        if !self.line {
            self.request_line(to)?;
        }
        let HeadDraft { parser, buf, .. } = to;
        if self.cookies {
            let header = append(buf, b"cookie", &self.cookie);
            parser.head.headers.push(header);
            parser.known(buf, header).map_err(ComposeError::Head)?;
        }
        buf.extend_from_slice(b"\r\n");
        parser.head.end = buf.len() as u32;
        let head = &mut parser.head;
        for (id, name) in [
            (HeaderId::Connection, "Connection"),
            (HeaderId::KeepAlive, "Keep-Alive"),
            (HeaderId::ProxyConnection, "Proxy-Connection"),
            (HeaderId::TransferEncoding, "Transfer-Encoding"),
            (HeaderId::Upgrade, "Upgrade"),
        ] {
            if head.header(id).is_some() {
                return Err(ComposeError::OfHttp1(name));
            }
        }
        let trailers = |h: &HeaderLine| h.value.of(buf).eq_ignore_ascii_case(b"trailers");
        if head.all(HeaderId::Te).any(|te| !trailers(te)) || head.all(HeaderId::Te).count() > 1 {
            return Err(ComposeError::InvalidTe);
        }
        if head.server.is_none_or(Span::is_empty) {
            return Err(ComposeError::NoHost);
        }
        match head.header(HeaderId::ContentLength) {
            Some(header) => {
                let length = offset(header.value.of(buf));
                head.content_length =
                    Some(length.ok_or(ComposeError::Head(HeadError::InvalidContentLength))?);
            }
            None => head.chunked = !ended,
        }
        match head.method {
            _ if ended && head.content_length.is_some_and(|n| n > 0) => Err(ComposeError::NoBody),
            Method::Connect => Err(ComposeError::Connect),
            Method::Trace => Err(ComposeError::Trace),
            _ => Ok(()),
        }
    }
}

/// Appends a field line.
fn append(buf: &mut Vec<u8>, name: &[u8], value: &[u8]) -> HeaderLine {
    let start = buf.len();
    buf.extend_from_slice(name);
    let name_end = buf.len();
    buf.extend_from_slice(b": ");
    let value_start = buf.len();
    buf.extend_from_slice(value);
    let value = Span::new(value_start, buf.len());
    buf.extend_from_slice(b"\r\n");
    HeaderLine { name: Span::new(start, name_end), value, id: HeaderId::from_name(name) }
}

/// True for an odd name that may be ignored.
fn check_name(name: &[u8], limits: &HeadLimits) -> Result<bool, ComposeError> {
    if name.is_empty() {
        return Err(ComposeError::InvalidName(name.into()));
    }
    let mut odd = false;
    for &byte in name.strip_prefix(b":").unwrap_or(name) {
        match byte {
            b'a'..=b'z' | b'-' | b'0'..=b'9' => {}
            b'_' if limits.underscores => {}
            0..=0x20 | 0x7f | b':' | b'A'..=b'Z' => {
                return Err(ComposeError::InvalidName(name.into()));
            }
            _ => odd = true,
        }
    }
    Ok(odd)
}

/// Whether a byte ends a line. It has no early exit, so that the compiler uses vector instructions:
/// most values are short and valid.
fn has_line_end(value: &[u8]) -> bool {
    value.iter().fold(false, |found, &byte| found | matches!(byte, 0 | b'\r' | b'\n'))
}

fn is_method_byte(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte == b'_' || byte == b'-'
}

fn is_scheme(text: &[u8]) -> bool {
    if matches!(text, b"https" | b"http") {
        return true;
    }
    let rest = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    text.first().is_some_and(u8::is_ascii_alphabetic) && text.iter().all(rest)
}
