//! Passes requests to uwsgi servers, with or without TLS. nginx: ngx_http_uwsgi_module.

use std::borrow::Cow;
use std::sync::Arc;

use weir_conf::{Directive as Line, Error};
use weir_engine::Boxed;
use weir_proto::uwsgi;
use weir_values::Template;

use crate::config::module::Module;
use crate::config::scope::{Directive, Scope};
use crate::config::table::table;
use crate::phases::{Answer, Later, Step};
use crate::request::Request;
use crate::site::content::ContentHandler;
use crate::site::settings::{Key, Settings};
use crate::upstream::cache::configured_key;
use crate::upstream::cgi::{self, Dialect, Params, Plain};
use crate::upstream::driver::Target;
use crate::upstream::pass::{self, By, Pass};
use crate::upstream::passing::upstream_directives;
use crate::upstream::tls::{Needed, UpstreamTls};
use crate::upstream::{OutgoingError, UpstreamConf};

/// Settings of a location.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// The settings that all protocols share.
    passing: UpstreamConf,
    /// `uwsgi_param`
    params: Params,
    /// `uwsgi_modifier1`
    modifier1: u8,
    /// `uwsgi_modifier2`
    modifier2: u8,
    /// `uwsgi_string`
    string: Vec<u8>,
}

/// The target of `uwsgi_pass`.
#[derive(Debug, Clone)]
pub enum To {
    /// A server or group, with the scheme, and the name for checks of certificates.
    Known(Pass, Scheme, Vec<u8>),
    /// An address with variables.
    Computed(Template),
}

/// `uwsgi://` or `suwsgi://`.
type Scheme = &'static str;

/// The name that certificates are checked for.
type Name = Cow<'static, [u8]>;

const PLAIN: Scheme = "uwsgi://";
const SECURE: Scheme = "suwsgi://";

impl Settings for Conf {}

/// Called when all lines of a block were read.
fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let needed = match CONTENT.of(&s.location.core.content) {
        Some(To::Computed(address)) => Some(Needed::for_computed(address, PLAIN, Needed::Tls)),
        Some(To::Known(_, scheme, _)) => (*scheme != PLAIN).then_some(Needed::Tls),
        None => None,
    };
    if needed.is_none() && !CONF.is_own(&mut s.location) {
        return Ok(());
    }
    let conf = CONF.change(&mut s.location);
    let (passing, params) = (&mut conf.passing, &mut conf.params);
    cgi::finish::<uwsgi::Vars>(s.setup, NAME, passing, params, cgi::HIDDEN)?;
    if let Some(needed) = needed {
        Arc::make_mut(&mut conf.passing.tls).finish(&mut s.setup.tls(), NAME, needed)?;
    }
    Ok(())
}

const NAME: &str = "uwsgi";

const DIRECTIVES: &[Directive] = upstream_directives!(
    CONF, "uwsgi_": OWN;
    passing without("send_lowat"), store, cache without("cache_convert_head"), tls, params
);

const OWN: &[Directive] = table! { "uwsgi_", settings:
    "pass": once(|s, d| {
        let to = to(s, d)?;
        pass::handle(s, CONTENT.with(to));
        Ok(())
    }), "The uwsgi server, or group of servers, that requests are passed to; suwsgi:// for TLS.";
    "modifier1": value(modifier1, |d| d.number().map(modifier)),
        "The first modifier of packets.";
    "modifier2": value(modifier2, |d| d.number().map(modifier)),
        "The second modifier of packets.";
    "string": value(string, |d| Ok(d.args.first().map(|w| w.bytes.clone()).unwrap_or_default())),
        "Bytes behind the parameters of packets.";
};

/// The tables of `conf` have checked the range.
fn modifier(number: u64) -> u8 {
    number as u8
}

fn settings<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut Conf {
    CONF.change(&mut s.location)
}

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_uwsgi", directives: DIRECTIVES, finish, ..Module::NEW };

/// Splits the scheme off an address.
fn scheme(address: &[u8]) -> (Scheme, &[u8]) {
    for scheme in [PLAIN, SECURE] {
        if let Some((start, rest)) = address.split_at_checked(scheme.len())
            && start.eq_ignore_ascii_case(scheme.as_bytes())
        {
            return (scheme, rest);
        }
    }
    (PLAIN, address)
}

/// `uwsgi_pass ADDRESS`
fn to(s: &mut Scope<'_, '_>, d: &Line) -> Result<To, Error> {
    let word = d.args.first().unwrap_or(&d.name);
    let value = s.setup.template(d, word)?;
    if value.constant().is_none() {
        return Ok(To::Computed(value));
    }
    let (scheme, address) = scheme(&word.bytes);
    Ok(To::Known(Pass::read(s, d, Some(address))?, scheme, address.to_vec()))
}

/// The proxy settings for this request and its cache key. `None` if the location has no
/// `uwsgi_pass`.
pub fn cached(r: &mut Request) -> Option<(&'static UpstreamConf, Vec<u8>)> {
    CONTENT.of(&r.conf().core.content)?;
    let conf = CONF.of(r.conf());
    let text = configured_key(r, &conf.passing.caching);
    Some((&conf.passing, text))
}

/// The content handler.
static CONTENT: ContentHandler<To> = ContentHandler {
    module: "uwsgi",
    in_limit_except: true,
    optional: false,
    run: |r, settings| Answer::Later(handler(r, settings)),
};

/// Handles a request in a location with `uwsgi_pass`.
fn handler<'a>(r: &'a mut Request, to: &'static To) -> Later<'a> {
    Boxed::new(move || async move {
        let conf = CONF.of(r.conf());
        let found = match to {
            To::Known(pass, scheme, name) => {
                let name = Cow::Borrowed(name.as_slice());
                pass.target(r, By::Configuration).map(|target| (target, *scheme, name))
            }
            To::Computed(address) => compute(r, address),
        };
        let (target, scheme, name) = match found {
            Ok(found) => found,
            Err(step) => return step,
        };
        let mut protocol = Plain::new(&conf.passing, Uwsgi { conf, scheme, name });
        pass::serve(r, &conf.passing, target, &mut protocol).await
    })
}

/// Evaluates an address with variables.
fn compute(r: &mut Request, address: &Template) -> Result<(Target, Scheme, Name), Step> {
    let text = address.eval(r).into_owned();
    let (scheme, address) = scheme(&text);
    let target = pass::parsed(r, address, By::Configuration)?;
    Ok((target, scheme, Cow::Owned(address.to_vec())))
}

struct Uwsgi {
    conf: &'static Conf,
    scheme: Scheme,
    name: Name,
}

impl Dialect for Uwsgi {
    fn scheme(&self) -> &'static str {
        self.scheme
    }

    fn secure(&self, r: &mut Request) -> Option<UpstreamTls> {
        if self.scheme == PLAIN {
            return None;
        }
        self.conf.passing.tls.secure(r, &self.name)
    }

    fn packet(&self, r: &mut Request) -> Result<Vec<u8>, OutgoingError> {
        let mut out = Vec::with_capacity(ROOM);
        out.resize(uwsgi::HEAD, 0);
        let headers = self.conf.passing.pass_request_headers;
        self.conf.params.write::<uwsgi::Vars>(r, headers, &mut out);
        out.extend_from_slice(&self.conf.string);
        uwsgi::end(self.conf.modifier1, self.conf.modifier2, &mut out)
            .map_err(|length| OutgoingError::TooLong { what: "uwsgi request", length })?;
        Ok(out)
    }
}

/// The first allocation for a request, enough for most.
const ROOM: usize = 2048;
