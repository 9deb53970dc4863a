//! HTTP as an upstream protocol.

use bytes::Bytes;
use weir_engine::Chain;
use weir_proto::http1::{Version, chunk_end, chunk_head, last_chunk};

use super::conf::{Conf, ProxyPass};
use super::outgoing;
use super::rewriting;
use crate::escape::within_word;
use crate::request::Request;
use crate::request::passed::Length;
use crate::upstream::http::{Answers, fields, secure};
use crate::upstream::tls::UpstreamTls;
use crate::upstream::{Outgoing, OutgoingError, Protocol};

/// A request to an HTTP server.
pub struct Http {
    conf: &'static Conf,
    pass: &'static ProxyPass,
    /// `http://` or `https://`
    scheme: &'static str,
    /// The parser of answers.
    answers: Answers,
    /// The request's body is sent chunked.
    chunked: bool,
}

impl Http {
    /// A new request.
    pub fn new(conf: &'static Conf, pass: &'static ProxyPass, scheme: &'static str) -> Http {
        let passing = &conf.passing;
        let trailers = passing.pass_trailers.then(|| passing.head_room());
        let answers = Answers::new(conf.version == Version::Http20, trailers);
        Http { conf, pass, scheme, answers, chunked: false }
    }

    /// Serializes the request for HTTP/2.
    fn fields(&mut self, r: &mut Request, length: Length) -> Result<Outgoing, OutgoingError> {
        let conf = self.conf;
        let body = conf.body.as_ref().map(|t| Bytes::from(t.eval(r).into_owned()));
        let length = body.as_ref().map_or(length, |body| Length::Known(body.len() as u64));
        r.contexts.upstream.length = length;
        let (mut method, mut path) = (Vec::new(), Vec::new());
        match &conf.method {
            _ if r.contexts.upstream.ask_with_get => method.extend_from_slice(b"GET"),
            Some(template) => template.eval_into(r, &mut method),
            None => method.extend_from_slice(r.method_name()),
        }
        within_word(&mut method, 0);
        self.answers.set_head_only(method.eq_ignore_ascii_case(b"HEAD"));
        outgoing::write_target(r, self.pass, &mut path)?;
        let headers = if r.is_cacheable() { &conf.cached_headers } else { &conf.headers };
        let line = fields::RequestLine { method: &method, path: &path, length: length.known() };
        let bytes = fields::write(r, &line, headers, conf.passing.pass_request_headers);
        Ok(Outgoing { bytes, uri: path.into(), body: body.unwrap_or_default() })
    }
}

impl Protocol for Http {
    type Reader = Answers;

    fn reader(&mut self) -> &mut Answers {
        &mut self.answers
    }

    fn scheme(&self) -> &'static str {
        self.scheme
    }

    fn secure(&self, r: &mut Request) -> Option<UpstreamTls> {
        let tls = &self.conf.passing.tls;
        if self.scheme == "https://" { secure(r, tls) } else { None }
    }

    fn may_stream(&self, r: &Request) -> bool {
        let passing = &self.conf.passing;
        !passing.request_buffering
            && self.sends_body()
            && (!r.body.chunked || self.conf.version >= Version::Http11)
    }

    fn is_shared(&self) -> bool {
        self.conf.version == Version::Http20
    }

    fn names_itself(&self) -> bool {
        !self.is_shared()
    }

    fn sends_body(&self) -> bool {
        self.conf.body.is_none() && self.conf.passing.pass_request_body
    }

    fn request(&mut self, r: &mut Request) -> Result<Outgoing, OutgoingError> {
        let streamed = self.streams(r) && r.body.chunked;
        let length = match (streamed, r.body.length) {
            // Without a body, no length: the server must not wait for a body, nor take the next
            // request for it.
            _ if !self.sends_body() => Length::None,
            (true, _) => Length::Chunked,
            // The length of the body that is sent, not the one that the client announced.
            (false, Some(_)) if r.body.is_whole() => Length::Known(r.body.len()),
            (false, Some(n)) => Length::Known(n),
            (false, None) if r.body.chunked => Length::Known(r.body.len()),
            (false, None) => Length::None,
        };
        self.chunked = streamed && !self.is_shared();
        if self.is_shared() {
            return self.fields(r, length);
        }
        let outgoing = outgoing::write(r, self.conf, self.pass, length)?;
        let method = outgoing.bytes.get(..5);
        self.answers.set_head_only(method.is_some_and(|m| m.eq_ignore_ascii_case(b"HEAD ")));
        Ok(outgoing)
    }

    fn frame(&self, piece: Bytes, out: &mut Chain) {
        if !self.chunked {
            out.push(piece);
            return;
        }
        let mut head = Vec::with_capacity(16);
        chunk_head(piece.len() as u64, &mut head);
        out.push(Bytes::from(head));
        out.push(piece);
        let mut end = Vec::with_capacity(2);
        chunk_end(&mut end);
        out.push(Bytes::from(end));
    }

    fn end_frame(&self, out: &mut Chain) {
        if self.chunked {
            let mut end = Vec::with_capacity(5);
            last_chunk([], &mut end);
            out.push(Bytes::from(end));
        }
    }

    fn cache_key(&self, r: &mut Request, out: &mut Vec<u8>) {
        outgoing::write_key(r, self.pass, out);
    }

    fn redirect(&self, r: &mut Request, value: &[u8], prefix: usize) -> Option<Vec<u8>> {
        rewriting::redirect(r, self.conf, self.pass, value, prefix)
    }

    fn cookie(&self, r: &mut Request, value: &[u8]) -> Option<Vec<u8>> {
        rewriting::cookie(r, self.conf, value)
    }
}
