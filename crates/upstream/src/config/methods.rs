//! Directives of `upstream { }` about the balancing method and the zone.

use std::ffi::OsStr;
use std::path::Path;

use weir_conf::{Directive, Error, Word, values};
use weir_values::{Reading, Subject};
use weir_zone::Declarations;

use super::groups::{GroupExtras, GroupZone, HashKey, UpstreamBlock};
use crate::balance::{
    Balance, Consistent, Hash, IpHash, LeastConn, LeastTime, Measure, Random, Two,
};

/// Sets the method. As in nginx, a method after another method, `sticky` or a script gives a
/// warning.
fn method<T: GroupExtras>(
    block: &mut UpstreamBlock<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
    balance: Box<dyn Balance>,
    key: HashKey,
) -> Result<(), Error> {
    if block.balance.is_some() || block.extras.binds() || block.extras.chooses() {
        warnings.push(d.warning("load balancing method redefined"));
    }
    (block.balance, block.key, block.plain) = (Some(balance), key, false);
    Ok(())
}

/// Sets a method without support for `backup` and `slow_start`. Later `server` lines may not have
/// them.
fn plain_method<T: GroupExtras>(
    block: &mut UpstreamBlock<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
    balance: Box<dyn Balance>,
    key: HashKey,
) -> Result<(), Error> {
    method(block, warnings, d, balance, key)?;
    block.plain = true;
    Ok(())
}

/// `hash KEY [consistent]`
pub fn hash<S: Subject, T: GroupExtras>(
    s: &mut Reading<'_, S>,
    block: &mut UpstreamBlock<T>,
    d: &Directive,
) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let key = s.template(d, word)?;
    let balance: Box<dyn Balance> = match d.args.get(1) {
        None => Box::new(Hash),
        Some(word) if word.is("consistent") => Box::new(Consistent::default()),
        Some(word) => {
            return Err(d.invalid("parameter", word));
        }
    };
    plain_method(block, s.warnings, d, balance, HashKey::Value(key))
}

/// `ip_hash`
pub fn ip_hash<T: GroupExtras>(
    block: &mut UpstreamBlock<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
) -> Result<(), Error> {
    plain_method(block, warnings, d, Box::new(IpHash), HashKey::Address)
}

/// `least_conn`
pub fn least_conn<T: GroupExtras>(
    block: &mut UpstreamBlock<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
) -> Result<(), Error> {
    method(block, warnings, d, Box::new(LeastConn), HashKey::Nothing)
}

/// The times that `least_time` can compare, by their names.
pub type Measures = &'static [(&'static str, Measure)];

/// Those of requests.
pub const OF_REQUESTS: Measures = &[("header", Measure::First), ("last_byte", Measure::Last)];
/// Those of sessions.
pub const OF_SESSIONS: Measures =
    &[("connect", Measure::Connect), ("first_byte", Measure::First), ("last_byte", Measure::Last)];

fn measure(measures: Measures, text: &[u8]) -> Option<Measure> {
    measures.iter().find(|(name, _)| name.as_bytes() == text).map(|(_, measure)| *measure)
}

/// `least_time MEASURE [inflight]`
pub fn least_time<T: GroupExtras>(
    block: &mut UpstreamBlock<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
    measures: Measures,
) -> Result<(), Error> {
    // nginx checks the second parameter first.
    let inflight = match d.args.get(1) {
        Some(w) if !w.is("inflight") => return Err(d.invalid("parameter", w)),
        word => word.is_some(),
    };
    let Some(word) = d.args.first() else { return Ok(()) };
    let invalid = || d.error_at(word, format!("invalid value \"{}\"", word.lossy()));
    let measure = measure(measures, &word.bytes).ok_or_else(invalid)?;
    method(block, warnings, d, Box::new(LeastTime { measure, inflight }), HashKey::Nothing)
}

/// `random [two [METHOD]]`
pub fn random<T: GroupExtras>(
    block: &mut UpstreamBlock<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
    measures: Measures,
) -> Result<(), Error> {
    let invalid = |w: &Word| d.invalid("parameter", w);
    let by = |text: &[u8]| {
        let measure = measure(measures, text.strip_prefix(b"least_time=")?)?;
        Some(Two::LeastTime(LeastTime { measure, inflight: false }))
    };
    let two = match d.args.as_slice() {
        [] => None,
        [two] if two.is("two") => Some(Two::LeastConn),
        [two, which] if two.is("two") => Some(match which.bytes.as_slice() {
            b"least_conn" => Two::LeastConn,
            text => by(text).ok_or_else(|| invalid(which))?,
        }),
        [word, ..] => return Err(invalid(word)),
    };
    plain_method(block, warnings, d, Box::new(Random { two }), HashKey::Nothing)
}

/// Eight pages, the least that nginx's slab allocator takes.
const SMALLEST_ZONE: u64 = 8 * 4096;

/// `zone NAME [SIZE]`
pub fn zone<T: GroupExtras>(
    block: &mut UpstreamBlock<T>,
    zones: &Declarations,
    d: &Directive,
) -> Result<(), Error> {
    let Some(word) = d.args.first() else { return Ok(()) };
    let name = word.lossy().into_owned();
    if name.is_empty() {
        return Err(d.error_at(word, format!("invalid zone name \"{name}\"")));
    }
    let zone = match d.args.get(1) {
        // Another upstream declares the size, before or after this one.
        None => GroupZone::Named(name),
        Some(size) => {
            let text = size.lossy();
            let bytes = values::size(&size.bytes);
            let bytes =
                bytes.ok_or_else(|| d.error_at(size, format!("invalid zone size \"{text}\"")))?;
            if bytes < SMALLEST_ZONE {
                return Err(d.error_at(size, format!("zone \"{name}\" is too small")));
            }
            GroupZone::declare::<T>(zones, &name, bytes).map_err(|e| d.error(e))?
        }
    };
    block.zone = Some(zone);
    Ok(())
}

/// `servers_file FILE`. `port` is the port of servers without one.
pub fn servers_file<T>(
    block: &mut UpstreamBlock<T>,
    prefix: &Path,
    port: u16,
    d: &Directive,
) -> Result<(), Error> {
    use std::os::unix::ffi::OsStrExt;
    let Some(word) = d.args.first().filter(|word| !word.bytes.is_empty()) else {
        return Err(d.problem("needs the name of a file"));
    };
    block.file = Some((prefix.join(OsStr::from_bytes(&word.bytes)), port));
    Ok(())
}
