//! Headers of requests to servers, as `..._set_header` has them.

use bytes::Bytes;
use weir_conf::Error;

use crate::upstream::names::Names;
use crate::variables::Variables;
use weir_values::Template;

/// The headers of a request to a server.
#[derive(Debug, Clone, Default)]
pub struct SetHeaders {
    /// `Host`, where it is set.
    pub host: Option<Template>,
    /// The others, in order.
    pub lines: Vec<(Bytes, Template)>,
    /// `Content-Length` is computed.
    pub length: bool,
    /// `Transfer-Encoding` is computed.
    pub chunked: bool,
    /// The client's own that are not passed.
    pub dropped: Names,
}

/// Headers of the client that are never passed as they are.
const NOT_PASSED: [&str; 9] = [
    "Host",
    "Connection",
    "Proxy-Connection",
    "Content-Length",
    "Transfer-Encoding",
    "TE",
    "Keep-Alive",
    "Expect",
    "Upgrade",
];

/// Headers of the client that ask for a part of an answer, or for none: an answer that is kept must be whole.
const NOT_KEPT: [&str; 6] =
    ["If-Modified-Since", "If-Unmodified-Since", "If-None-Match", "If-Match", "Range", "If-Range"];

/// What the server is told of an answer that may still stand.
const CONDITIONS: [(&str, &str); 2] = [
    ("If-Modified-Since", "$upstream_cache_last_modified"),
    ("If-None-Match", "$upstream_cache_etag"),
];

impl SetHeaders {
    /// What the lines of a configuration amount to.
    pub fn new(set: &[(Bytes, Template)]) -> SetHeaders {
        let mut this = SetHeaders { length: true, chunked: true, ..SetHeaders::default() };
        for name in NOT_PASSED {
            this.dropped.insert(name.as_bytes());
        }
        for (name, value) in set {
            this.dropped.insert(name);
            this.length &= !name.eq_ignore_ascii_case(b"content-length");
            this.chunked &= !name.eq_ignore_ascii_case(b"transfer-encoding");
            if name.eq_ignore_ascii_case(b"host") {
                this.host = Some(value.clone());
            } else if value.constant() != Some(b"") {
                this.lines.push((name.clone(), value.clone()));
            }
        }
        this
    }

    /// A line that the configuration may replace.
    pub fn or(
        &mut self,
        variables: &mut Variables,
        set: &[(Bytes, Template)],
        name: &'static str,
        value: &str,
    ) -> Result<(), Error> {
        if !set.iter().any(|(own, _)| own.eq_ignore_ascii_case(name.as_bytes())) {
            let value = Template::new(variables, value.as_bytes()).map_err(Error::emerg)?;
            self.lines.push((Bytes::from_static(name.as_bytes()), value));
        }
        Ok(())
    }

    /// For an answer that is to be kept.
    pub fn cached(
        &mut self,
        variables: &mut Variables,
        set: &[(Bytes, Template)],
    ) -> Result<(), Error> {
        for name in NOT_KEPT {
            self.dropped.insert(name.as_bytes());
        }
        CONDITIONS.iter().try_for_each(|(name, value)| self.or(variables, set, name, value))
    }
}
