//! Passes requests to gRPC servers. nginx: ngx_http_grpc_module.
//!
//! gRPC is HTTP/2. A body is a sequence of messages, both directions run at once, and trailers have the status of the call.
//! So `upstream` does the work. This module makes sure that no message is held back in either direction.

use std::borrow::Cow;

use crate::config::Setup;
use crate::config::module::Module;
use crate::phases::{Answer, Later, Step};
use crate::request::Request;
use crate::request::passed::Vars;
use crate::site::content::ContentHandler;
use crate::site::settings::Key;
use crate::upstream::driver::Target;
use crate::upstream::http::To;
use crate::upstream::pass::{self, By};
use weir_engine::Boxed;
use weir_values::Template;

mod call;
mod conf;
mod directives;

pub use conf::Conf;

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module {
    name: "http_grpc",
    directives: directives::DIRECTIVES,
    init: define,
    finish: conf::finish,
};

fn define(setup: &mut Setup<'_>) {
    setup.variables.define("grpc_internal_trailers", |r, out| {
        let accepts = r.headers().any(|(name, value)| {
            name.eq_ignore_ascii_case(b"te")
                && value.windows(TRAILERS.len()).any(|w| w.eq_ignore_ascii_case(TRAILERS))
        });
        if accepts {
            out.extend_from_slice(TRAILERS);
        }
        accepts
    });
}

const TRAILERS: &[u8] = b"trailers";

/// The content handler.
pub(super) static CONTENT: ContentHandler<To> = ContentHandler {
    module: "grpc",
    in_limit_except: true,
    optional: false,
    run: |r, settings| Answer::Later(handler(r, settings)),
};

/// Handles a request in a location with `grpc_pass`.
fn handler<'a>(r: &'a mut Request, to: &'static To) -> Later<'a> {
    Boxed::new(move || async move {
        let conf = CONF.of(r.conf());
        let found = match to {
            To::Group(id, vars) => Ok((Target::Configured(*id), Cow::Borrowed(vars))),
            To::Computed(url) => compute(r, url),
        };
        let (target, vars) = match found {
            Ok(found) => found,
            Err(step) => return step,
        };
        let mut call = call::Call::new(r, conf, vars.scheme);
        r.contexts.upstream.vars = Some(vars);
        pass::serve(r, &conf.passing, target, &mut call).await
    })
}

/// Evaluates an address with variables.
fn compute(r: &mut Request, url: &Template) -> Result<(Target, Cow<'static, Vars>), Step> {
    let text = url.eval(r).into_owned();
    let (scheme, rest) = conf::scheme(&text);
    let target = pass::parsed(r, rest, By::Configuration)?;
    let vars = match &target {
        Target::Url(url, _) => conf::vars(url, scheme),
        _ => Vars::default(),
    };
    Ok((target, Cow::Owned(vars)))
}
