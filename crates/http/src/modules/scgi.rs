//! Passes requests to SCGI servers. nginx: ngx_http_scgi_module.

use weir_conf::Error;
use weir_engine::Boxed;
use weir_proto::pairs::Pairs as _;
use weir_proto::scgi::{Headers, netstring};

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope, Set};
use crate::phases;
use crate::phases::Later;
use crate::request::Request;
use crate::site::content::ContentHandler;
use crate::site::settings::{Key, Settings};
use crate::upstream::cache::configured_key;
use crate::upstream::cgi::{self, Dialect, Params, Plain};
use crate::upstream::pass::{self, By, Pass};
use crate::upstream::passing::upstream_directives;
use crate::upstream::{OutgoingError, UpstreamConf};

/// Settings of a location.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// The settings that all protocols share.
    passing: UpstreamConf,
    /// `scgi_param`
    params: Params,
}

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    if !CONF.is_own(&mut s.location) {
        return Ok(());
    }
    let conf = CONF.change(&mut s.location);
    let (passing, params) = (&mut conf.passing, &mut conf.params);
    cgi::finish::<Headers>(s.setup, NAME, passing, params, cgi::HIDDEN_AND_STATUS)
}

const NAME: &str = "scgi";

const DIRECTIVES: &[Directive] = upstream_directives!(
    CONF, "scgi_": OWN;
    passing without("send_lowat"), store, cache without("cache_convert_head"), params
);

const OWN: &[Directive] = &[Directive {
    name: "scgi_pass",
    help: "The SCGI server, or group of servers, that requests are passed to.",
    set: Set::Simple(|s, d| {
        s.once(d)?;
        let to = Pass::read(s, d, None)?;
        pass::handle(s, CONTENT.with(to));
        Ok(())
    }),
}];

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_scgi", directives: DIRECTIVES, finish, ..Module::NEW };

/// The proxy settings for this request and its cache key. `None` if the location has no
/// `scgi_pass`.
pub fn cached(r: &mut Request) -> Option<(&'static UpstreamConf, Vec<u8>)> {
    CONTENT.of(&r.conf().core.content)?;
    let conf = CONF.of(r.conf());
    let text = configured_key(r, &conf.passing.caching);
    Some((&conf.passing, text))
}

/// The content handler.
static CONTENT: ContentHandler<Pass> = ContentHandler {
    module: "scgi",
    in_limit_except: true,
    optional: false,
    run: |r, settings| phases::Answer::Later(handler(r, settings)),
};

/// Handles a request in a location with `scgi_pass`.
fn handler<'a>(r: &'a mut Request, pass: &'static Pass) -> Later<'a> {
    Boxed::new(move || async move {
        let conf = CONF.of(r.conf());
        let target = match pass.target(r, By::Configuration) {
            Ok(target) => target,
            Err(step) => return step,
        };
        let mut protocol = Plain::new(&conf.passing, Scgi(conf));
        pass::serve(r, &conf.passing, target, &mut protocol).await
    })
}

struct Scgi(&'static Conf);

impl Dialect for Scgi {
    fn scheme(&self) -> &'static str {
        "scgi://"
    }

    fn packet(&self, r: &mut Request) -> Result<Vec<u8>, OutgoingError> {
        let mut pairs = Vec::with_capacity(ROOM);
        let length = if self.0.passing.pass_request_body { r.body.length } else { None };
        Headers::pair(b"CONTENT_LENGTH", length.unwrap_or(0).to_string().as_bytes(), &mut pairs);
        let headers = self.0.passing.pass_request_headers;
        self.0.params.write::<Headers>(r, headers, &mut pairs);
        Ok(netstring(&pairs))
    }
}

/// The first allocation for a request, enough for most.
const ROOM: usize = 2048;
