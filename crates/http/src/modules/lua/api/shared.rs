//! `ngx.shared`.

use weir_sys::lua::direct::{Answer, Passed};
use weir_zone::{End, ZoneRef};

use super::natives::{AnswerKind, Natives, borrowed};
use crate::modules::lua::current;
use crate::modules::lua::dict::{self, Dict, DictError, Kind, NewValue, ReadValue, StoreMode};

/// Added to the flags of an expired value. It is above all flags.
const STALE: f64 = 8_589_934_592.0;

/// Adds the functions of this part. The prelude passes the dictionary's number first, and the key
/// as the first text.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    let names = current::scripts()
        .into_iter()
        .flat_map(|scripts| &scripts.dicts)
        .map(|zone| zone.name().to_owned());
    let names: Vec<String> = names.collect();
    natives.constant("dicts", names)?;
    // A text in the answer, or the value itself, with the flags.
    natives.direct("dict_get", |passed, answer| {
        let found = direct(passed, |dict| Ok(dict.read(passed.first, answer.text())))?;
        let Some(ReadValue { kind, flags }) = found else { return Ok(AnswerKind::Nil) };
        answer.other = f64::from(flags as i32);
        given(kind, answer)
    })?;
    // The same, with `STALE` added to the flags of an expired value.
    natives.direct("dict_get_stale", |passed, answer| {
        let found = direct(passed, |dict| Ok(dict.read_stale(passed.first, answer.text())))?;
        let Some((ReadValue { kind, flags }, stale)) = found else { return Ok(AnswerKind::Nil) };
        answer.other = f64::from(flags as i32) + if stale { STALE } else { 0.0 };
        given(kind, answer)
    })?;
    natives.constant("STALE", STALE)?;
    storing(natives)?;
    lists(natives)?;
    whole(natives)
}

/// The answer for a value that was read. Its text is in the answer already.
fn given(kind: Kind, answer: &mut Answer) -> Result<AnswerKind, DictError> {
    Ok(match kind {
        Kind::Text => AnswerKind::Text,
        Kind::Boolean(value) => value.into(),
        Kind::Number(number) => {
            answer.number = number;
            AnswerKind::Number
        }
        Kind::List => return Err("value is a list"),
    })
}

fn storing(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.direct("dict_set", |passed, answer| store(passed, answer, StoreMode::Set, true))?;
    natives
        .direct("dict_safe_set", |passed, answer| store(passed, answer, StoreMode::Set, false))?;
    natives.direct("dict_add", |passed, answer| store(passed, answer, StoreMode::Add, true))?;
    natives
        .direct("dict_safe_add", |passed, answer| store(passed, answer, StoreMode::Add, false))?;
    natives
        .direct("dict_replace", |passed, answer| store(passed, answer, StoreMode::Replace, true))?;
    // The increment, whether there is an initial number, that number, and its time to live.
    natives.direct("dict_incr", |passed, answer| {
        let [_, by, has_init, init, ttl] = passed.numbers;
        let init = (has_init != 0.0).then(|| (init, millis(ttl)));
        let (sum, forcible) = direct(passed, |dict| dict.increase(passed.first, by, init))?;
        (answer.number, answer.other) = (sum, f64::from(u8::from(forcible)));
        Ok::<_, DictError>(AnswerKind::Number)
    })
}

/// Stores a value. The arguments are the time to live, the flags, the kind of value, and the value
/// unless it is a text. The answer's number says whether others were evicted.
fn store(
    passed: &Passed<'_>,
    answer: &mut Answer,
    how: StoreMode,
    force: bool,
) -> Result<AnswerKind, DictError> {
    let [_, ttl, flags, kind, number] = passed.numbers;
    let forcible = direct(passed, |dict| {
        if kind == 0.0 && how == StoreMode::Set {
            dict.remove(passed.first);
            return Ok(false);
        }
        let value = new_value(passed, kind, number)?;
        dict.store(passed.first, (value, flags as u32), millis(ttl), (how, force))
    })?;
    answer.number = f64::from(u8::from(forcible));
    Ok(AnswerKind::True)
}

/// The value to store, by its kind.
fn new_value<'p>(passed: &Passed<'p>, kind: f64, number: f64) -> Result<NewValue<'p>, DictError> {
    match kind as i32 {
        0 => Err("attempt to add or replace nil values"),
        1 => Ok(NewValue::Boolean(number != 0.0)),
        2 => Ok(NewValue::Number(number)),
        3 => Ok(NewValue::Text(passed.second)),
        _ => Err("bad value type"),
    }
}

fn lists(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.direct("dict_lpush", |passed, answer| push(passed, answer, End::First))?;
    natives.direct("dict_rpush", |passed, answer| push(passed, answer, End::Last))?;
    natives.direct("dict_lpop", |passed, answer| pop(passed, answer, End::First))?;
    natives.direct("dict_rpop", |passed, answer| pop(passed, answer, End::Last))?;
    natives.direct("dict_llen", |passed, answer| {
        let length = direct(passed, |dict| dict.list_length(passed.first))?;
        answer.number = length as f64;
        Ok::<_, DictError>(AnswerKind::Number)
    })
}

fn push(passed: &Passed<'_>, answer: &mut Answer, end: End) -> Result<AnswerKind, DictError> {
    let [_, kind, number, ..] = passed.numbers;
    let length =
        direct(passed, |dict| dict.push(passed.first, new_value(passed, kind, number)?, end))?;
    answer.number = length as f64;
    Ok(AnswerKind::Number)
}

fn pop(passed: &Passed<'_>, answer: &mut Answer, end: End) -> Result<AnswerKind, DictError> {
    let popped = direct(passed, |dict| dict.pop(passed.first, end, answer.text()))?;
    popped.map_or(Ok(AnswerKind::Nil), |kind| given(kind, answer))
}

/// Functions about a key's time to live, or about the whole dictionary.
fn whole(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.direct("dict_ttl", |passed, answer| {
        let left = direct(passed, |dict| dict.left(passed.first).ok_or("not found"))?;
        answer.number = left as f64 / 1000.0;
        Ok::<_, DictError>(AnswerKind::Number)
    })?;
    natives.direct("dict_expire", |passed, _| {
        let [_, ttl, ..] = passed.numbers;
        direct(passed, |dict| match dict.expire(passed.first, millis(ttl)) {
            true => Ok(AnswerKind::True),
            false => Err("not found"),
        })
    })?;
    natives.add("dict_keys", |lua, (at, most): (usize, Option<usize>)| {
        let keys = open(at, |dict| dict.keys(most.unwrap_or(1024))).unwrap_or_default();
        lua.create_sequence_from(keys.iter().map(|key| borrowed(key)))
    })?;
    natives.add("dict_flush_all", |_, at: usize| {
        open(at, |dict| dict.clear());
    })?;
    natives.add("dict_flush_expired", |_, (at, most): (usize, Option<usize>)| {
        open(at, |dict| dict.clear_stale(most.unwrap_or(0)))
    })?;
    natives.add("dict_capacity", |_, at: usize| zone(at, ZoneRef::size))?;
    natives.add("dict_free_space", |_, at: usize| open(at, |dict| dict.free()))
}

fn zone<T>(at: usize, f: impl FnOnce(&ZoneRef) -> T) -> Option<T> {
    current::scripts()?.dicts.get(at).map(f)
}

fn open<T>(at: usize, f: impl FnOnce(&mut Dict<'_>) -> T) -> Option<T> {
    let zone = current::scripts()?.dicts.get(at)?.get()?;
    let now = zone.msec(current::now());
    Some(f(&mut Dict::new(zone.lock(), now)))
}

/// Calls `f` with the dictionary whose number is the first argument, if the first text is a valid
/// key.
fn direct<T>(
    passed: &Passed<'_>,
    f: impl FnOnce(&mut Dict<'_>) -> Result<T, DictError>,
) -> Result<T, DictError> {
    let [at, ..] = passed.numbers;
    dict::check(passed.first)?;
    open(at as usize, f).unwrap_or(Err("no such dictionary"))
}

/// Milliseconds of a script's seconds. A positive time is at least one millisecond.
fn millis(seconds: f64) -> u64 {
    if seconds > 0.0 { ((seconds * 1000.0) as u64).max(1) } else { 0 }
}
