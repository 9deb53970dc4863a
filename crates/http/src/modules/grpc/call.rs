//! A call. Its body is sent to the server as it is received, and the answer to the client while the
//! body is still being sent.

use crate::escape::within_word;
use crate::request::Request;
use crate::upstream::http::{Answers, fields, secure, uri};
use crate::upstream::tls::UpstreamTls;
use crate::upstream::{Outgoing, OutgoingError, Protocol};

use super::Conf;

/// A request to a gRPC server.
pub struct Call {
    conf: &'static Conf,
    /// `grpc://` or `grpcs://`
    scheme: &'static str,
    /// The client has a body that was not read yet.
    streams: bool,
    /// The parser of answers.
    answers: Answers,
}

impl Call {
    /// A new call.
    pub fn new(r: &Request, conf: &'static Conf, scheme: &'static str) -> Call {
        Call { conf, scheme, streams: !r.body.is_read(), answers: Answers::new(true, None) }
    }
}

impl Protocol for Call {
    type Reader = Answers;

    fn reader(&mut self) -> &mut Answers {
        &mut self.answers
    }

    fn scheme(&self) -> &'static str {
        self.scheme
    }

    fn secure(&self, r: &mut Request) -> Option<UpstreamTls> {
        let tls = &self.conf.passing.tls;
        if self.scheme == "grpcs://" { secure(r, tls) } else { None }
    }

    fn may_stream(&self, _: &Request) -> bool {
        self.streams
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn names_itself(&self) -> bool {
        false
    }

    fn tells_emptiness(&self) -> bool {
        true
    }

    fn request(&mut self, r: &mut Request) -> Result<Outgoing, OutgoingError> {
        let (mut method, mut path) = (r.method_name().to_vec(), Vec::new());
        within_word(&mut method, 0);
        self.answers.set_head_only(method == b"HEAD");
        uri::write(&uri::Parts::own(r), &mut path);
        within_word(&mut path, 0);
        let line = fields::RequestLine { method: &method, path: &path, length: r.body.length };
        let bytes = fields::write(r, &line, &self.conf.headers, true);
        Ok(Outgoing { bytes, uri: path.into(), body: Default::default() })
    }

    /// Answers of this module are not cached.
    fn cache_key(&self, _: &mut Request, _: &mut Vec<u8>) {}
}
