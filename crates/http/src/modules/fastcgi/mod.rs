//! Passes requests to FastCGI servers, such as PHP-FPM. nginx: ngx_http_fastcgi_module.

use std::sync::Arc;

use weir_conf::Error;
use weir_engine::Boxed;
use weir_proto::fastcgi;

use crate::config::module::Module;
use crate::config::scope::Scope;
use crate::phases;
use crate::phases::Later;
use crate::request::Request;
use crate::site::content::ContentHandler;
use crate::site::settings::{Key, Settings};
use crate::upstream::UpstreamConf;
use crate::upstream::cache::configured_key;
use crate::upstream::cgi::{self, Params};
use crate::upstream::pass::{self, By, Pass};

mod directives;
mod protocol;
mod split;

use protocol::FastCgi;
use split::Split;

/// Settings of a location.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// The settings that all protocols share.
    passing: UpstreamConf,
    /// `fastcgi_param`
    params: Params,
    /// `fastcgi_index`
    index: Vec<u8>,
    /// `fastcgi_split_path_info`
    split: Option<Arc<Split>>,
    /// `fastcgi_catch_stderr`
    catch_stderr: Vec<Vec<u8>>,
    /// `fastcgi_keep_conn`
    keep_conn: bool,
}

impl Settings for Conf {}

/// Finishes the settings, after all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    if !CONF.is_own(&mut s.location) {
        return Ok(());
    }
    let conf = CONF.change(&mut s.location);
    let (passing, params) = (&mut conf.passing, &mut conf.params);
    cgi::finish::<fastcgi::Params>(s.setup, NAME, passing, params, cgi::HIDDEN_AND_STATUS)
}

const NAME: &str = "fastcgi";

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module {
    name: "http_fastcgi",
    directives: directives::DIRECTIVES,
    init: split::define,
    finish,
};

/// The proxy settings for this request and its cache key. `None` if the location has no
/// `fastcgi_pass`.
pub fn cached(r: &mut Request) -> Option<(&'static UpstreamConf, Vec<u8>)> {
    CONTENT.of(&r.conf().core.content)?;
    let conf = CONF.of(r.conf());
    let text = configured_key(r, &conf.passing.caching);
    Some((&conf.passing, text))
}

/// The content handler.
pub(super) static CONTENT: ContentHandler<Pass> = ContentHandler {
    module: "fastcgi",
    in_limit_except: true,
    optional: false,
    run: |r, settings| phases::Answer::Later(handler(r, settings)),
};

/// Handles a request in a location with `fastcgi_pass`.
fn handler<'a>(r: &'a mut Request, pass: &'static Pass) -> Later<'a> {
    Boxed::new(move || async move {
        let conf = CONF.of(r.conf());
        let target = match pass.target(r, By::Configuration) {
            Ok(target) => target,
            Err(step) => return step,
        };
        pass::serve(r, &conf.passing, target, &mut FastCgi::new(conf)).await
    })
}
