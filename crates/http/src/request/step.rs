//! What a handler is, and what it answers.

use bytes::Bytes;
use weir_engine::Boxed;
use weir_ssl::server::AcceptError;

use crate::request::Request;
use crate::site::location::LocationId;

/// What a handler answers.
#[derive(Debug)]
pub enum Step {
    /// Not mine: the next handler (nginx: NGX_DECLINED).
    Next,
    /// This phase is done; in the access phase: allowed (nginx: NGX_OK).
    Done,
    /// End the request with this status; error pages and weir's own pages apply.
    Status(u16),
    /// The head is filled in; send it with this body.
    Respond(Bytes),
    /// The answer was sent.
    Sent,
    /// The path was changed from within: go through the phases again from this place.
    Redirect(From),
    /// End the connection without another byte (444, or the client has gone).
    Abort,
}

/// Where an internal redirect enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// A new path: from the server's rewrite phase.
    Server,
    /// A named location: from the location's rewrite phase.
    Location(LocationId),
}

/// A handler or filter, and its module: a module that stalls its loop is named.
#[derive(Debug, Clone, Copy)]
pub struct Named<T> {
    /// nginx's name of the module, without `ngx_http_` and `_module`; empty for what cannot take long.
    pub module: &'static str,
    /// What runs.
    pub run: T,
}

/// A handler of the log phase: nothing can be changed any more.
pub type LogHandler = fn(&mut Request);

/// Decides something in a handshake, with a request that stands for the connection, or ends the handshake.
pub type HandshakeHandler = for<'a> fn(&'a mut Request) -> Boxed<'a, Result<(), AcceptError>>;

/// A header filter: sees the response before its head is written, and may put a body filter in its way.
pub type HeaderFilter = fn(&mut Request) -> Result<(), Step>;

/// A trailer filter: adds trailers when the last of the body is known.
pub type TrailerFilter = fn(&mut Request);

/// A handler's answer that may take time.
pub type Later<'a> = Boxed<'a, Step>;

/// The answer of a handler that only sometimes takes time.
pub enum Answer<'a> {
    /// At once.
    Now(Step),
    /// After waiting.
    Later(Later<'a>),
}

/// A handler of a phase.
#[derive(Clone, Copy)]
pub enum Handler {
    /// Answers at once.
    Now(fn(&mut Request) -> Step),
    /// Waits for some requests, and costs the others nothing.
    Either(for<'a> fn(&'a mut Request) -> Answer<'a>),
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Handler::Now(_) => "Now",
            Handler::Either(_) => "Either",
        })
    }
}
