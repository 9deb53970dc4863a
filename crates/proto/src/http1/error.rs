//! Why a request head is invalid, the status of the answer, and the line for the log.

use std::borrow::Cow;
use std::fmt::Write;

use super::names::HeaderLine;
use crate::Span;

/// Why a request head is refused. Each error is the client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// A method that is not made of capital letters, `_` and `-`.
    InvalidMethod,
    /// A request line, or a path in it, that cannot be read.
    InvalidRequest,
    /// HTTP/2.0 or later in a request line.
    InvalidVersion,
    /// A request line without a version and with another method than GET.
    InvalidMethod09,
    /// The authority of an absolute-form or CONNECT target is not a host.
    InvalidHostInLine,
    /// The request line does not fit a buffer.
    TooLongUri,
    /// A header line does not fit a buffer.
    TooLongHeader {
        /// The part of the line that was received.
        line: Span,
    },
    /// The buffers are used up before the first header line.
    TooLargeRequest,
    /// More header lines than `max_headers`.
    TooManyHeaders,
    /// A header line has a byte that is not allowed at its place.
    InvalidHeader {
        /// The line up to the byte.
        line: Span,
        /// The byte.
        byte: u8,
    },
    /// A field that may only be sent once was sent again.
    DuplicateHeader {
        /// The second line.
        second: HeaderLine,
        /// The first line.
        first: HeaderLine,
    },
    /// `Host` was sent again.
    DuplicateHost {
        /// The second line.
        second: HeaderLine,
        /// The first line.
        first: HeaderLine,
    },
    /// `Host` does not hold a host.
    InvalidHost,
    /// HTTP/1.1 without `Host`.
    MissingHost,
    /// `Content-Length` is not a number, or too large for a file offset.
    InvalidContentLength,
    /// `Transfer-Encoding` in a request of HTTP/1.0.
    TransferEncodingInHttp10,
    /// Both `Content-Length` and `Transfer-Encoding`. Two servers could find different bodies.
    LengthAndEncoding,
    /// A transfer coding other than `chunked`.
    UnknownTransferEncoding {
        /// The value of the header.
        value: Span,
    },
    /// CONNECT where it is not allowed.
    Connect,
    /// CONNECT with a body.
    ConnectWithBody,
    /// TRACE is never allowed.
    Trace,
}

impl HeadError {
    /// The status that nginx answers with. 494 is nginx's own: it is sent as 400, but `error_page`
    /// can tell it apart.
    pub fn status(&self) -> u16 {
        match self {
            HeadError::InvalidVersion => 505,
            HeadError::TooLongUri => 414,
            HeadError::TooLongHeader { .. }
            | HeadError::TooLargeRequest
            | HeadError::TooManyHeaders => 494,
            HeadError::UnknownTransferEncoding { .. } => 501,
            HeadError::Connect | HeadError::Trace => 405,
            _ => 400,
        }
    }

    /// Whether the request line was valid, so that its method and target may be used for the log
    /// and to choose an error page.
    pub fn line_parsed(&self) -> bool {
        !matches!(
            self,
            HeadError::InvalidMethod
                | HeadError::InvalidRequest
                | HeadError::InvalidVersion
                | HeadError::InvalidMethod09
                | HeadError::TooLongUri
        )
    }

    /// Whether more of the head may arrive. If the connection closed at once, it would be reset
    /// before the client has read the answer (nginx's lingering close).
    pub fn lingers(&self) -> bool {
        matches!(
            self,
            HeadError::TooLongHeader { .. }
                | HeadError::TooLargeRequest
                | HeadError::TooManyHeaders
        )
    }

    /// The text for the error log, in nginx's words since scripts look for them. `buf` is the
    /// parsed buffer.
    pub fn reason(&self, buf: &[u8]) -> Cow<'static, str> {
        match *self {
            HeadError::InvalidMethod => "client sent invalid method",
            HeadError::InvalidRequest => "client sent invalid request",
            HeadError::InvalidVersion => "client sent invalid version",
            HeadError::InvalidMethod09 => "client sent invalid method in HTTP/0.9 request",
            HeadError::InvalidHostInLine => "client sent invalid host in request line",
            HeadError::TooLongUri => "client sent too long URI",
            HeadError::TooLargeRequest => "client sent too large request",
            HeadError::TooManyHeaders => "client sent too many header lines",
            HeadError::InvalidHost => "client sent invalid host header",
            HeadError::MissingHost => "client sent HTTP/1.1 request without \"Host\" header",
            HeadError::InvalidContentLength => "client sent invalid \"Content-Length\" header",
            HeadError::TransferEncodingInHttp10 => {
                "client sent HTTP/1.0 request with \"Transfer-Encoding\" header"
            }
            HeadError::LengthAndEncoding => {
                "client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time"
            }
            HeadError::Connect => "client sent CONNECT method",
            HeadError::ConnectWithBody => "client sent CONNECT request with body",
            HeadError::Trace => "client sent TRACE method",
            _ => return Cow::Owned(self.detailed_reason(buf)),
        }
        .into()
    }

    /// The reasons that quote the request.
    fn detailed_reason(&self, buf: &[u8]) -> String {
        let text = |span: Span| String::from_utf8_lossy(span.of(buf));
        let duplicate = |what: &str, second: HeaderLine, first: HeaderLine| {
            format!(
                "client sent duplicate {what}: \"{}: {}\", previous value: \"{}: {}\"",
                text(second.name),
                text(second.value),
                text(first.name),
                text(first.value)
            )
        };
        match *self {
            HeadError::TooLongHeader { line } => {
                let shown = line.of(buf).get(..LOGGED_LINE).unwrap_or(line.of(buf));
                let shown = String::from_utf8_lossy(shown);
                format!("client sent too long header line: \"{shown}...\"")
            }
            HeadError::InvalidHeader { line, byte } => {
                let mut reason = format!("client sent invalid header line: \"{}", text(line));
                let _ = write!(reason, "\\x{byte:02x}...\"");
                reason
            }
            HeadError::DuplicateHeader { second, first } => duplicate("header line", second, first),
            HeadError::DuplicateHost { second, first } => duplicate("host header", second, first),
            HeadError::UnknownTransferEncoding { value } => {
                format!("client sent unknown \"Transfer-Encoding\": \"{}\"", text(value))
            }
            _ => String::new(),
        }
    }
}

/// How much of a too long header line is logged: nginx's log line of 2048 bytes less 300.
const LOGGED_LINE: usize = 2048 - 300;
