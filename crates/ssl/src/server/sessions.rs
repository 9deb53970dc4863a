//! `ssl_session_cache` and the keys of tickets.

use std::sync::Arc;

use weir_conf::{Directive as Line, Error, Word};
use weir_tls::{SessionCache, TicketSecret};
use weir_zone::{Declarations, Use};

use super::Conf;
use crate::files::KeyFiles;

/// The default size of OpenSSL's built-in cache, in sessions.
const BUILTIN: u64 = 20 * 1024;
/// The smallest zone that nginx accepts: eight pages.
const SMALLEST: u64 = 8 * 4096;

/// `ssl_session_cache off | none | [builtin[:size]] [shared:name:size]` in `block`.
pub fn cache(
    d: &Line,
    zones: &Declarations,
    block: &'static str,
) -> Result<Option<Arc<SessionCache>>, Error> {
    let mut cache = None;
    for word in &d.args {
        let text = word.lossy();
        let invalid = || d.error_at(word, format!("invalid session cache \"{text}\""));
        if let Some(rest) = text.strip_prefix("shared:") {
            cache = Some(shared(d, word, rest, (zones, block))?.ok_or_else(invalid)?);
            continue;
        }
        let builtin = match text.split_once(':') {
            None if text == "off" || text == "none" => continue,
            None if text == "builtin" => BUILTIN,
            Some(("builtin", n)) => n.parse::<u64>().map_err(|_| invalid())?,
            _ => return Err(invalid()),
        };
        if cache.is_none() {
            cache = Some(SessionCache::own(builtin));
        }
    }
    Ok(cache)
}

/// A cache in a zone, shared by all servers of the block that name the zone.
fn shared(
    d: &Line,
    word: &Word,
    rest: &str,
    (zones, block): (&Declarations, &'static str),
) -> Result<Option<Arc<SessionCache>>, Error> {
    let Some((name, size)) = rest.split_once(':').filter(|(name, _)| !name.is_empty()) else {
        return Ok(None);
    };
    let Some(size) = weir_conf::values::size(size.as_bytes()) else { return Ok(None) };
    if size < SMALLEST {
        return Err(d.error(format!("session cache \"{}\" is too small", word.lossy())));
    }
    let zone = zones.declare(name, size, Use { block, ..SessionCache::ZONE });
    zone.map(|zone| Some(SessionCache::shared(zone))).map_err(|text| d.error(text))
}

/// The cache for sessions, if there is one. With early data there always is one: a ticket that
/// holds its session could be replayed.
pub fn session_cache(conf: &Conf) -> Option<Arc<SessionCache>> {
    let needed = conf.early_data && conf.tickets;
    conf.cache.clone().or_else(|| needed.then(|| SessionCache::own(BUILTIN)))
}

/// The keys of tickets, if tickets hold sessions.
pub fn tickets(conf: &Conf, files: &mut KeyFiles) -> Result<Option<TicketSecret>, Error> {
    let keys = ticket_keys(conf, files)?;
    if !conf.tickets || conf.early_data {
        return Ok(None);
    }
    if conf.ticket_keys.is_empty() {
        let secret = TicketSecret::rotating(conf.session_timeout);
        let none = || Error::emerg("there are no random bytes for the keys of session tickets");
        return secret.map(Some).ok_or_else(none);
    }
    Ok(Some(TicketSecret::Fixed(keys)))
}

/// The keys of `ssl_session_ticket_key`. They are read even if no tickets are issued.
fn ticket_keys(conf: &Conf, files: &mut KeyFiles) -> Result<Vec<Vec<u8>>, Error> {
    let mut keys = Vec::new();
    for file in &conf.ticket_keys {
        let key = files.read(&file.name);
        let name = files.shown(&file.name);
        let key =
            key.map_err(|error| file.at.error(format!("open() \"{name}\" failed {error}")))?;
        if !matches!(key.len(), 48 | 80) {
            let text = format!("\"{name}\" must be 48 or 80 bytes");
            return Err(file.at.error(text));
        }
        keys.push(key.to_vec());
    }
    Ok(keys)
}
