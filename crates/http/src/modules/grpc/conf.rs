//! Settings of `grpc`.

use std::sync::Arc;

use bytes::Bytes;
use weir_conf::{Directive, Error};

use super::CONTENT;
use crate::config::scope::Scope;
use crate::modules::grpc::CONF;
use crate::request::passed::Vars;
use crate::site::settings::Settings;
use crate::upstream::UpstreamConf;
use crate::upstream::http::{SetHeaders, To};
use crate::upstream::pass::{self, NO_PORT};
use crate::upstream::tls::Needed;
use crate::upstream::url::{Host, Url};
use weir_values::Template;

/// Settings of a location.
#[derive(Debug, Clone)]
pub struct Conf {
    /// The settings that all protocols share.
    pub passing: UpstreamConf,
    /// `grpc_set_header`, as written.
    pub set_headers: Vec<(Bytes, Template)>,
    /// The headers that follow from these lines.
    pub headers: Arc<SetHeaders>,
}

/// Memory for data that wait for the client, which is also the window of a stream.
const BUFFERS: (u64, u64) = (8, 32 * 1024);

/// Headers of answers that clients do not see unless `grpc_pass_header` says so.
const HIDDEN: [&str; 7] = [
    "Date",
    "Server",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
    "X-Accel-Buffering",
    "X-Accel-Charset",
];

impl Default for Conf {
    fn default() -> Self {
        let passing = UpstreamConf {
            buffering: false,
            request_buffering: false,
            pass_trailers: true,
            buffers: BUFFERS,
            ..UpstreamConf::default()
        };
        let (set_headers, headers) = Default::default();
        Conf { passing, set_headers, headers }
    }
}

impl Settings for Conf {}

/// Finishes the settings, after all lines of a block were read.
pub fn finish(s: &mut Scope<'_, '_>) -> Result<(), Error> {
    let needed = match CONTENT.of(&s.location.core.content) {
        Some(To::Group(_, vars)) => (vars.scheme == "grpcs://").then_some(Needed::Http2),
        Some(To::Computed(url)) => Some(Needed::for_computed(url, "grpc://", Needed::Http2)),
        None => None,
    };
    if needed.is_none() && !CONF.is_own(&mut s.location) {
        return Ok(());
    }
    let conf = CONF.change(&mut s.location);
    conf.passing.hide(&HIDDEN);
    // Answers are never buffered, so `X-Accel-Buffering` has no effect.
    conf.passing.ignored.insert(b"X-Accel-Buffering");
    let mut headers = SetHeaders::new(&conf.set_headers);
    let (set, te) = (&conf.set_headers, "$grpc_internal_trailers");
    headers.or(&mut s.setup.variables, set, "TE", te)?;
    conf.headers = Arc::new(headers);
    if let Some(needed) = needed {
        Arc::make_mut(&mut conf.passing.tls).finish(&mut s.setup.tls(), "grpc", needed)?;
    }
    Ok(())
}

/// `grpc_pass ADDRESS`
pub fn set(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.args.first() else { return Ok(()) };
    let value = s.setup.template(d, word)?;
    let to = if value.constant().is_none() {
        To::Computed(value)
    } else {
        let (scheme, rest) = scheme(&word.bytes);
        let url = Url::parse(rest, false).map_err(|e| {
            let rest = String::from_utf8_lossy(rest);
            d.error_at(word, format!("{e} in upstream \"{rest}\""))
        })?;
        let vars = vars(&url, scheme);
        To::Group(pass::refer(s, d, word, url, NO_PORT)?, vars)
    };
    pass::handle(s, CONTENT.with(to));
    Ok(())
}

/// The scheme, which may be omitted, and the rest of the address.
pub fn scheme(url: &[u8]) -> (&'static str, &[u8]) {
    let named = ["grpc://", "grpcs://"].into_iter().find(|scheme| {
        url.get(..scheme.len()).is_some_and(|s| s.eq_ignore_ascii_case(scheme.as_bytes()))
    });
    let rest = url.get(named.map_or(0, str::len)..).unwrap_or_default();
    (named.unwrap_or("grpc://"), rest)
}

/// The variables of an address.
pub fn vars(url: &Url, scheme: &'static str) -> Vars {
    let host = match (&url.address, url.port) {
        (Some(Host::Unix(_)), _) => b"localhost".to_vec(),
        (_, Some(port)) => [url.host.as_slice(), b":", port.to_string().as_bytes()].concat(),
        (_, None) => url.host.clone(),
    };
    Vars { scheme, host, ..Vars::default() }
}
