//! How a group chooses among its servers, and where it keeps what it knows of them: lines of `upstream { }`.

use weir_conf::{Directive, Error, Word, values};
use weir_values::{Reading, Subject};
use weir_zone::Declarations;

use super::groups::{Block, Key, Zoned};
use crate::balance::{
    Balance, Consistent, Hash, IpHash, LeastConn, LeastTime, Measure, Random, Two,
};

/// A method; a second one is warned of, as nginx does.
fn method<T>(
    block: &mut Block<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
    balance: Box<dyn Balance>,
    key: Key,
) -> Result<(), Error> {
    if block.balance.is_some() {
        warnings.push(d.warning("load balancing method redefined"));
    }
    (block.balance, block.key, block.plain) = (Some(balance), key, false);
    Ok(())
}

/// A method that has no use for backups and slow starts: servers of lines below may not ask for them.
fn plain_method<T>(
    block: &mut Block<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
    balance: Box<dyn Balance>,
    key: Key,
) -> Result<(), Error> {
    method(block, warnings, d, balance, key)?;
    block.plain = true;
    Ok(())
}

/// `hash KEY [consistent]`
pub fn hash<S: Subject, T>(
    s: &mut Reading<'_, S>,
    block: &mut Block<T>,
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
    plain_method(block, s.warnings, d, balance, Key::Value(key))
}

/// `ip_hash`
pub fn ip_hash<T>(
    block: &mut Block<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
) -> Result<(), Error> {
    plain_method(block, warnings, d, Box::new(IpHash), Key::Address)
}

/// `least_conn`
pub fn least_conn<T>(
    block: &mut Block<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
) -> Result<(), Error> {
    method(block, warnings, d, Box::new(LeastConn), Key::Nothing)
}

/// `least_time header | last_byte [inflight]`
pub fn least_time<T>(
    block: &mut Block<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
) -> Result<(), Error> {
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
    method(block, warnings, d, Box::new(LeastTime { measure, inflight }), Key::Nothing)
}

/// `random [two [METHOD]]`
pub fn random<T>(
    block: &mut Block<T>,
    warnings: &mut Vec<Error>,
    d: &Directive,
) -> Result<(), Error> {
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
    plain_method(block, warnings, d, Box::new(Random { two }), Key::Nothing)
}

/// nginx's slab allocator takes no less: eight pages.
const SMALLEST_ZONE: u64 = 8 * 4096;

/// `zone NAME [SIZE]`
pub fn zone<T>(block: &mut Block<T>, zones: &Declarations, d: &Directive) -> Result<(), Error> {
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
            Zoned::declare(zones, &name, bytes).map_err(|e| d.error(e))?
        }
    };
    block.zone = Some(zone);
    Ok(())
}
