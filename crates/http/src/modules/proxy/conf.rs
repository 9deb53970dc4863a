//! Settings of `proxy`.

use std::sync::Arc;

use bytes::Bytes;
use weir_conf::Error;
use weir_proto::http1::Version;

use super::CONTENT;
use super::rewriting::{CookieFlags, Rewrite, default_redirect};
use crate::config::scope::Scope;
use crate::modules::proxy::CONF;
use crate::site::settings::Settings;
use crate::upstream::UpstreamConf;
use crate::upstream::http::{SetHeaders, To};
use crate::upstream::tls::Needed;
use weir_values::Template;

/// Settings of a location.
#[derive(Debug, Clone)]
pub struct Conf {
    /// The settings that all protocols share.
    pub passing: UpstreamConf,
    /// `proxy_http_version`
    pub version: Version,
    /// `proxy_method`
    pub method: Option<Template>,
    /// `proxy_set_body`
    pub body: Option<Template>,
    /// `proxy_set_header`, as written.
    pub set_headers: Vec<(Bytes, Template)>,
    /// The headers that follow from these lines.
    pub headers: Arc<SetHeaders>,
    /// The same for requests whose answers may be stored.
    pub cached_headers: Arc<SetHeaders>,
    /// `proxy_redirect`; `None` for the default rule of the block's own `proxy_pass`.
    pub redirects: Option<Vec<Rewrite>>,
    /// `proxy_cookie_domain`
    pub cookie_domains: Vec<Rewrite>,
    /// `proxy_cookie_path`
    pub cookie_paths: Vec<Rewrite>,
    /// `proxy_cookie_flags`
    pub cookie_flags: Vec<CookieFlags>,
}

/// The target of `proxy_pass`.
#[derive(Debug, Clone)]
pub struct ProxyPass {
    /// A group, or a URL with variables.
    pub to: To,
    /// The location's name, which the URI of `proxy_pass` replaces. Empty if there is none.
    pub location: Vec<u8>,
    /// The URL as written.
    pub url: Vec<u8>,
}

impl ProxyPass {
    /// Why the TLS settings are needed. `None` if a URL without variables has no TLS.
    fn needs_tls(&self) -> Option<Needed> {
        match &self.to {
            To::Group(_, vars) => (vars.scheme == "https://").then_some(Needed::Tls),
            To::Computed(url) => Some(Needed::for_computed(url, "http://", Needed::Tls)),
        }
    }
}

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
            passing: UpstreamConf::default(),
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

impl Settings for Conf {}

/// Finishes the settings, after all lines of a block were read.
pub fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let pass = CONTENT.of(&s.location.core.content);
    let needed = pass.and_then(ProxyPass::needs_tls);
    // A block inside inherits the default rule, as in nginx, also if it has a `proxy_pass` of its
    // own.
    let rule = match CONF.of(&s.location).redirects {
        None if s.has_blocks => pass.and_then(default_redirect),
        _ => None,
    };
    if needed.is_none() && rule.is_none() && !CONF.is_own(&mut s.location) {
        return Ok(());
    }
    let conf = CONF.change(&mut s.location);
    if let Some(rule) = rule {
        conf.redirects = Some(vec![rule]);
    }
    if let Some(scripts) = &mut conf.passing.scripts
        && let Some(directive) = scripts.said
    {
        if needed.is_none() {
            let text = format!("{directive}* should be used with proxy_pass https url");
            return Err(Error::emerg(text));
        }
        Arc::make_mut(scripts).said = None;
    }
    conf.passing.finish(s.setup, "proxy", &HIDDEN)?;
    conf.headers = Arc::new(SetHeaders::new(&conf.set_headers));
    if conf.passing.caching.is_on() {
        let mut headers = SetHeaders::new(&conf.set_headers);
        headers.cached(&mut s.setup.variables, &conf.set_headers)?;
        conf.cached_headers = Arc::new(headers);
    }
    if let Some(needed) = needed {
        let needed = match (needed, conf.version) {
            (Needed::Tls, Version::Http20) => Needed::Http2,
            _ => needed,
        };
        Arc::make_mut(&mut conf.passing.tls).finish(&mut s.setup.tls(), "proxy", needed)?;
    }
    Ok(())
}
