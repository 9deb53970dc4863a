//! A call: a request whose body goes out as it comes in, and whose answer comes back as it goes out.

use crate::answer::headers::Headers;
use crate::escape::within_word;
use crate::request::Request;
use crate::upstream::http::{Answers, fields, uri};
use crate::upstream::tls::Secure;
use crate::upstream::{Answer, Found, Outgoing, Protocol, Taken};

use super::Conf;

/// A request on its way to a gRPC server.
pub struct Call {
    conf: &'static Conf,
    /// `grpc://` or `grpcs://`
    scheme: &'static str,
    /// The client has a body that nobody has read.
    streams: bool,
    /// What comes back.
    answers: Answers,
}

impl Call {
    /// Nothing was asked yet.
    pub fn new(r: &Request, conf: &'static Conf, scheme: &'static str) -> Call {
        Call { conf, scheme, streams: !r.body.is_read(), answers: Answers::new(true, true) }
    }
}

impl Protocol for Call {
    fn scheme(&self) -> &'static str {
        self.scheme
    }

    fn secure(&self, r: &mut Request) -> Option<Secure> {
        if self.scheme != "grpcs://" {
            return None;
        }
        let host = r.contexts.upstream.vars.as_ref().map(|vars| vars.host.clone());
        self.conf.passing.tls.secure(r, &host.unwrap_or_default())
    }

    fn streams(&self, _: &Request) -> bool {
        self.streams
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn request(&mut self, r: &mut Request) -> Result<Outgoing, u16> {
        let (mut method, mut path) = (r.method_name().to_vec(), Vec::new());
        within_word(&mut method, 0);
        self.answers.set_head_only(method == b"HEAD");
        uri::write(&uri::Parts::own(r), &mut path);
        within_word(&mut path, 0);
        let line = fields::Line { method: &method, path: &path, length: r.body.length };
        let bytes = fields::write(r, &line, &self.conf.headers, true);
        Ok(Outgoing { bytes, uri: path.into(), body: Default::default() })
    }

    /// No answer of this module is kept.
    fn cache_key(&self, _: &mut Request, _: &mut Vec<u8>) {}

    fn restart(&mut self) {
        self.answers.restart();
    }

    fn head(&mut self, r: &mut Request, buf: &mut Vec<u8>) -> Result<Found, String> {
        self.answers.head(r, buf)
    }

    fn has_body(&mut self, _: &Request, _: &Answer) -> bool {
        self.answers.has_body()
    }

    fn body(&mut self, buf: &mut Vec<u8>) -> Result<Taken, String> {
        self.answers.body(buf)
    }

    fn ends_with_connection(&self) -> bool {
        self.answers.end_with_connection()
    }

    fn trailers(&self, out: &mut Headers) {
        self.answers.trailers(out);
    }
}
