//! The interface of upstream protocols.

use std::fmt;

use bytes::Bytes;
use weir_engine::Chain;
use weir_log::Level;
use weir_proto::Span;
use weir_proto::http1::{BodyError, HeaderLine, ResponseError};
use weir_upstream::framing::BadFraming;
use weir_upstream::reply::BadReply;

use super::tls::UpstreamTls;

use crate::answer::headers::Headers;
use crate::body::Body;
use crate::request::Request;

/// A serialized request.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    /// The request without the client's body. For multiplexed protocols, only its fields.
    pub bytes: Bytes,
    /// The URI, for log lines.
    pub uri: Bytes,
    /// A body in place of the client's, for multiplexed protocols.
    pub body: Bytes,
}

/// Why the request cannot be serialized; shown in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutgoingError {
    /// The URI is empty.
    NoUri,
    /// The path climbs out of that of `proxy_pass`.
    Climbs,
    /// There is no key for memcached.
    NoKey,
    /// A part is longer than the protocol allows.
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its length.
        length: usize,
    },
}

impl OutgoingError {
    /// The status for the client.
    pub fn status(self) -> u16 {
        match self {
            OutgoingError::Climbs => 403,
            OutgoingError::NoUri | OutgoingError::NoKey | OutgoingError::TooLong { .. } => 500,
        }
    }

    /// The level of the log line.
    pub fn level(self) -> Level {
        match self {
            OutgoingError::TooLong { .. } => Level::Alert,
            OutgoingError::NoUri | OutgoingError::Climbs | OutgoingError::NoKey => Level::Error,
        }
    }
}

impl fmt::Display for OutgoingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutgoingError::NoUri => f.write_str("zero length URI to proxy"),
            OutgoingError::Climbs => f.write_str("the URI to proxy leaves that of \"proxy_pass\""),
            OutgoingError::NoKey => f.write_str("the \"$memcached_key\" variable is not set"),
            OutgoingError::TooLong { what, length } => write!(f, "{what} is too big: {length}"),
        }
    }
}

impl std::error::Error for OutgoingError {}

/// The head of an answer. Spans point into the buffer of [`Reader::head`].
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// The status; 0 without a head. An answer without a head never counts as a success.
    pub status: u16,
    /// Status and reason as sent; `None` for usual ones.
    pub status_line: Option<Span>,
    /// The header lines, in order.
    pub headers: Vec<HeaderLine>,
    /// The offset of the body.
    pub end: usize,
    /// The length of the body, if known.
    pub length: Option<u64>,
    /// The connection persists after the body.
    pub keepalive: bool,
}

impl Answer {
    /// An answer without a head: HTTP/0.9, or no HTTP.
    pub fn of_no_head() -> Answer {
        Answer::default()
    }

    /// The status in logs and for clients. As in nginx, `$upstream_status` of an answer without a
    /// head is 200.
    pub fn shown_status(&self) -> u16 {
        let has_head = self.end > 0 || self.status > 0;
        if has_head { self.status } else { 200 }
    }
}

/// What [`Reader::head`] found.
#[derive(Debug)]
pub enum Found {
    /// The head is not complete.
    More,
    /// An interim answer (1xx): its status, its header lines, and the offset of what follows.
    Interim(u16, Vec<HeaderLine>, usize),
    /// The head.
    Head(Answer),
}

/// What [`Reader::body`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// The body is complete.
    pub done: bool,
    /// Data after the end of the answer. The connection cannot be used again.
    pub extra: Option<Extra>,
}

/// The log line about data after the end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extra {
    /// The text.
    pub text: &'static str,
    /// The level.
    pub level: Level,
}

impl Extra {
    /// A warning, as in nginx.
    pub const fn warned(text: &'static str) -> Extra {
        Extra { text, level: Level::Warn }
    }
}

/// The log line that several protocols share.
pub const TOO_MUCH: Extra =
    Extra::warned("upstream sent more data than specified in \"Content-Length\" header");

/// Why an answer of HTTP or CGI is invalid. The texts are nginx's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerError {
    /// An error that is also possible in answers to this server's own requests.
    Reply(BadReply),
    /// The invalid `Status` of a script, as sent.
    Status(String),
    /// 103 in HTTP/1.0, which has no interim answers.
    EarlyHints,
    /// The body is longer than `Content-Length`.
    Larger,
}

impl AnswerError {
    /// The parser's error about the head in `buf`.
    pub fn head(error: ResponseError, buf: &[u8]) -> AnswerError {
        AnswerError::Reply(BadReply::Head(error.reason(buf)))
    }
}

impl From<BadFraming> for AnswerError {
    fn from(error: BadFraming) -> AnswerError {
        AnswerError::Reply(BadReply::Framing(error))
    }
}

impl From<BodyError> for AnswerError {
    fn from(error: BodyError) -> AnswerError {
        AnswerError::Reply(BadReply::Body(error))
    }
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AnswerError::Reply(error) => error.fmt(f),
            AnswerError::Status(status) => write!(f, "upstream sent invalid status \"{status}\""),
            AnswerError::EarlyHints => {
                f.write_str("upstream sent HTTP/1.0 response with early hints")
            }
            AnswerError::Larger => {
                f.write_str("upstream sent response body larger than indicated content length")
            }
        }
    }
}

/// Parses the answers of servers, one after another.
pub trait Reader {
    /// Why an answer is invalid; shown in the log.
    type Error: fmt::Display;

    /// Resets the reader, before another server is asked.
    fn restart(&mut self);

    /// Removes the framing from newly received data, which begin at `from`. Only protocols with
    /// records need it. Errors are reported by the next call of [`Reader::head`] or
    /// [`Reader::body`].
    fn unframe(&mut self, _buf: &mut Vec<u8>, _from: usize) {}

    /// How many of the framing bytes that were received with the head came after its end.
    fn framing_behind(&self, _end: usize) -> usize {
        0
    }

    /// Takes the server's log messages (FastCGI stderr).
    fn said(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Parses the head of an answer, received or stored.
    fn head(&mut self, r: &mut Request, buf: &mut Vec<u8>) -> Result<Found, Self::Error>;

    /// Prepares for the body, after the head was parsed. False if there is no body.
    fn has_body(&mut self, r: &Request, answer: &Answer) -> bool;

    /// The lines of an invalid head that were parsed before the error.
    fn lines(&mut self) -> Vec<HeaderLine> {
        Vec::new()
    }

    /// Removes the framing of the body from `buf`, which has only data received after the head.
    /// `buf` is empty if only the head was received. After an error, `buf` has the part of the body
    /// before it.
    fn body(&mut self, buf: &mut Vec<u8>) -> Result<Taken, Self::Error>;

    /// Whether the body arrives in pieces that the server made: chunks, records, or HTTP/2 frames.
    /// Such a piece is passed on at once, without waiting for more.
    fn comes_in_pieces(&self) -> bool {
        false
    }

    /// Whether a closed connection ends the body properly.
    fn ends_with_connection(&self) -> bool;

    /// Adds the trailers after the body.
    fn trailers(&self, _out: &mut Headers) {}
}

/// A protocol between this server and upstream servers.
pub trait Protocol {
    /// The parser of its answers.
    type Reader: Reader;

    /// The parser of this request's answers.
    fn reader(&mut self) -> &mut Self::Reader;

    /// The scheme in log lines.
    fn scheme(&self) -> &'static str;

    /// The TLS settings, if TLS is used.
    fn secure(&self, _r: &mut Request) -> Option<UpstreamTls> {
        None
    }

    /// Whether the client's body is passed on unbuffered.
    fn streams(&self, r: &Request) -> bool {
        // A body that was read for another purpose is sent as a buffered one.
        !r.body.is_whole() && self.may_stream(r)
    }

    /// Whether the configuration and the protocol allow an unbuffered body.
    fn may_stream(&self, _r: &Request) -> bool {
        false
    }

    /// Whether all bytes are passed through once the connection is open, without a request or an
    /// answer (CONNECT).
    fn is_tunnel(&self) -> bool {
        false
    }

    /// Whether requests share connections (HTTP/2).
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether the client's body is sent.
    fn sends_body(&self) -> bool {
        true
    }

    /// Whether answers have their own `Server` and `Date`, so that this server does not add them.
    fn names_itself(&self) -> bool {
        true
    }

    /// Whether an answer that ends with its head has length 0.
    fn tells_emptiness(&self) -> bool {
        false
    }

    /// Whether this status means that there is no answer. The client then gets this server's own
    /// page.
    fn is_missing(&self, _status: u16) -> bool {
        false
    }

    /// Serializes the request. Called once.
    fn request(&mut self, r: &mut Request) -> Result<Outgoing, OutgoingError>;

    /// Frames a buffered body.
    fn frame_whole(&self, body: &Body, out: &mut Chain) {
        body.append_to(out);
    }

    /// Frames a piece of an unbuffered body.
    fn frame(&self, piece: Bytes, out: &mut Chain) {
        out.push(piece);
    }

    /// Ends an unbuffered body.
    fn end_frame(&self, _out: &mut Chain) {}

    /// The default cache key.
    fn cache_key(&self, r: &mut Request, out: &mut Vec<u8>);

    /// Rewrites `Location`, or `Refresh` from `prefix` on, for the client. `None` leaves it
    /// unchanged.
    fn redirect(&self, _r: &mut Request, _value: &[u8], _prefix: usize) -> Option<Vec<u8>> {
        None
    }

    /// Rewrites `Set-Cookie` for the client. `None` leaves it unchanged.
    fn cookie(&self, _r: &mut Request, _value: &[u8]) -> Option<Vec<u8>> {
        None
    }
}
