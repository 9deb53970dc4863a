//! `upstream { }`: its servers, the method that chooses among them, what is kept of their connections.

use std::sync::Arc;
use std::time::Duration;

use weir_conf::{Directive, Error, Word, values};
use weir_upstream::balance::{
    Balance, Consistent, Hash, IpHash, LeastConn, LeastTime, Measure, Random, Two,
};

use super::server;
use crate::config::scope::{Scope, Set};
use crate::upstream::groups::{Block, Key, Queued, Zoned};
use weir_resolver::Conf as Resolver;

/// `upstream NAME { }`
pub fn upstream(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(name) = d.args.first() else { return Ok(()) };
    if s.setup.upstreams.is_defined(&name.bytes) {
        return Err(d.error_at(name, format!("duplicate upstream \"{}\"", name.lossy())));
    }
    let new = Block { name: name.lossy().into_owned(), ..Block::default() };
    let outer = s.setup.upstream.replace(new);
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
        "server" => server::server(s, line),
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
pub fn block<'s>(s: &'s mut Scope<'_, '_>, d: &Directive) -> Result<&'s mut Block, Error> {
    s.setup.upstream.as_mut().ok_or_else(|| d.problem("is not allowed here"))
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
    (block.balance, block.key, block.plain) = (Some(balance), key, false);
    Ok(())
}

/// A method that has no use for backups and slow starts: servers of lines below may not ask for them.
fn plain_method(
    s: &mut Scope<'_, '_>,
    d: &Directive,
    balance: Box<dyn Balance>,
    key: Key,
) -> Result<(), Error> {
    method(s, d, balance, key)?;
    block(s, d)?.plain = true;
    Ok(())
}

/// `hash KEY [consistent]`
pub fn hash(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let key = s.setup.template(d, word)?;
    let balance: Box<dyn Balance> = match d.args.get(1) {
        None => Box::new(Hash),
        Some(word) if word.is("consistent") => Box::new(Consistent::default()),
        Some(word) => {
            return Err(d.invalid("parameter", word));
        }
    };
    plain_method(s, d, balance, Key::Value(key))
}

/// `ip_hash`
pub fn ip_hash(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    plain_method(s, d, Box::new(IpHash), Key::Address)
}

/// `least_conn`
pub fn least_conn(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    method(s, d, Box::new(LeastConn), Key::Nothing)
}

/// `least_time header | last_byte [inflight]`
pub fn least_time(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let invalid = |w: &Word| d.invalid("parameter", w);
    let measure = match d.args.first() {
        Some(w) if w.is("header") => Measure::Header,
        Some(w) if w.is("last_byte") => Measure::LastByte,
        Some(w) => return Err(invalid(w)),
        None => return Ok(()),
    };
    let inflight = match d.args.get(1) {
        Some(w) if !w.is("inflight") => return Err(invalid(w)),
        word => word.is_some(),
    };
    method(s, d, Box::new(LeastTime { measure, inflight }), Key::Nothing)
}

/// `random [two [METHOD]]`
pub fn random(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let invalid = |w: &Word| d.invalid("parameter", w);
    let by = |measure| LeastTime { measure, inflight: false };
    let two = match d.args.as_slice() {
        [] => None,
        [two] if two.is("two") => Some(Two::LeastConn),
        [two, which] if two.is("two") => Some(match which.bytes.as_slice() {
            b"least_conn" => Two::LeastConn,
            b"least_time=header" => Two::LeastTime(by(Measure::Header)),
            b"least_time=last_byte" => Two::LeastTime(by(Measure::LastByte)),
            _ => return Err(invalid(which)),
        }),
        [word, ..] => return Err(invalid(word)),
    };
    plain_method(s, d, Box::new(Random { two }), Key::Nothing)
}

/// `keepalive CONNECTIONS [local]`
pub fn keepalive(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let n = values::number(&word.bytes).and_then(|n| usize::try_from(n).ok()).ok_or_else(|| {
        let text = format!("invalid value \"{}\" in \"keepalive\" directive", word.lossy());
        d.error_at(word, text)
    })?;
    if let Some(word) = d.args.get(1).filter(|w| !w.is("local")) {
        return Err(d.invalid("parameter", word));
    }
    let keepalive = &mut block(s, d)?.keepalive;
    (keepalive.idle, keepalive.local) = (n, d.args.len() > 1);
    Ok(())
}

/// nginx's slab allocator takes no less: eight pages.
const SMALLEST_ZONE: u64 = 8 * 4096;

/// `zone NAME [SIZE]`
pub fn zone(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let name = word.lossy().into_owned();
    if name.is_empty() {
        return Err(d.error_at(word, format!("invalid zone name \"{name}\"")));
    }
    let zone = match d.args.get(1) {
        // Another upstream says how large it is, above or below.
        None => Zoned::Named(name),
        Some(size) => {
            let text = size.lossy();
            let bytes = values::size(&size.bytes);
            let bytes =
                bytes.ok_or_else(|| d.error_at(size, format!("invalid zone size \"{text}\"")))?;
            if bytes < SMALLEST_ZONE {
                return Err(d.error_at(size, format!("zone \"{name}\" is too small")));
            }
            Zoned::declare(s.setup.inputs.zones, &name, bytes).map_err(|e| d.error(e))?
        }
    };
    block(s, d)?.zone = Some(zone);
    Ok(())
}

/// `sticky cookie | route | learn ...`
pub fn sticky(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    if block(s, d)?.sticky.is_some() {
        return Err(d.problem("is duplicate"));
    }
    let name = block(s, d)?.name.clone();
    let sticky = crate::upstream::sticky::read(s, d, &name)?;
    block(s, d)?.sticky = Some(sticky);
    Ok(())
}

/// `queue NUMBER [timeout=TIME]`
pub fn queue(s: &mut Scope<'_, '_>, d: &Directive) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let invalid = |w: &Word| d.invalid("parameter", w);
    let most = values::number(&word.bytes).and_then(|n| usize::try_from(n).ok());
    let mut queue = Queued::new(most.filter(|n| *n > 0).ok_or_else(|| invalid(word))?);
    if let Some(word) = d.args.get(1) {
        let time = word.bytes.strip_prefix(b"timeout=").and_then(values::msec);
        queue.timeout = Duration::from_millis(time.ok_or_else(|| invalid(word))?);
    }
    let block = block(s, d)?;
    if block.queue.replace(queue).is_some() {
        return Err(d.problem("is duplicate"));
    }
    Ok(())
}
