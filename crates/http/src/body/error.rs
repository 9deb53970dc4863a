//! Errors of reading the client's body, and their consequences for the request.

use std::{fmt, io};

use weir_log::{Cause, Level};
use weir_proto::http1::BodyError;
use weir_upstream::fault;

use crate::carrier::{LEFT, TIMED_OUT};
use crate::files::temp_file::Failed;
use crate::request::Request;
use crate::request::step::Step;

/// Why the client's body cannot be read. It has been logged.
#[derive(Debug)]
pub enum RequestBodyError {
    /// The client closed the connection inside the body.
    Closed,
    /// Reading from the connection failed.
    Broken(io::Error),
    /// The client sent nothing for `client_body_timeout`.
    TimedOut,
    /// `100 Continue` could not be sent.
    ContinueUnsent {
        /// The client did not take it in time.
        timed_out: bool,
    },
    /// The client reset its stream.
    StreamClosed {
        /// Whether this is a stream of HTTP/3, for which nginx has another status.
        http3: bool,
    },
    /// The client ended its stream before the length that it declared.
    StreamShort {
        /// The received bytes.
        received: u64,
        /// The declared length.
        length: u64,
        /// Whether this is a stream of HTTP/3, for which nginx has another message.
        http3: bool,
    },
    /// More bytes were received than the client declared.
    StreamLong,
    /// The chunks are malformed.
    Chunks(BodyError),
    /// A chunk exceeds `client_max_body_size`.
    ChunkTooLarge {
        /// The length of the body before the chunk.
        before: u64,
        /// The size of the chunk.
        size: u64,
    },
    /// The body of a stream exceeds `client_max_body_size`. This many bytes were received.
    StreamTooLarge(u64),
    /// The temporary file cannot be created.
    Open(Box<Failed>),
    /// The temporary file cannot be written.
    Write(Box<Failed>),
}

impl RequestBodyError {
    /// The status that the request ends with.
    pub fn status(&self) -> u16 {
        match self {
            RequestBodyError::Closed
            | RequestBodyError::Broken(_)
            | RequestBodyError::StreamClosed { http3: true }
            | RequestBodyError::StreamShort { .. }
            | RequestBodyError::StreamLong
            | RequestBodyError::Chunks(_) => 400,
            RequestBodyError::StreamClosed { http3: false } => 499,
            RequestBodyError::TimedOut | RequestBodyError::ContinueUnsent { .. } => 408,
            RequestBodyError::ChunkTooLarge { .. } | RequestBodyError::StreamTooLarge(_) => 413,
            RequestBodyError::Open(_) | RequestBodyError::Write(_) => 500,
        }
    }

    /// The level of the log line. `None` if there is no line.
    fn level(&self) -> Option<Level> {
        match self {
            RequestBodyError::ContinueUnsent { timed_out: false } => None,
            RequestBodyError::Closed
            | RequestBodyError::Broken(_)
            | RequestBodyError::TimedOut
            | RequestBodyError::ContinueUnsent { timed_out: true }
            | RequestBodyError::StreamClosed { .. }
            | RequestBodyError::StreamShort { .. }
            | RequestBodyError::StreamLong => Some(Level::Info),
            RequestBodyError::Chunks(_)
            | RequestBodyError::ChunkTooLarge { .. }
            | RequestBodyError::StreamTooLarge(_) => Some(Level::Error),
            RequestBodyError::Open(_) | RequestBodyError::Write(_) => Some(Level::Crit),
        }
    }

    /// Whether the client or its connection is gone, so that it cannot receive an error page.
    pub fn is_left(&self) -> bool {
        matches!(
            self,
            RequestBodyError::Closed
                | RequestBodyError::Broken(_)
                | RequestBodyError::StreamClosed { .. }
                | RequestBodyError::ContinueUnsent { .. }
        )
    }

    /// Whether the bytes so far are valid and the rest will not come.
    pub(super) fn is_break(&self) -> bool {
        self.is_left() || self.is_late()
    }

    /// Whether a timeout of the client has expired.
    fn is_late(&self) -> bool {
        matches!(
            self,
            RequestBodyError::TimedOut | RequestBodyError::ContinueUnsent { timed_out: true }
        )
    }
}

impl fmt::Display for RequestBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = |f: &mut fmt::Formatter<'_>, call: &str, failed: &Failed| {
            write!(f, "{call} \"{}\" failed {}", failed.path.display(), Cause(&failed.error))
        };
        match self {
            RequestBodyError::Closed => f.write_str(LEFT),
            RequestBodyError::Broken(error) => f.write_str(&fault::failed("recv()", error)),
            RequestBodyError::ContinueUnsent { timed_out: false } => {
                f.write_str("100 Continue could not be sent")
            }
            RequestBodyError::TimedOut | RequestBodyError::ContinueUnsent { timed_out: true } => {
                f.write_str(TIMED_OUT)
            }
            RequestBodyError::StreamClosed { .. } => {
                f.write_str("client prematurely closed stream")
            }
            RequestBodyError::StreamShort { received, length, http3: true } => write!(
                f,
                "client sent less body data than expected: {received} out of {length} bytes \
                 of request body received"
            ),
            RequestBodyError::StreamShort { received, length, http3: false } => write!(
                f,
                "client prematurely closed stream: only {received} out of {length} bytes \
                 of request body received"
            ),
            RequestBodyError::StreamLong => {
                f.write_str("client intended to send body data larger than declared")
            }
            RequestBodyError::Chunks(BodyError::FramingTooBig) => {
                f.write_str("client sent too big chunk extensions or trailers")
            }
            RequestBodyError::Chunks(_) => f.write_str("client sent invalid chunked body"),
            RequestBodyError::ChunkTooLarge { before, size } => {
                write!(f, "client intended to send too large chunked body: {before}+{size} bytes")
            }
            RequestBodyError::StreamTooLarge(received) => {
                write!(f, "client intended to send too large chunked body: {received} bytes")
            }
            RequestBodyError::Open(error) => failed(f, "open()", error),
            RequestBodyError::Write(error) => failed(f, "pwrite()", error),
        }
    }
}

impl std::error::Error for RequestBodyError {}

impl From<RequestBodyError> for Step {
    fn from(error: RequestBodyError) -> Step {
        Step::Status(error.status())
    }
}

impl Request {
    /// Logs why the body cannot be read. The connection is closed after the request, unless the
    /// body was too large or the failure is weir's own.
    pub(super) fn body_failed(&mut self, error: RequestBodyError) -> RequestBodyError {
        if let Some(level) = error.level() {
            self.log(level, format_args!("{error}{}", self.uploading()));
        }
        if error.is_late() {
            self.timed_out();
        }
        self.body.left |= error.is_left();
        match error.status() {
            // The part that was read is not passed to an error page, and the rest is discarded.
            413 | 500 => self.body.refuse(),
            _ => (self.body.done, self.body.broken, self.keepalive) = (true, true, false),
        }
        error
    }

    /// The activity for the log line. An unbuffered body is sent to the server while it is read.
    fn uploading(&self) -> &'static str {
        match self.contexts.upstream.attempts.is_empty() || self.response.sent {
            true => "",
            false => " while sending request to upstream",
        }
    }
}
