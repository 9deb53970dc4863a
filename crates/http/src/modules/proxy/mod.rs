//! Passes requests to other HTTP servers. nginx: ngx_http_proxy_module.

use std::borrow::Cow;

use bytes::Bytes;
use weir_engine::Boxed;
use weir_log::Level;

use crate::answer::output::write_number;
use crate::config::Setup;
use crate::config::module::Module;
use crate::phases::{Answer, Later, Step};
use crate::request::Request;
use crate::request::passed::{Length, Vars};
use crate::site::content::ContentHandler;
use crate::site::settings::Key;
use crate::site::settings::LocationConf;
use crate::upstream::cache::key_text;
use crate::upstream::driver::{self, Target};
use crate::upstream::http::To;
use crate::upstream::url::Url;
use crate::upstream::{GroupId, UpstreamConf};
use weir_values::Template;

mod conf;
mod directives;
mod http;
mod outgoing;
mod pass;
mod rewriting;
#[cfg(test)]
mod tests;

pub use conf::{Conf, ProxyPass};

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module = Module {
    name: "http_proxy",
    directives: directives::DIRECTIVES,
    init: define,
    finish: conf::finish,
};

fn define(setup: &mut Setup<'_>) {
    let variables = &mut setup.variables;
    variables.define_changeable("proxy_host", false, |r, out| of_vars(r, out, |v| &v.host));
    variables.define_changeable("proxy_port", false, |r, out| of_vars(r, out, |v| &v.port));
    variables.define("proxy_internal_body_length", |r, out| {
        let length = r.contexts.upstream.length.known();
        length.inspect(|n| write_number(*n, out)).is_some()
    });
    variables.define("proxy_internal_chunked", |r, out| {
        let chunked = r.contexts.upstream.length == Length::Chunked;
        out.extend_from_slice(if chunked { b"chunked" } else { b"" });
        chunked
    });
    variables.define("proxy_add_x_forwarded_for", |r, out| {
        let name = b"x-forwarded-for".as_slice();
        let given = r.headers().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v);
        if crate::variables::joined(given, b", ", out) {
            out.extend_from_slice(b", ");
        }
        r.peer().write_host(out);
        true
    });
}

fn of_vars(r: &mut Request, out: &mut Vec<u8>, field: fn(&Vars) -> &[u8]) -> bool {
    match &r.contexts.upstream.vars {
        Some(vars) if vars.scheme.starts_with("http") => {
            out.extend_from_slice(field(vars));
            true
        }
        _ => false,
    }
}

/// The group that a location passes all its requests to, and the scheme.
pub fn group(conf: &LocationConf) -> Option<(GroupId, &'static str)> {
    match CONTENT.of(&conf.core.content) {
        Some(ProxyPass { to: To::Group(id, vars), .. }) => Some((*id, vars.scheme)),
        _ => None,
    }
}

/// `proxy_set_header` lines without variables.
pub fn constant_headers(conf: &Conf) -> Vec<(Bytes, Bytes)> {
    let constant = |value: &Template| value.constant().map(Bytes::copy_from_slice);
    let lines = conf.set_headers.iter();
    lines.filter_map(|(name, value)| Some((name.clone(), constant(value)?))).collect()
}

/// The proxy settings for this request and its cache key. `None` if the location has no
/// `proxy_pass`.
pub fn cached(r: &mut Request) -> Option<(&'static UpstreamConf, Vec<u8>)> {
    let (pass, conf) = (CONTENT.of(&r.conf().core.content)?, CONF.of(r.conf()));
    let vars = match &pass.to {
        To::Group(_, vars) => Cow::Borrowed(vars),
        To::Computed(url) => compute(r, url).ok()?.1,
    };
    let protocol = http::Http::new(conf, pass, vars.scheme);
    r.contexts.upstream.vars = Some(vars);
    let text = key_text(r, &conf.passing.caching, &protocol);
    Some((&conf.passing, text))
}

/// The content handler.
pub(super) static CONTENT: ContentHandler<ProxyPass> = ContentHandler {
    module: "proxy",
    in_limit_except: true,
    optional: false,
    run: |r, settings| Answer::Later(handler(r, settings)),
};

/// Handles a request in a location with `proxy_pass`. The future is moved once as a whole, so parts
/// that few requests need are boxed, here and in the driver.
fn handler<'a>(r: &'a mut Request, pass: &'static ProxyPass) -> Later<'a> {
    Boxed::new(move || async move {
        let conf = CONF.of(r.conf());
        let found = match &pass.to {
            To::Group(id, vars) => Ok((Target::Configured(*id), Cow::Borrowed(vars))),
            To::Computed(url) => compute(r, url),
        };
        let (wanted, vars) = match found {
            Ok(found) => found,
            Err(step) => return step,
        };
        let mut protocol = http::Http::new(conf, pass, vars.scheme);
        r.contexts.upstream.vars = Some(vars);
        if let Err(step) = driver::read_body(r, &protocol).await {
            return step;
        }
        driver::serve(r, &conf.passing, wanted, &mut protocol).await
    })
}

/// Evaluates a URL with variables.
fn compute(r: &mut Request, url: &Template) -> Result<(Target, Cow<'static, Vars>), Step> {
    let text = url.eval(r).into_owned();
    let named = pass::scheme(&text).filter(|(scheme, _)| text.len() > scheme.len());
    let Some((scheme, port)) = named else {
        let text = String::from_utf8_lossy(&text);
        r.log(Level::Error, format_args!("invalid URL prefix in \"{text}\""));
        return Err(Step::Status(500));
    };
    let rest = text.get(scheme.len()..).unwrap_or_default();
    let url = Url::parse(rest, true).map_err(|e| {
        let rest = String::from_utf8_lossy(rest);
        r.log(Level::Error, format_args!("{e} in upstream \"{rest}\""));
        Step::Status(500)
    })?;
    let mut vars = pass::vars(&url, scheme, port);
    if vars.uri.first() == Some(&b'?') {
        vars.uri.insert(0, b'/');
    }
    Ok((Target::Url(Box::new(url), port), Cow::Owned(vars)))
}
