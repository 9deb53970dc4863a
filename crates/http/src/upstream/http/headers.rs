//! `..._set_header`: the headers of requests to servers.

use bytes::Bytes;
use weir_conf::Error;

use crate::upstream::names::Names;
use crate::variables::Variables;
use weir_values::Template;

/// The headers of a request to a server.
#[derive(Debug, Clone, Default)]
pub struct SetHeaders {
    /// `Host`, if it is set.
    pub host: Option<Template>,
    /// The others, in order.
    pub lines: Vec<(Bytes, Template)>,
    /// `Content-Length` is computed.
    pub length: bool,
    /// `Transfer-Encoding` is computed.
    pub chunked: bool,
    /// The client's headers that are not passed.
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

/// Conditional and range headers of the client. They are not passed if the answer may be stored,
/// since that must be complete.
const NOT_KEPT: [&str; 6] =
    ["If-Modified-Since", "If-Unmodified-Since", "If-None-Match", "If-Match", "Range", "If-Range"];

/// The conditional headers for revalidation.
const CONDITIONS: [(&str, &str); 2] = [
    ("If-Modified-Since", "$upstream_cache_last_modified"),
    ("If-None-Match", "$upstream_cache_etag"),
];

impl SetHeaders {
    /// The headers that follow from the lines of a configuration.
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

    /// Adds a default line, unless the configuration has one.
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

    /// Adapts the headers for requests whose answers may be stored.
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
