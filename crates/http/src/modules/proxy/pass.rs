//! `proxy_pass`: reads the URL.

use weir_conf::{Directive, Error};

use super::CONTENT;
use super::conf::ProxyPass;
use crate::config::scope::Scope;
use crate::request::passed::Vars;
use crate::site::location::Kind;
use crate::upstream::http::To;
use crate::upstream::pass::{handle, refer};
use crate::upstream::url::{Host, Url};

/// `proxy_pass URL`
pub fn set(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    s.once(d)?;
    let Some(word) = d.args.first() else { return Ok(()) };
    let value = s.setup.template(d, word)?;
    let mut location = s.place.name.clone();
    let nameless = !matches!(s.place.kind, Kind::Prefix { .. } | Kind::Exact);
    if nameless {
        location.clear();
    }
    let to = if value.constant().is_none() {
        To::Computed(value)
    } else {
        let (scheme, port) =
            scheme(&word.bytes).ok_or_else(|| d.error_at(word, "invalid URL prefix"))?;
        let rest = word.bytes.get(scheme.len()..).unwrap_or_default();
        let url = Url::parse(rest, true).map_err(|e| {
            let rest = String::from_utf8_lossy(rest);
            d.error_at(word, format!("{e} in upstream \"{rest}\""))
        })?;
        let vars = vars(&url, scheme, port);
        if nameless && !vars.uri.is_empty() {
            return Err(d.error_at(
                word,
                "\"proxy_pass\" cannot have URI part in location given by regular expression, \
                 or inside named location, or inside \"if\" statement, or inside \"limit_except\" \
                 block",
            ));
        }
        To::Group(refer(s, d, word, url, port)?, vars)
    };
    handle(s, CONTENT.with(ProxyPass { to, location, url: word.bytes.clone() }));
    Ok(())
}

/// The scheme of a URL and its default port.
pub fn scheme(url: &[u8]) -> Option<(&'static str, u16)> {
    [("http://", 80), ("https://", 443)].into_iter().find(|(scheme, _)| {
        url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme.as_bytes()))
    })
}

/// The `$proxy_...` variables of a URL.
pub fn vars(url: &Url, scheme: &'static str, default_port: u16) -> Vars {
    let uri = url.uri.clone();
    if matches!(url.address, Some(Host::Unix(_))) {
        let (host, socket) = (b"localhost".to_vec(), Some(url.host.clone()));
        return Vars { scheme, host, port: Vec::new(), socket, uri };
    }
    let port = url.port.unwrap_or(default_port).to_string().into_bytes();
    let host = match url.port.filter(|p| *p != default_port) {
        Some(_) => [url.host.as_slice(), b":", &port].concat(),
        None => url.host.clone(),
    };
    Vars { scheme, host, port, socket: None, uri }
}
