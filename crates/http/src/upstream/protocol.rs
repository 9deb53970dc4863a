//! What differs between the protocols that requests are passed on in.

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

/// A request as it goes out.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    /// All of it but the client's body; where connections are shared, its fields alone.
    pub bytes: Bytes,
    /// Its path, for log lines.
    pub uri: Bytes,
    /// A body in place of the client's, where connections are shared.
    pub body: Bytes,
}

/// Why there is no request to send; shown in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutgoingError {
    /// Its path is empty.
    NoUri,
    /// Its path is not below that of `proxy_pass`.
    Climbs,
    /// It has no key for memcached.
    NoKey,
    /// It is longer than the protocol allows.
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its length.
        length: usize,
    },
}

impl OutgoingError {
    /// The status that the client's request ends with.
    pub fn status(self) -> u16 {
        match self {
            OutgoingError::Climbs => 403,
            OutgoingError::NoUri | OutgoingError::NoKey | OutgoingError::TooLong { .. } => 500,
        }
    }

    /// The level of its line in the log.
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

/// The head of an answer. Spans point into the buffer that [`Reader::head`] was given.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// Its status; 0 if it has no head. Such an answer is never taken for a success.
    pub status: u16,
    /// Status and reason as sent; `None` for the usual ones.
    pub status_line: Option<Span>,
    /// The header lines, in order.
    pub headers: Vec<HeaderLine>,
    /// Where the body begins.
    pub end: usize,
    /// The length of the body, if it is told.
    pub length: Option<u64>,
    /// The connection may serve another request when the body is complete.
    pub keepalive: bool,
}

impl Answer {
    /// Bytes without a head: HTTP/0.9, or no HTTP at all.
    pub fn of_no_head() -> Answer {
        Answer::default()
    }

    /// The status that logs and clients see. As with nginx, `$upstream_status` of an answer without a head is 200.
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
    /// An answer before the answer: its status and header lines, and where what follows begins.
    Interim(u16, Vec<HeaderLine>, usize),
    /// The head.
    Head(Answer),
}

/// What [`Reader::body`] found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// The body is complete.
    pub done: bool,
    /// More came than belongs to the answer: the connection is of no more use.
    pub extra: Option<Extra>,
}

/// What came behind the end of a body: how the log is told, and how loud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extra {
    /// The words.
    pub text: &'static str,
    /// The level.
    pub level: Level,
}

impl Extra {
    /// What nginx warns of.
    pub const fn warned(text: &'static str) -> Extra {
        Extra { text, level: Level::Warn }
    }
}

/// A log line that protocols share.
pub const TOO_MUCH: Extra =
    Extra::warned("upstream sent more data than specified in \"Content-Length\" header");

/// Why an answer with a head as HTTP or a script writes it is refused; shown in nginx's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerError {
    /// It would be refused as an answer to any request.
    Reply(BadReply),
    /// A script's status that is none, as it was sent.
    Status(String),
    /// 103 in a version that has no such answers.
    EarlyHints,
    /// More of the body came than `Content-Length` says.
    Larger,
}

impl AnswerError {
    /// `error` is what the parser says of the head in `buf`.
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

/// How the answers of a server are understood, one after another.
pub trait Reader {
    /// Why an answer is refused; shown in the log.
    type Error: fmt::Display;

    /// Another server is about to be asked: forgets what the last one said.
    fn restart(&mut self);

    /// A protocol with records takes its framing out of what was just received, from `from` on. The
    /// next call of [`Reader::head`] or [`Reader::body`] reports what is wrong with it.
    fn unframe(&mut self, _buf: &mut Vec<u8>, _from: usize) {}

    /// So many bytes of framing, of those that came with the head, stood behind its end.
    fn framing_behind(&self, _end: usize) -> usize {
        0
    }

    /// What the server has said for the log beside its answer, once.
    fn said(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Reads the head of an answer, whether it has just come or was kept.
    fn head(&mut self, r: &mut Request, buf: &mut Vec<u8>) -> Result<Found, Self::Error>;

    /// The head was understood: what of the answer is its body? False if there is none.
    fn has_body(&mut self, r: &Request, answer: &Answer) -> bool;

    /// The lines of a head that failed, as far as they were understood.
    fn lines(&mut self) -> Vec<HeaderLine> {
        Vec::new()
    }

    /// Takes the framing of the body out of `buf`, all of which was received behind the head, and nothing if only the head
    /// was. Where it fails, what stays in `buf` is
    /// what of the body came before.
    fn body(&mut self, buf: &mut Vec<u8>) -> Result<Taken, Self::Error>;

    /// The body comes in pieces that the server makes: chunks, records, or frames of HTTP/2. Such a piece does not wait in this
    /// server until more has come.
    fn comes_in_pieces(&self) -> bool {
        false
    }

    /// The server closed the connection: was that the end of the body?
    fn ends_with_connection(&self) -> bool;

    /// Trailers behind the body.
    fn trailers(&self, _out: &mut Headers) {}
}

/// A protocol in which a request is passed to a server, and its answer understood.
pub trait Protocol {
    /// How its answers are understood.
    type Reader: Reader;

    /// The reader of this request's answers.
    fn reader(&mut self) -> &mut Self::Reader;

    /// What log lines write before the server's name.
    fn scheme(&self) -> &'static str;

    /// How to open TLS to the server, where it is spoken to in that.
    fn secure(&self, _r: &mut Request) -> Option<UpstreamTls> {
        None
    }

    /// The client's body goes out as it comes in, and is not read beforehand.
    fn streams(&self, r: &Request) -> bool {
        // It may have been read for another purpose: then it goes as one that was read.
        !r.body.is_whole() && self.may_stream(r)
    }

    /// The configuration would have it so, and the protocol can.
    fn may_stream(&self, _r: &Request) -> bool {
        false
    }

    /// There is no request and no answer: once the connection is there, all bytes go through.
    fn is_tunnel(&self) -> bool {
        false
    }

    /// Many requests go over one connection at once.
    fn is_shared(&self) -> bool {
        false
    }

    /// The client's body goes out behind the request.
    fn sends_body(&self) -> bool {
        true
    }

    /// Answers say themselves whether they have `Server` and `Date`: this server adds none.
    fn names_itself(&self) -> bool {
        true
    }

    /// An answer that ends with its head has a length, 0.
    fn tells_emptiness(&self) -> bool {
        false
    }

    /// An answer of this status says only that there is none: the client gets this server's own page.
    fn is_missing(&self, _status: u16) -> bool {
        false
    }

    /// Writes the request, once.
    fn request(&mut self, r: &mut Request) -> Result<Outgoing, OutgoingError>;

    /// Frames a body that was read beforehand.
    fn frame_whole(&self, body: &Body, out: &mut Chain) {
        body.append_to(out);
    }

    /// Frames a piece of a body that goes out as it comes in.
    fn frame(&self, piece: Bytes, out: &mut Chain) {
        out.push(piece);
    }

    /// Ends such a body.
    fn end_frame(&self, _out: &mut Chain) {}

    /// The key of an answer in a cache, where the configuration has none.
    fn cache_key(&self, r: &mut Request, out: &mut Vec<u8>);

    /// `Location`, `Refresh` from `prefix` on, as the client is to see it; `None` leaves it.
    fn redirect(&self, _r: &mut Request, _value: &[u8], _prefix: usize) -> Option<Vec<u8>> {
        None
    }

    /// `Set-Cookie` as the client is to see it; `None` leaves it.
    fn cookie(&self, _r: &mut Request, _value: &[u8]) -> Option<Vec<u8>> {
        None
    }
}
