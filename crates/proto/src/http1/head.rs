//! The contents of a request's head.

use super::error::HeadError;
use super::method::{Method, Version};
use super::names::{HeaderId, HeaderLine};
use super::request::HeadLimits;
use crate::{Renew, Span, as_new};

/// The client's wish for the connection. The last `Connection` field decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionHeader {
    /// Not given.
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
    /// Path, query and fragment as sent (`$request_uri`). If the target has no path, it is a `/`
    /// elsewhere in the line.
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
    /// The path as sent is not normalised: see [`RequestHead::uri`].
    pub complex: bool,
    /// The path contains `%`.
    pub quoted: bool,
    /// The path contains `+`.
    pub plus: bool,
    /// An absolute-form target with `?` directly after its authority.
    pub empty_path: bool,
    /// The requested server's name, from the target or else from `Host`, without port and trailing
    /// dot.
    pub server: Option<Span>,
    /// The name has upper-case letters, so it must be lower-cased before it is compared.
    pub server_upper: bool,
    /// The port after the name, 0 if there is none.
    pub port: u16,
    /// Header lines in the order sent.
    pub headers: Vec<HeaderLine>,
    /// Lines that were dropped because of odd names. nginx logs each at `info`.
    pub dropped: Vec<Span>,
    /// The value of `Connection`.
    pub connection: ConnectionHeader,
    /// `Content-Length`.
    pub content_length: Option<u64>,
    /// `Transfer-Encoding: chunked`.
    pub chunked: bool,
    /// Offset behind the request line.
    pub line_end: u32,
    /// Offset behind the head: the body begins here.
    pub end: u32,
    /// The set of known names that were seen.
    pub(super) seen: u64,
    pub(super) normalised: Vec<u8>,
}

impl Renew for RequestHead {
    fn renew(&mut self) {
        as_new!(self, RequestHead {
            headers, dropped, normalised;
            method, method_name, line, target, path, args, host, schema, protocol, version, minor,
            complex, quoted, plus, empty_path, server, server_upper, port, connection,
            content_length, chunked, line_end, end, seen
        });
    }
}

impl RequestHead {
    /// The normalised path: decoded and without dot segments (`$uri`).
    #[inline]
    pub fn uri<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        if self.complex { &self.normalised } else { self.path.of(buf) }
    }

    /// The first field with this name. Costs nothing if there is none.
    #[inline]
    pub fn header(&self, id: HeaderId) -> Option<&HeaderLine> {
        if self.seen & id.bit() == 0 {
            return None;
        }
        self.headers.iter().find(|header| header.id == id)
    }

    /// All fields with this name, in the order sent.
    pub fn all(&self, id: HeaderId) -> impl Iterator<Item = &HeaderLine> {
        let present = self.seen & id.bit() != 0;
        let headers: &[HeaderLine] = if present { &self.headers } else { &[] };
        headers.iter().filter(move |header| header.id == id)
    }

    /// Adds a field line that the client has not sent.
    pub fn add_header(&mut self, header: HeaderLine) {
        self.seen |= header.id.bit();
        self.headers.push(header);
    }

    #[cold]
    pub(super) fn duplicate(&self, second: HeaderLine) -> HeadError {
        let first = self.headers.iter().find(|h| h.id == second.id).copied().unwrap_or(second);
        match second.id {
            HeaderId::Host => HeadError::DuplicateHost { second, first },
            _ => HeadError::DuplicateHeader { second, first },
        }
    }

    /// Makes the checks that need the whole head. nginx: ngx_http_process_request_header.
    pub(super) fn check(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<(), HeadError> {
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
        let Some(&HeaderLine { value, .. }) = self.header(HeaderId::TransferEncoding) else {
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

/// Reads `Connection`. As in nginx, the words may be anywhere in the value.
pub(super) fn connection(value: &[u8]) -> Option<ConnectionHeader> {
    let holds = |word: &[u8]| value.windows(word.len()).any(|w| w.eq_ignore_ascii_case(word));
    match value {
        b"keep-alive" => Some(ConnectionHeader::KeepAlive),
        _ if holds(b"close") => Some(ConnectionHeader::Close),
        _ if holds(b"keep-alive") => Some(ConnectionHeader::KeepAlive),
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
