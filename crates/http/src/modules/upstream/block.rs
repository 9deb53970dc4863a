//! `upstream { }`: its servers, the method that chooses among them, what is kept of their connections.

use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Directive, Error, Word, values};
use weir_upstream::balance::{
    Balance, Consistent, Hash, IpHash, LeastConn, LeastTime, Measure, Random, Two,
};
use weir_upstream::{Options, Peer};

use super::dynamic::Named;
use super::groups::{Block, Key};
use super::url::Url;
use crate::modules::core::Resolver;
use crate::scope::{Scope, Set};
use crate::template::Template;

/// `upstream NAME { }`
pub fn upstream(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(name) = d.args.first() else { return Ok(()) };
    if s.setup.upstreams.is_defined(&name.bytes) {
        return Err(d.error_at(name, format!("duplicate upstream \"{}\"", name.lossy())));
    }
    let outer = s.setup.upstream.replace(Block::default());
    for line in d.block() {
        read(s, line)?;
    }
    let block = std::mem::replace(&mut s.setup.upstream, outer).unwrap_or_default();
    if block.peers.is_empty() && block.named.is_empty() {
        return Err(Error::emerg("no servers are inside upstream").at(d.close).mark(name.pos));
    }
    s.setup.upstreams.define(d, name, block)
}

fn read(s: &mut Scope<'_, '_>, line: &Directive) -> Result<(), Error> {
    let name = line.name.lossy();
    match &*name {
        // These names mean something else outside.
        "server" => server(s, line),
        "keepalive_requests" => {
            block(s, line)?.keepalive.requests = line.number()?;
            Ok(())
        }
        "keepalive_time" => {
            block(s, line)?.keepalive.time = line.duration()?;
            Ok(())
        }
        "keepalive_timeout" => {
            block(s, line)?.keepalive.timeout = line.duration()?;
            Ok(())
        }
        "resolver" => {
            block(s, line)?.resolver = Some(Arc::new(Resolver::read(line)?));
            Ok(())
        }
        "resolver_timeout" => {
            block(s, line)?.resolver_timeout = Some(line.duration()?);
            Ok(())
        }
        _ => match crate::modules::directive(&name).map(|d| d.set) {
            Some(Set::Simple(set)) => set(s, line),
            _ => Err(line.error(format!("unknown directive \"{name}\""))),
        },
    }
}

/// The block that is being read. Directives that call this stand nowhere else, which the check has seen to.
fn block<'s>(s: &'s mut Scope<'_, '_>, d: &Directive) -> Result<&'s mut Block, Error> {
    s.setup.upstream.as_mut().ok_or_else(|| d.problem("is not allowed here"))
}

/// `server ADDRESS [parameter]...`
fn server(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(address) = d.args.first() else { return Ok(()) };
    let (mut options, mut resolve, mut service) = (Options::default(), false, None);
    for word in d.args.iter().skip(1) {
        match word.bytes.strip_prefix(b"service=") {
            Some(b"") => return Err(d.error_at(word, "service is empty")),
            Some(name) => service = Some(String::from_utf8_lossy(name).into_owned()),
            None if word.is("resolve") => resolve = true,
            None => parameter(&mut options, word).ok_or_else(|| {
                d.error_at(word, format!("invalid parameter \"{}\"", word.lossy()))
            })?,
        }
    }
    let name = address.lossy().into_owned();
    if service.is_some() && !resolve {
        let text = format!("service upstream \"{name}\" requires \"resolve\" parameter");
        return Err(d.error_at(address, text));
    }
    let wrong = |e| d.error_at(address, format!("{e} in upstream \"{name}\""));
    let url = Url::parse(&address.bytes, false).map_err(wrong)?;
    if service.is_some() && url.port.is_some() {
        let text = format!("service upstream \"{name}\" may not have port");
        return Err(d.error_at(address, text));
    }
    if service.is_some() && url.address.is_some() {
        let text = format!("service upstream \"{name}\" requires domain name");
        return Err(d.error_at(address, text));
    }
    if resolve && url.address.is_none() {
        let host = String::from_utf8_lossy(&url.host).into_owned();
        let port = url.port.unwrap_or(80);
        let named = Named { host, port, service, server: name, options };
        block(s, d)?.named.push(named);
        return Ok(());
    }
    let endpoints = url.endpoints(80).map_err(wrong)?;
    let block = block(s, d)?;
    for endpoint in endpoints {
        block.peers.push(Arc::new(Peer::new(endpoint, name.clone(), options.clone())));
    }
    Ok(())
}

fn parameter(options: &mut Options, word: &Word) -> Option<()> {
    let text = word.bytes.as_slice();
    let number = |value: &[u8]| values::number(value).and_then(|n| u32::try_from(n).ok());
    match text {
        b"backup" => options.backup = true,
        b"down" => options.down = true,
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
                _ => return None,
            }
        }
    }
    Some(())
}

/// A method; a second one is warned of, as nginx does.
fn method(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    balance: Box<dyn Balance>,
    key: Key,
) -> Result<(), Error> {
    let again = block(s, d)?.balance.is_some();
    if again {
        s.setup.warnings.push(d.warning("load balancing method redefined"));
    }
    let block = block(s, d)?;
    (block.balance, block.key) = (Some(balance), key);
    Ok(())
}

/// `hash KEY [consistent]`
pub fn hash(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let key =
        Template::new(&mut s.setup.variables, &word.bytes).map_err(|e| d.error_at(word, e))?;
    let balance: Box<dyn Balance> = match d.args.get(1) {
        None => Box::new(Hash),
        Some(word) if word.is("consistent") => Box::new(Consistent::default()),
        Some(word) => {
            return Err(d.error_at(word, format!("invalid parameter \"{}\"", word.lossy())));
        }
    };
    method(s, d, balance, Key::Value(key))
}

/// `ip_hash`
pub fn ip_hash(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    method(s, d, Box::new(IpHash), Key::Address)
}

/// `least_conn`
pub fn least_conn(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    method(s, d, Box::new(LeastConn), Key::Nothing)
}

/// `least_time header | last_byte [inflight]`
pub fn least_time(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let invalid = |w: &Word| d.error_at(w, format!("invalid parameter \"{}\"", w.lossy()));
    let measure = match d.args.first() {
        Some(w) if w.is("header") => Measure::Header,
        Some(w) if w.is("last_byte") => Measure::LastByte,
        Some(w) => return Err(invalid(w)),
        None => return Ok(()),
    };
    if let Some(w) = d.args.get(1).filter(|w| !w.is("inflight")) {
        return Err(invalid(w));
    }
    method(s, d, Box::new(LeastTime { measure }), Key::Nothing)
}

/// `random [two [METHOD]]`
pub fn random(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let invalid = |w: &Word| d.error_at(w, format!("invalid parameter \"{}\"", w.lossy()));
    let two = match d.args.as_slice() {
        [] => None,
        [two] if two.is("two") => Some(Two::LeastConn),
        [two, which] if two.is("two") => Some(match which.bytes.as_slice() {
            b"least_conn" => Two::LeastConn,
            b"least_time=header" => Two::LeastTimeHeader,
            b"least_time=last_byte" => Two::LeastTimeLastByte,
            _ => return Err(invalid(which)),
        }),
        [word, ..] => return Err(invalid(word)),
    };
    method(s, d, Box::new(Random { two }), Key::Nothing)
}

/// `keepalive CONNECTIONS [local]`
pub fn keepalive(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let n = values::number(&word.bytes).and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
        let text = format!("invalid value \"{}\" in \"keepalive\" directive", word.lossy());
        d.error_at(word, text)
    })?;
    if let Some(word) = d.args.get(1).filter(|w| !w.is("local")) {
        return Err(d.error_at(word, format!("invalid parameter \"{}\"", word.lossy())));
    }
    block(s, d)?.keepalive.idle = n;
    Ok(())
}

/// `zone NAME [SIZE]`: the loops of a worker share the peers' state in any case.
pub fn zone(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(name) = d.args.first() else { return Ok(()) };
    if name.bytes.is_empty() {
        return Err(d.error_at(name, format!("invalid zone name \"{}\"", name.lossy())));
    }
    if let Some(size) = d.args.get(1) {
        let text = size.lossy();
        let bytes = values::size(&size.bytes);
        let bytes =
            bytes.ok_or_else(|| d.error_at(size, format!("invalid zone size \"{text}\"")))?;
        if bytes < 8 * 4096 {
            return Err(d.error_at(size, format!("zone \"{}\" is too small", name.lossy())));
        }
    }
    block(s, d)?.zone = true;
    Ok(())
}
