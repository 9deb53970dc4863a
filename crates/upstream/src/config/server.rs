//! The directive `server` of an `upstream { }`.

use std::sync::Arc;
use std::time::Duration;

use super::dynamic::{self, NamedServer};
use super::groups::{GroupExtras, UpstreamBlock};
use super::url::{Host, Url};
use crate::{Peer, PeerOptions};
use weir_conf::{Directive, Error, Spot, Word, values};

/// The longest `route`, as in nginx.
const LONGEST_ROUTE: usize = 32;

/// The parameters of a line.
#[derive(Default)]
struct Parameters {
    options: PeerOptions,
    resolve: bool,
    service: Option<String>,
}

/// `server ADDRESS [parameter]...`. `port` is the default port; 0 if there is none, for sessions.
pub fn server<T: GroupExtras>(
    block: &mut UpstreamBlock<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
    port: u16,
) -> Result<(), Error> {
    let Some(address) = d.args.first() else { return Ok(()) };
    let mut parameters = Parameters::default();
    for word in d.args.iter().skip(1) {
        if !has_use(block, word) {
            return Err(d.error_at(word, unsupported(&word.lossy())));
        }
        if word.bytes.starts_with(b"slow_start=") {
            let spot = || (Spot::new(d, word), word.lossy().into_owned());
            block.slow_start.get_or_insert_with(spot);
        }
        // Sessions cannot be bound to servers.
        if port == 0 && (word.is("drain") || word.bytes.starts_with(b"route=")) {
            return Err(d.invalid("parameter", word));
        }
        parameters.read(d, word)?;
    }
    let Parameters { options, resolve, service } = parameters;
    let url = url(d, address, resolve, service.is_some())?;
    let name = address.lossy().into_owned();
    let no_port = port == 0 && service.is_none();
    if no_port && url.port.is_none() && !matches!(url.address, Some(Host::Unix(_))) {
        return Err(d.error_at(address, format!("no port in upstream \"{name}\"")));
    }
    if resolve && url.address.is_none() {
        let host = String::from_utf8_lossy(&url.host).into_owned();
        let port = url.port.unwrap_or(port);
        let named = NamedServer::resolved_again(host, port, service, name, options);
        block.named.push(named);
        return Ok(());
    }
    let Ok(endpoints) = url.endpoints(port) else {
        warnings.push(Spot::new(d, address).warning(dynamic::not_found(&name)));
        let host = String::from_utf8_lossy(&url.host).into_owned();
        let named = NamedServer::unresolved(host, url.port.unwrap_or(port), name, options);
        block.named.push(named);
        return Ok(());
    };
    for endpoint in endpoints {
        block.peers.push(Arc::new(Peer::new(endpoint, name.clone(), options.clone())));
    }
    Ok(())
}

/// The message about a parameter that the method does not support.
pub(super) fn unsupported(word: &str) -> String {
    format!("balancing method does not support parameter \"{word}\"")
}

/// Whether the method supports a parameter.
fn has_use<T: GroupExtras>(block: &UpstreamBlock<T>, word: &Word) -> bool {
    let chooses = block.extras.chooses();
    match word.bytes.as_slice() {
        b"backup" => !block.plain && !chooses,
        word if word.starts_with(b"slow_start=") => !block.plain && !chooses,
        word if word.starts_with(b"max_conns=") => !chooses,
        _ => true,
    }
}

/// Parses the address and checks it against `resolve` and `service`.
fn url(d: &Directive, address: &Word, resolve: bool, service: bool) -> Result<Url, Error> {
    let name = address.lossy();
    let wrong = |text: String| Err(d.error_at(address, text));
    if service && !resolve {
        return wrong(format!("service upstream \"{name}\" requires \"resolve\" parameter"));
    }
    let url = Url::parse(&address.bytes, false)
        .map_err(|e| d.error_at(address, format!("{e} in upstream \"{name}\"")))?;
    if service && url.port.is_some() {
        return wrong(format!("service upstream \"{name}\" may not have port"));
    }
    if service && url.address.is_some() {
        return wrong(format!("service upstream \"{name}\" requires domain name"));
    }
    Ok(url)
}

impl Parameters {
    fn read(&mut self, d: &Directive, word: &Word) -> Result<(), Error> {
        let text = word.bytes.as_slice();
        if let Some(name) = text.strip_prefix(b"service=") {
            if name.is_empty() {
                return Err(d.error_at(word, "service is empty"));
            }
            self.service = Some(String::from_utf8_lossy(name).into_owned());
            return Ok(());
        }
        if let Some(route) = text.strip_prefix(b"route=") {
            if route.is_empty() {
                return Err(d.error_at(word, "route is empty"));
            }
            if route.len() > LONGEST_ROUTE {
                return Err(d.error_at(word, format!("route is longer than {LONGEST_ROUTE}")));
            }
            self.options.route = String::from_utf8_lossy(route).into_owned();
            return Ok(());
        }
        let invalid = || d.invalid("parameter", word);
        self.option(text).ok_or_else(invalid)
    }

    fn option(&mut self, text: &[u8]) -> Option<()> {
        let options = &mut self.options;
        match text {
            b"backup" => options.backup = true,
            b"down" => (options.down, options.drain) = (true, false),
            b"drain" => (options.down, options.drain) = (false, true),
            b"resolve" => self.resolve = true,
            _ => {
                let at = memchr::memchr(b'=', text)?;
                let (name, value) = (&text[..at], &text[at + 1..]);
                match name {
                    b"weight" => options.weight = number(value).filter(|n| *n > 0)?,
                    b"max_conns" => options.max_conns = number(value)?,
                    b"max_fails" => options.max_fails = number(value)?,
                    b"fail_timeout" => {
                        options.fail_timeout = Duration::from_secs(values::sec(value)?);
                    }
                    b"slow_start" => {
                        options.slow_start = Duration::from_millis(values::msec(value)?);
                    }
                    _ => return None,
                }
            }
        }
        Some(())
    }
}

fn number(value: &[u8]) -> Option<u32> {
    values::number(value).and_then(|n| u32::try_from(n).ok())
}
