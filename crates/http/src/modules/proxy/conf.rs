//! Settings of `proxy`.

use std::sync::Arc;

use bytes::Bytes;
use weir_conf::Error;
use weir_proto::http1::Version;

use super::rewriting::{CookieFlags, Rewrite};
use crate::config::location::Kind;
use crate::config::scope::Scope;
use crate::files::temp_file::TempPath;
use crate::modules::{Named, Settings};
use crate::phases::Handler;
use crate::upstream::names::Names;
use crate::upstream::{GroupId, Passing};
use crate::variables::Variables;
use weir_values::Template;

/// Settings of a location.
#[derive(Debug, Clone)]
pub struct Conf {
    /// `proxy_pass`
    pub pass: Option<Pass>,
    /// The same of the block around, which `if` and `limit_except` take over.
    pub outer: Option<Pass>,
    /// What all protocols have.
    pub passing: Passing,
    /// `proxy_http_version`
    pub version: Version,
    /// `proxy_method`
    pub method: Option<Template>,
    /// `proxy_set_body`
    pub body: Option<Template>,
    /// `proxy_set_header`, as written.
    pub set_headers: Vec<(Bytes, Template)>,
    /// What that amounts to.
    pub headers: Arc<SetHeaders>,
    /// The same where the answer is to be kept for others.
    pub cached_headers: Arc<SetHeaders>,
    /// `proxy_redirect`; `None`: `default`.
    pub redirects: Option<Vec<Rewrite>>,
    /// `proxy_cookie_domain`
    pub cookie_domains: Vec<Rewrite>,
    /// `proxy_cookie_path`
    pub cookie_paths: Vec<Rewrite>,
    /// `proxy_cookie_flags`
    pub cookie_flags: Vec<CookieFlags>,
}

/// Where `proxy_pass` leads.
#[derive(Debug, Clone)]
pub struct Pass {
    /// A group that is known from the start, or a value that tells.
    pub to: To,
    /// The location's name, which a URI takes the place of; empty where there is none.
    pub location: Vec<u8>,
    /// The URL as written.
    pub url: Vec<u8>,
}

impl Pass {
    /// Whether TLS may be spoken to the server.
    fn may_be_secure(&self) -> bool {
        match &self.to {
            To::Group(_, vars) => vars.scheme == "https://",
            To::Computed(_) => true,
        }
    }
}

/// See [`Pass`].
#[derive(Debug, Clone)]
pub enum To {
    /// A group.
    Group(GroupId, Vars),
    /// A URL with variables in it.
    Computed(Template),
}

/// What a URL says of the request.
#[derive(Debug, Clone, Default)]
pub struct Vars {
    /// `http://` or `https://`
    pub scheme: &'static str,
    /// `Host` for the server: `$proxy_host`.
    pub host: Vec<u8>,
    /// `$proxy_port`
    pub port: Vec<u8>,
    /// The URI, if there is one.
    pub uri: Vec<u8>,
}

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

/// Headers of answers that clients do not see unless `proxy_pass_header` says so.
const HIDDEN: [&str; 8] = [
    "Date",
    "Server",
    "X-Pad",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
];

impl Default for Conf {
    fn default() -> Self {
        Conf {
            pass: None,
            outer: None,
            passing: Passing::default(),
            version: Version::Http11,
            method: None,
            body: None,
            set_headers: Vec::new(),
            headers: Arc::default(),
            cached_headers: Arc::default(),
            redirects: None,
            cookie_domains: Vec::new(),
            cookie_paths: Vec::new(),
            cookie_flags: Vec::new(),
        }
    }
}

impl Settings for Conf {
    fn enter(conf: &mut Arc<Self>) {
        if conf.pass.is_some() || conf.outer.is_some() {
            let this = Arc::make_mut(conf);
            this.outer = this.pass.take();
        }
    }

    fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
        let temporary = TempPath::default_in(s.setup, "proxy_temp");
        let inherits = matches!(s.place.kind, Kind::If | Kind::LimitExcept);
        let conf = Arc::make_mut(&mut s.location.proxy);
        if inherits && conf.pass.is_none() && conf.outer.is_some() {
            conf.pass = conf.outer.clone();
            let core = Scope::change(&mut s.location.core);
            core.handler
                .get_or_insert(Named { module: "proxy", run: Handler::Later(super::handler) });
        }
        conf.passing.finish("proxy", &HIDDEN)?;
        if conf.passing.temp_path.directory.as_os_str().is_empty() {
            conf.passing.temp_path = temporary;
        }
        conf.headers = Arc::new(SetHeaders::new(&conf.set_headers));
        if conf.passing.caching.is_on() {
            Arc::make_mut(&mut conf.passing.caching).finish(&s.setup.caches, "proxy")?;
            let mut headers = SetHeaders::new(&conf.set_headers);
            headers.cached(&mut s.setup.variables, &conf.set_headers)?;
            conf.cached_headers = Arc::new(headers);
        }
        if conf.pass.as_ref().is_some_and(Pass::may_be_secure) {
            let http2 = conf.version == Version::Http20;
            Arc::make_mut(&mut conf.passing.tls).finish(s.setup, "proxy", http2)?;
        }
        Ok(())
    }
}

/// Headers of the client that ask for a part of an answer, or for none: an answer that is kept must be whole.
const NOT_KEPT: [&str; 6] =
    ["If-Modified-Since", "If-Unmodified-Since", "If-None-Match", "If-Match", "Range", "If-Range"];

/// What the server is told of an answer that may still stand.
const CONDITIONS: [(&str, &str); 2] = [
    ("If-Modified-Since", "$upstream_cache_last_modified"),
    ("If-None-Match", "$upstream_cache_etag"),
];

impl SetHeaders {
    /// For an answer that is to be kept.
    fn cached(
        &mut self,
        variables: &mut Variables,
        set: &[(Bytes, Template)],
    ) -> Result<(), Error> {
        for name in NOT_KEPT {
            self.dropped.insert(name.as_bytes());
        }
        for (name, value) in CONDITIONS {
            if !set.iter().any(|(own, _)| own.eq_ignore_ascii_case(name.as_bytes())) {
                let value = Template::new(variables, value.as_bytes()).map_err(Error::emerg)?;
                self.lines.push((Bytes::from_static(name.as_bytes()), value));
            }
        }
        Ok(())
    }

    fn new(set: &[(Bytes, Template)]) -> SetHeaders {
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
}
