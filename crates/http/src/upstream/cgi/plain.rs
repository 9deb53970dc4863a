//! Protocols whose requests begin with a packet of parameters and have no other framing (SCGI,
//! uwsgi). The body follows as it is, and the answer is what a script writes.

use bytes::Bytes;
use weir_proto::http1::HeaderLine;

use super::{Announced, ScriptHead};
use crate::request::Request;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::{
    Answer, AnswerError, Found, Outgoing, OutgoingError, Protocol, Reader, Taken,
};
use crate::upstream::tls::UpstreamTls;

/// Such a protocol.
pub trait Dialect {
    /// The scheme in log lines.
    fn scheme(&self) -> &'static str;

    /// The TLS settings, if TLS is used.
    fn secure(&self, _r: &mut Request) -> Option<UpstreamTls> {
        None
    }

    /// The packet of parameters.
    fn packet(&self, r: &mut Request) -> Result<Vec<u8>, OutgoingError>;
}

/// A request in such a protocol.
pub struct Plain<D> {
    dialect: D,
    passing: &'static UpstreamConf,
    head: ScriptHead,
    announced: Announced,
}

impl<D> Plain<D> {
    /// A new request.
    pub fn new(passing: &'static UpstreamConf, dialect: D) -> Plain<D> {
        Plain { dialect, passing, head: ScriptHead::any(), announced: Announced::default() }
    }
}

impl<D: Dialect> Protocol for Plain<D> {
    type Reader = Self;

    fn reader(&mut self) -> &mut Self {
        self
    }

    fn scheme(&self) -> &'static str {
        self.dialect.scheme()
    }

    fn secure(&self, r: &mut Request) -> Option<UpstreamTls> {
        self.dialect.secure(r)
    }

    /// A chunked body must be read first, since its length is unknown.
    fn may_stream(&self, r: &Request) -> bool {
        !self.passing.request_buffering && self.sends_body() && !r.body.chunked
    }

    fn sends_body(&self) -> bool {
        self.passing.pass_request_body
    }

    fn names_itself(&self) -> bool {
        false
    }

    fn request(&mut self, r: &mut Request) -> Result<Outgoing, OutgoingError> {
        let bytes = Bytes::from(self.dialect.packet(r)?);
        Ok(Outgoing { bytes, ..Outgoing::default() })
    }

    /// As in nginx, all answers have the same key without `..._cache_key`.
    fn cache_key(&self, _: &mut Request, _: &mut Vec<u8>) {}
}

impl<D: Dialect> Reader for Plain<D> {
    type Error = AnswerError;

    fn restart(&mut self) {
        (self.head, self.announced) = (ScriptHead::any(), Announced::default());
    }

    fn head(&mut self, r: &mut Request, buf: &mut Vec<u8>) -> Result<Found, AnswerError> {
        let Some(answer) = self.head.read(buf)? else { return Ok(Found::More) };
        self.announced = Announced::by(r, &answer);
        Ok(Found::Head(answer))
    }

    fn lines(&mut self) -> Vec<HeaderLine> {
        self.head.take_lines()
    }

    fn has_body(&mut self, r: &Request, _: &Answer) -> bool {
        !self.announced.is_whole() && !self.announced.is_left(r, self.passing)
    }

    fn body(&mut self, buf: &mut Vec<u8>) -> Result<Taken, AnswerError> {
        let extra = self.announced.take(buf);
        Ok(Taken { done: self.announced.is_whole(), extra })
    }

    fn ends_with_connection(&self) -> bool {
        !self.announced.is_short()
    }
}
