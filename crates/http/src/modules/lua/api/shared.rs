//! `ngx.shared`.

use mlua::{BString, Either, Lua, MultiValue, Value};
use weir_sys::lua::direct::{Answer, Passed};
use weir_zone::ZoneRef;

use super::natives::{Given, Natives, borrowed};
use crate::modules::lua::current;
use crate::modules::lua::dict::{
    self, Dict, DictError, How, Kind, NewValue, ReadValue, Value as Stored,
};
use crate::modules::lua::wish::failure;

/// A key: a string, or a number as one; anything else is none.
type DictKey = Either<BString, Value>;

/// Adds the functions of this part. The prelude passes each its dictionary's number and the key first.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    let names = current::scripts()
        .into_iter()
        .flat_map(|scripts| &scripts.dicts)
        .map(|zone| zone.name().to_owned());
    let names: Vec<String> = names.collect();
    natives.constant("dicts", names)?;
    // A text or the value itself; flags come with it.
    natives.direct("dict_get", |passed, answer| {
        let found = direct(passed, |dict| Ok(dict.read(passed.first, answer.text())))?;
        let Some(ReadValue { kind, flags }) = found else { return Ok(Given::Nil) };
        answer.other = f64::from(flags as i32);
        Ok(match kind {
            Kind::Text => Given::Text,
            Kind::Boolean(value) => value.into(),
            Kind::Number(number) => {
                answer.number = number;
                Given::Number
            }
            Kind::List => return Err("value is a list"),
        })
    })?;
    natives.add("dict_get_stale", |lua, (at, key): (usize, DictKey)| {
        answer(lua, with(at, &key, |dict, key| Ok(dict.get(key))), |lua, found| {
            let Some(found) = found else { return Ok(nil()) };
            values(lua, &found.value, [flags(found.flags), Value::Boolean(found.stale)])
        })
    })?;
    storing(natives)?;
    lists(natives)?;
    whole(natives)
}

fn storing(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.direct("dict_set", |passed, answer| store(passed, answer, How::Set, true))?;
    natives.direct("dict_safe_set", |passed, answer| store(passed, answer, How::Set, false))?;
    natives.direct("dict_add", |passed, answer| store(passed, answer, How::Add, true))?;
    natives.direct("dict_safe_add", |passed, answer| store(passed, answer, How::Add, false))?;
    natives.direct("dict_replace", |passed, answer| store(passed, answer, How::Replace, true))?;
    // By how much, whether there is a beginning, that, and how long it lives.
    natives.direct("dict_incr", |passed, answer| {
        let [_, by, has_init, init, ttl] = passed.numbers;
        let init = (has_init != 0.0).then(|| (init, millis(Some(ttl))));
        let (sum, forcible) = direct(passed, |dict| dict.increase(passed.first, by, init))?;
        (answer.number, answer.other) = (sum, f64::from(u8::from(forcible)));
        Ok::<_, DictError>(Given::Number)
    })
}

/// Stores a value: a time to live, flags, which kind of value it is, and the value where it is no text. The answer's number
/// says whether others had to make room.
fn store(
    passed: &Passed<'_>,
    answer: &mut Answer,
    how: How,
    force: bool,
) -> Result<Given, DictError> {
    let [_, ttl, flags, kind, number] = passed.numbers;
    let forcible = direct(passed, |dict| {
        let value = match kind as i32 {
            0 if how == How::Set => {
                dict.remove(passed.first);
                return Ok(false);
            }
            0 => return Err("attempt to add or replace nil values"),
            1 => NewValue::Boolean(number != 0.0),
            2 => NewValue::Number(number),
            3 => NewValue::Text(passed.second),
            _ => return Err("bad value type"),
        };
        dict.store(passed.first, (value, flags as u32), millis(Some(ttl)), (how, force))
    })?;
    answer.number = f64::from(u8::from(forcible));
    Ok(Given::True)
}

fn lists(natives: &Natives<'_>) -> mlua::Result<()> {
    for (name, left) in [("dict_lpush", true), ("dict_rpush", false)] {
        natives.add(name, move |_, (at, key, value): (usize, DictKey, Value)| {
            let pushed = with(at, &key, |dict, key| {
                let value = match stored(&value)? {
                    Some(value @ (Stored::Text(_) | Stored::Number(_))) => value,
                    _ => return Err("bad value type"),
                };
                dict.with_list(key, true, |list| {
                    list.insert(if left { 0 } else { list.len() }, value);
                    list.len()
                })
            });
            (pushed.unwrap_or_default(), pushed.err())
        })?;
    }
    for (name, left) in [("dict_lpop", true), ("dict_rpop", false)] {
        natives.add(name, move |lua, (at, key): (usize, DictKey)| {
            let popped = with(at, &key, |dict, key| {
                dict.with_list(key, false, |list| match left {
                    true if !list.is_empty() => Some(list.remove(0)),
                    _ => list.pop(),
                })
            });
            answer(lua, popped, |lua, popped| match popped.flatten() {
                Some(value) => values(lua, &value, []),
                None => Ok(nil()),
            })
        })?;
    }
    natives.add("dict_llen", |_, (at, key): (usize, DictKey)| {
        match with(at, &key, |dict, key| dict.with_list(key, false, |list| list.len())) {
            Ok(length) => (Some(length.unwrap_or(0)), None),
            Err(refused) => (None, Some(refused)),
        }
    })
}

/// What is asked of a key's time, or of the dictionary as a whole.
fn whole(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add("dict_ttl", |_, (at, key): (usize, DictKey)| {
        match with(at, &key, |dict, key| dict.left(key).ok_or("not found")) {
            Ok(left) => (Some(left as f64 / 1000.0), None),
            Err(refused) => (None, Some(refused)),
        }
    })?;
    natives.add("dict_expire", |_, (at, key, ttl): (usize, DictKey, f64)| {
        let done = with(at, &key, |dict, key| {
            dict.expire(key, millis(Some(ttl))).then_some(()).ok_or("not found")
        });
        (done.is_ok(), done.err())
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

/// What `f` does with the dictionary whose number comes first, if the first text can be a key of it.
fn direct<T>(
    passed: &Passed<'_>,
    f: impl FnOnce(&mut Dict<'_>) -> Result<T, DictError>,
) -> Result<T, DictError> {
    let [at, ..] = passed.numbers;
    dict::check(passed.first)?;
    open(at as usize, f).unwrap_or(Err("no such dictionary"))
}

fn with<T>(
    at: usize,
    key: &DictKey,
    f: impl FnOnce(&mut Dict<'_>, &[u8]) -> Result<T, DictError>,
) -> Result<T, DictError> {
    let key = match key {
        Either::Left(key) => key,
        Either::Right(Value::Nil) => return Err("nil key"),
        Either::Right(_) => return Err("bad key type"),
    };
    dict::check(key)?;
    open(at, |dict| f(dict, key)).unwrap_or(Err("no such dictionary"))
}

/// Values, or nil and why there are none.
fn answer<T>(
    lua: &Lua,
    result: Result<T, DictError>,
    values: impl FnOnce(&Lua, T) -> mlua::Result<MultiValue>,
) -> MultiValue {
    let values = result.and_then(|value| values(lua, value).map_err(|_| "no memory"));
    values.unwrap_or_else(|refused| failure(lua, refused))
}

fn nil() -> MultiValue {
    MultiValue::from_vec(vec![Value::Nil])
}

/// A value with what goes with it.
fn values<const N: usize>(lua: &Lua, value: &Stored, more: [Value; N]) -> mlua::Result<MultiValue> {
    let value = match value {
        Stored::Boolean(value) => Value::Boolean(*value),
        Stored::Number(value) => Value::Number(*value),
        Stored::Text(text) => Value::String(lua.create_string(text)?),
        Stored::List(_) => return Ok(failure(lua, "value is a list")),
    };
    Ok(std::iter::once(value).chain(more).collect())
}

/// No flags are nil.
fn flags(flags: u32) -> Value {
    if flags == 0 { Value::Nil } else { Value::Integer((flags as i32).into()) }
}

fn stored(value: &Value) -> Result<Option<Stored>, DictError> {
    Ok(Some(match value {
        Value::Nil => return Ok(None),
        Value::Boolean(value) => Stored::Boolean(*value),
        Value::Integer(n) => Stored::Number(*n as f64),
        Value::Number(n) => Stored::Number(*n),
        Value::String(text) => Stored::Text(text.as_bytes().to_vec()),
        _ => return Err("bad value type"),
    }))
}

/// Seconds as scripts give them; what is above 0 lasts a millisecond at least.
fn millis(seconds: Option<f64>) -> u64 {
    match seconds {
        Some(seconds) if seconds > 0.0 => ((seconds * 1000.0) as u64).max(1),
        _ => 0,
    }
}
