//! Faults of attempts: the culprit, and the log line.

use std::fmt;
use std::io;

use weir_log::Level;
use weir_upstream::Failure;
use weir_upstream::fault::{self, Blame, FailedOperation, is_late};

use crate::body::RequestBodyError;
use crate::request::Request;

/// Why an attempt failed, with the culprit.
#[derive(Debug)]
pub enum Fault {
    /// The server. Another one may be tried.
    Peer(Failure),
    /// The client's body cannot be read.
    Body(RequestBodyError),
    /// The client closed its connection.
    ClientLeft,
    /// This process lacks something, so no server can be asked.
    Us,
    /// No server is available.
    Nobody,
    /// The script that chooses servers has ended the request with this status.
    Ended(u16),
}

impl Fault {
    /// The status that the request ends with, if no other server is asked.
    pub fn status(&self) -> u16 {
        match self {
            Fault::Peer(failure) => failure.response(),
            Fault::Body(error) => error.status(),
            Fault::ClientLeft => 499,
            Fault::Us => 500,
            Fault::Nobody => 502,
            Fault::Ended(status) => *status,
        }
    }

    /// The failure by which the cache decides whether to send a stale answer.
    pub fn failure(&self) -> Option<Failure> {
        match self {
            Fault::Peer(failure) => Some(*failure),
            Fault::Body(_) | Fault::ClientLeft | Fault::Us | Fault::Ended(_) => None,
            Fault::Nobody => Some(Failure::Error),
        }
    }
}

impl From<RequestBodyError> for Fault {
    fn from(error: RequestBodyError) -> Fault {
        Fault::Body(error)
    }
}

impl From<Blame> for Fault {
    fn from(blame: Blame) -> Fault {
        match blame {
            Blame::Us => Fault::Us,
            Blame::Peer(failure) => Fault::Peer(failure),
        }
    }
}

/// The operation that failed, for log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Opening the connection.
    Connecting,
    /// The TLS handshake.
    Securing,
    /// A script chooses the client certificate (`proxy_ssl_certificate_by_lua`).
    Certifying,
    /// A script verifies the server's certificate (`proxy_ssl_verify_by_lua`).
    Verifying,
    /// Sending the request.
    Sending,
    /// Reading the head.
    ReadingHead,
    /// Reading the body.
    ReadingBody,
    /// Passing bytes after a switch of protocols.
    Upgraded,
}

impl Doing {
    /// nginx's words for the operation.
    pub fn text(self) -> &'static str {
        match self {
            Doing::Connecting => "while connecting to upstream",
            Doing::Securing => "while SSL handshaking to upstream",
            Doing::Certifying => "while loading proxy ssl certificate by lua",
            Doing::Verifying => "while loading proxy ssl verify by lua",
            Doing::Sending => "while sending request to upstream",
            Doing::ReadingHead => "while reading response header from upstream",
            Doing::ReadingBody => "while reading upstream",
            Doing::Upgraded => "while proxying upgraded connection",
        }
    }
}

/// Logs an error of the server.
pub fn complain(r: &Request, what: impl fmt::Display, doing: Doing) {
    r.log(Level::Error, format_args!("{what} {}", doing.text()));
}

/// An error of a server that was found apart from a request. It is logged for each request that it
/// fails.
#[derive(Debug, Clone)]
pub struct Complaint {
    /// The text for the log.
    pub text: String,
    /// How the attempt failed.
    pub failure: Failure,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Complaint {}

/// Logs the failure or timeout of an operation, and returns the culprit.
pub fn operation(r: &Request, call: &str, error: &io::Error, doing: Doing) -> Fault {
    if let Some(said) = error.get_ref().and_then(|inner| inner.downcast_ref::<Complaint>()) {
        complain(r, &said.text, doing);
        return Fault::Peer(said.failure);
    }
    let mut failed = fault::operation(call, error, doing.text());
    if is_late(error) && doing == Doing::Upgraded {
        // Two silent ends of a tunnel are not at fault.
        failed.level = Level::Info;
    }
    log(r, failed)
}

/// Logs a failed operation, and returns the culprit.
pub fn log(r: &Request, failed: FailedOperation) -> Fault {
    r.log(failed.level, format_args!("{}", failed.text));
    if let Some(attempt) = r.contexts.upstream.attempts.last() {
        attempt.errno.set(failed.errno);
    }
    failed.blame.into()
}

/// The log text if a server that was asked again for the rest of an answer sends another answer.
pub const OTHER: &str =
    "upstream sent another answer than the one that the client has begun to get";
