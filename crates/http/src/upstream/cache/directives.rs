//! The directives of [`Caching`](super::conf::Caching): `proxy_cache`, `fastcgi_cache` ...

use std::sync::Arc;

use weir_conf::{Directive as Line, Error, Word, values};
use weir_proto::http1::Method;
use weir_upstream::Failures;

use super::conf::{Purge, PurgeMethod, Rules, Zone};
use super::purge_location;
use crate::config::scope::Scope;
pub use crate::config::scope::Spot;
use crate::site::location::Kind;
use weir_values::{Cidr, Template};

/// `..._cache NAME | off`
pub fn zone(s: &mut Scope<'_, '_>, d: &Line) -> Result<Zone, Error> {
    let Some(word) = d.args.first() else { return Ok(Zone::Off) };
    if word.is("off") {
        return Ok(Zone::Off);
    }
    let value = s.setup.template(d, word)?;
    if value.constant().is_none() {
        return Ok(Zone::Computed(value));
    }
    Ok(Zone::Named(word.lossy().into_owned(), Spot::new(d, word)))
}

/// Values of a condition that holds if one of them is true.
pub fn predicates(s: &mut Scope<'_, '_>, d: &Line) -> Result<Vec<Template>, Error> {
    d.args.iter().map(|word| s.setup.template(d, word)).collect()
}

/// `..._cache_valid [status ...] time`
pub fn valid(d: &Line) -> Result<Vec<(u16, i64)>, Error> {
    let Some((time, statuses)) = d.args.split_last() else { return Ok(Vec::new()) };
    let seconds = values::sec(&time.bytes).and_then(|n| i64::try_from(n).ok());
    let seconds = seconds.ok_or_else(|| d.invalid("time value", time))?;
    if statuses.is_empty() {
        return Ok([200, 301, 302].map(|status| (status, seconds)).to_vec());
    }
    let read = |word: &weir_conf::Word| {
        if word.is("any") {
            return Ok((0, seconds));
        }
        let status = values::number(&word.bytes).filter(|n| (100..=599).contains(n));
        let status = status.ok_or_else(|| d.invalid("status", word))?;
        Ok((status as u16, seconds))
    };
    statuses.iter().map(read).collect()
}

/// `..._cache_methods`: GET and HEAD are always among them.
pub fn methods(d: &Line) -> Vec<Method> {
    let mut methods = vec![Method::Get, Method::Head];
    if d.args.iter().any(|word| word.bytes.eq_ignore_ascii_case(b"POST")) {
        methods.push(Method::Post);
    }
    methods
}

/// `..._cache_rules nginx | rfc9111`
pub fn rules(d: &Line) -> Result<Rules, Error> {
    match d.args.as_slice() {
        [word] if word.is("nginx") => Ok(Rules::Nginx),
        [word] if word.is("rfc9111") => Ok(Rules::Rfc9111),
        [word, ..] => Err(d.invalid("value", word)),
        [] => Ok(Rules::Nginx),
    }
}

/// `..._cache_control_field NAME | off`
pub fn control_field(d: &Line) -> Result<Option<Vec<u8>>, Error> {
    let Some(word) = d.args.first().filter(|word| !word.is("off")) else { return Ok(None) };
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    if word.bytes.is_empty() || !word.bytes.iter().all(token) {
        return Err(d.invalid("field name", word));
    }
    Ok(Some(word.bytes.to_ascii_lowercase()))
}

/// `..._cache_status_field NAME | off`. The name becomes a token if it can, else a string (RFC
/// 9211, section 2).
pub fn status_field(d: &Line) -> Result<Option<Vec<u8>>, Error> {
    let Some(word) = d.args.first().filter(|word| !word.is("off")) else { return Ok(None) };
    if word.bytes.is_empty() || !word.bytes.iter().all(|b| (b' '..=b'~').contains(b)) {
        return Err(d.invalid("cache name", word));
    }
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(b);
    let begins = word.bytes.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'*');
    if begins && word.bytes.iter().all(token) {
        return Ok(Some(word.bytes.clone()));
    }
    let mut text = vec![b'"'];
    for byte in &word.bytes {
        if matches!(byte, b'"' | b'\\') {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text.push(b'"');
    Ok(Some(text))
}

/// The words of `..._cache_use_stale`.
pub fn stale_failures(d: &Line) -> (Failures, bool) {
    let has = |text: &str| d.args.iter().any(|word| word.is(text));
    let updating = has("updating") && !has("off");
    (crate::upstream::passing::failures(d), updating)
}

/// `..._cache_purge` in one of its forms. `None` for the form that makes the location purge and
/// nothing else. A first word with variables is a condition: no other form begins with one.
pub fn purge(s: &mut Scope<'_, '_>, d: &Line, name: &str) -> Result<Option<Purge>, Error> {
    let [first, more @ ..] = d.args.as_slice() else { return Ok(None) };
    if s.setup.template(d, first)?.constant().is_none() {
        return predicates(s, d).map(|values| Some(Purge::If(values)));
    }
    let from = match more {
        [] if first.is("off") => return Ok(Some(Purge::Never)),
        [] => None,
        [key] => {
            if matches!(s.place.kind, Kind::Server) {
                return Err(d.problem("(separate location syntax) is not allowed here"));
            }
            purge_location::set(s, d, first, key, name)?;
            return Ok(None);
        }
        [from, who @ ..] if from.is("from") => addresses(d, who)?,
        [other, ..] => return Err(d.invalid("parameter", other)),
    };
    let name = if first.is("on") { b"PURGE".to_vec() } else { first.bytes.clone() };
    Ok(Some(Purge::By(Arc::new(PurgeMethod { name, from }))))
}

fn addresses(d: &Line, words: &[Word]) -> Result<Option<Vec<Cidr>>, Error> {
    if words.first().is_some_and(|word| word.is("all")) {
        return Ok(None);
    }
    let read = |word: &Word| match Cidr::parse(&word.bytes) {
        Some((cidr, _)) => Ok(cidr),
        None => Err(d.invalid("parameter", word)),
    };
    words.iter().map(read).collect::<Result<_, _>>().map(Some)
}

/// The directives that set a module's [`Caching`]: `cache_directives!(proxy, "proxy_")` for a
/// module with settings that have a field `passing`.
macro_rules! cache_directives {
    ($key:ident, $prefix:literal) => {{
        use weir_conf::Directive as Line;

        use $crate::upstream::cache::directives;
        use $crate::upstream::cache::{Caching, Zone};
        use $crate::config::scope::Scope;
        use $crate::config::table::table;

        const STORE: &str = concat!($prefix, "store");
        const CONFLICT: &str = concat!("is incompatible with \"", $prefix, "store\"");
        fn settings<'s>(s: &'s mut Scope<'_, '_>) -> &'s mut Caching {
            let passing = &mut $key.change(&mut s.location).passing;
            std::sync::Arc::make_mut(&mut passing.caching)
        }
        table! { $prefix, settings:
            "cache_path": line(|s, d| $crate::upstream::cache::set_path(s, d, concat!($prefix, "cache"))),
                "A directory of answers that are kept, with its index and its limits.";
            "cache": once(|s, d| {
                let zone = directives::zone(s, d)?;
                let same_block = s.has_seen(STORE);
                let passing = &mut $key.change(&mut s.location).passing;
                if !matches!(zone, Zone::Off) && passing.store.is_some() {
                    if same_block {
                        return Err(d.problem(CONFLICT));
                    }
                    // A `..._store` of the enclosing block is replaced by the cache.
                    passing.store = None;
                }
                let caching = settings(s);
                caching.zone = zone;
                caching.at = d.args.first().map(|word| directives::Spot::new(d, word));
                Ok(())
            }), "The cache that answers are kept in.";
            "cache_key": scoped(key, |s, d| Ok(directives::predicates(s, d)?.pop())),
                "The key of a stored answer.";
            "cache_valid": list(valid, |_, d| directives::valid(d)),
                "How long answers without a lifetime of their own are valid.";
            "cache_bypass": list(bypass, directives::predicates),
                "The request bypasses the cache if a value is neither empty nor 0.";
            "no_cache": list(no_cache, directives::predicates),
                "The answer is not stored if a value is neither empty nor 0.";
            "cache_purge": line(|s, d| {
                let first = s.first(d);
                if let Some(purge) = directives::purge(s, d, concat!($prefix, "cache"))? {
                    settings(s).purge.add(d, purge, first)?;
                }
                Ok(())
            }), "A request for which a value is neither empty nor 0 removes the answer of its key; `*` at a key's \
                 end: all keys with that prefix. Or `METHOD [from ADDRESS ...]`, and in a location `ZONE KEY`, as in ngx_cache_purge.";
            "cache_methods": value(methods, |d| Ok(directives::methods(d))),
                "Methods with answers that are kept.";
            "cache_min_uses": value(min_uses, Line::number),
                "How many requests an answer needs before it is stored.";
            "cache_max_range_offset": value(max_range_offset, |d| d.offset().map(Some)),
                "Ranges that begin after this offset go to the server, and are not stored.";
            "cache_use_stale": once(|s, d| {
                let (failures, updating) = directives::stale_failures(d);
                let caching = settings(s);
                (caching.use_stale, caching.stale_while_updating) = (failures, updating);
                Ok(())
            }), "Failures after which an expired answer is sent.";
            "cache_lock": value(lock, Line::flag),
                "Whether only one of several requests for a key asks the server.";
            "cache_lock_timeout": value(lock_timeout, Line::duration),
                "How long other requests wait for that one.";
            "cache_lock_age": value(lock_age, Line::duration),
                "After this time another waiting request asks the server, too.";
            "cache_revalidate": value(revalidate, Line::flag),
                "Whether expired answers are revalidated by conditional requests.";
            "cache_convert_head": value(convert_head, Line::flag),
                "Whether HEAD is passed as GET.";
            "cache_memory": value(memory, Line::size),
                "How much memory each worker spends on small answers that are asked for often; 0: none.";
            "cache_rules": value(rules, directives::rules),
                "Whether answers are stored and sent by nginx's rules or by those of RFC 9111.";
            "cache_control_field": value(control_field, directives::control_field),
                "A field for this cache alone, which stands for `Cache-Control` and `CDN-Cache-Control` (RFC 9213).";
            "cache_status_field": value(status_field, directives::status_field),
                "The name under which the field `Cache-Status` says what the cache did (RFC 9211).";
            "cache_background_update": value(background_update, Line::flag),
                "Whether an expired answer is sent while it is updated.";
        }
    }};
}
pub(crate) use cache_directives;
