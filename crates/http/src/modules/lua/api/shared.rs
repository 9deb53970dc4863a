//! `ngx.shared`.

use mlua::{BString, Either, Lua, MultiValue, Value};
use weir_zone::ZoneRef;

use super::natives::{LuaText, Natives, borrowed, text};
use crate::modules::lua::current;
use crate::modules::lua::dict::{self, Dict, DictError, How, Value as Stored};
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
    natives.add("dict_get", |lua, (at, key): (usize, DictKey)| {
        let found = with(at, &key, |dict, key| Ok(dict.valid(key)));
        let given = found.and_then(|found| {
            found.map(|found| Ok((given(lua, found.value)?, flags(found.flags)))).transpose()
        });
        match given {
            Ok(Some((value, flags))) => (Some(value), flags),
            Ok(None) => (None, Value::Nil),
            Err(refused) => (None, failure(lua, refused).pop_back().unwrap_or(Value::Nil)),
        }
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
    for (name, how, force) in [
        ("dict_set", How::Set, true),
        ("dict_safe_set", How::Set, false),
        ("dict_add", How::Add, true),
        ("dict_safe_add", How::Add, false),
        ("dict_replace", How::Replace, true),
    ] {
        natives.add(
            name,
            move |_,
                  (at, key, value, ttl, flags): (
                usize,
                DictKey,
                Value,
                Option<f64>,
                Option<u32>,
            )| {
                let stored = with(at, &key, |dict, key| match stored(&value)? {
                    None if how == How::Set => {
                        dict.remove(key);
                        Ok(false)
                    }
                    None => Err("attempt to add or replace nil values"),
                    Some(value) => {
                        dict.store(key, (&value, flags.unwrap_or(0)), millis(ttl), (how, force))
                    }
                });
                match stored {
                    Ok(forcible) => (true, None, forcible),
                    Err(refused) => (false, Some(refused), false),
                }
            },
        )?;
    }
    natives.add(
        "dict_incr",
        |_, (at, key, by, init, ttl): (usize, DictKey, f64, Option<f64>, Option<f64>)| {
            let init = init.map(|init| (init, millis(ttl)));
            match with(at, &key, |dict, key| dict.increase(key, by, init)) {
                Ok((sum, forcible)) => (Some(sum), None, Some(forcible)),
                Err(refused) => (None, Some(refused), None),
            }
        },
    )
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

/// A stored value as Lua has it.
fn given(lua: &Lua, value: Stored) -> Result<Either<LuaText, Value>, DictError> {
    Ok(match value {
        Stored::Boolean(value) => Either::Right(Value::Boolean(value)),
        Stored::Number(value) => Either::Right(Value::Number(value)),
        Stored::Text(bytes) => Either::Left(text(lua, bytes).map_err(|_| "no memory")?),
        Stored::List(_) => return Err("value is a list"),
    })
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
