//! How an attempt ends without an answer, and what the log says of it.

use std::fmt;
use std::io;

use weir_log::Level;
use weir_upstream::Failure;
use weir_upstream::fault::{self, Blame, FailedOperation, is_late};

use crate::body::RequestBodyError;
use crate::request::Request;

/// The culprit when an attempt came to nothing.
#[derive(Debug)]
pub enum Fault {
    /// The server's: another one may be tried.
    Peer(Failure),
    /// The client's body cannot be read.
    Body(RequestBodyError),
    /// The client went away.
    ClientLeft,
    /// weir: no server can be asked.
    Us,
    /// The configuration leaves no server to ask.
    Nobody,
    /// What chooses the server has ended the request with this status.
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

    /// What it is to a cache that has something older.
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

/// What was being done, for log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// Before there is a connection.
    Connecting,
    /// While TLS is set up.
    Securing,
    /// While the request goes out.
    Sending,
    /// Until the head is complete.
    ReadingHead,
    /// Behind the head.
    ReadingBody,
    /// After both sides agreed to another protocol.
    Upgraded,
}

impl Doing {
    /// nginx's words for it.
    pub fn text(self) -> &'static str {
        match self {
            Doing::Connecting => "while connecting to upstream",
            Doing::Securing => "while SSL handshaking to upstream",
            Doing::Sending => "while sending request to upstream",
            Doing::ReadingHead => "while reading response header from upstream",
            Doing::ReadingBody => "while reading upstream",
            Doing::Upgraded => "while proxying upgraded connection",
        }
    }
}

/// Logs what the server did.
pub fn complain(r: &Request, what: impl fmt::Display, doing: Doing) {
    r.log(Level::Error, format_args!("{what} {}", doing.text()));
}

/// What a server did wrong, found where there was no request to log it for.
#[derive(Debug, Clone)]
pub struct Complaint {
    /// The words for the log.
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

/// Logs an error of an operation, or that it took too long, and returns the culprit.
pub fn operation(r: &Request, call: &str, error: &io::Error, doing: Doing) -> Fault {
    if let Some(said) = error.get_ref().and_then(|inner| inner.downcast_ref::<Complaint>()) {
        complain(r, &said.text, doing);
        return Fault::Peer(said.failure);
    }
    let mut failed = fault::operation(call, error, doing.text());
    if is_late(error) && doing == Doing::Upgraded {
        // Two sides that have nothing to say to each other are not at fault.
        failed.level = Level::Info;
    }
    log(r, failed)
}

/// Logs a failed operation, and says whose fault it was.
pub fn log(r: &Request, failed: FailedOperation) -> Fault {
    r.log(failed.level, format_args!("{}", failed.text));
    if let Some(attempt) = r.contexts.upstream.attempts.last() {
        attempt.errno.set(failed.errno);
    }
    failed.blame.into()
}

/// The server was asked once more for an answer that a client has begun to get.
pub const OTHER: &str =
    "upstream sent another answer than the one that the client has begun to get";
