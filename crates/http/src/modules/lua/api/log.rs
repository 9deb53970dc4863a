//! `ngx.log` and `print`.

use mlua::{Lua, MultiValue, Value};
use weir_log::Level;

use super::natives::Natives;
use crate::modules::lua::current::{self, NgxError, Phase};
use crate::modules::lua::handshake;
use crate::modules::lua::script::Side;
use crate::request::Request;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add("log", |lua, mut values: MultiValue| {
        let level = match values.pop_front() {
            Some(Value::Integer(n)) => level(n),
            _ => Level::Error,
        };
        write(lua, level, &values);
    })?;
    natives.add("raw_log", |_, (n, text): (i64, mlua::String)| {
        to_log(level(n), &text.to_string_lossy());
    })?;
    natives.add("errlog_level", |_, n: i64| weir_log::capture_level(level(n)))?;
    // Nil if no lines are captured, false if none is left.
    natives.add("errlog_take", |lua, ()| {
        let Some(kept) = weir_log::take_captured() else { return MultiValue::new() };
        let Some(kept) = kept else { return MultiValue::from_vec(vec![Value::Boolean(false)]) };
        let level = Value::Integer(i64::from(kept.level.number()));
        let text = lua.create_string(kept.line).map_or(Value::Nil, Value::String);
        MultiValue::from_vec(vec![level, Value::Number(kept.time), text])
    })?;
    natives.direct("is_logged", |passed, _| {
        let [n, ..] = passed.numbers;
        Ok::<_, NgxError>(is_logged(level(n as i64)).into())
    })?;
    natives.add("global_written", |lua, (name, trace): (mlua::String, mlua::String)| {
        // At the start, scripts may create globals.
        if matches!(current::phase(), Phase::Init | Phase::InitWorker) {
            return;
        }
        let text = format!(
            "writing a global Lua variable ('{}') which may lead to race conditions between \
             concurrent requests, so prefer the use of 'local' variables{}",
            name.to_string_lossy(),
            trace.to_string_lossy()
        );
        let text = lua.create_string(text).map_or(Value::Nil, Value::String);
        write(lua, Level::Warn, &MultiValue::from_vec(vec![text]));
    })?;
    Ok(())
}

/// `ngx.STDERR` is 0, `ngx.DEBUG` 8.
fn level(n: i64) -> Level {
    match n {
        ..=0 => Level::Stderr,
        1 => Level::Emerg,
        2 => Level::Alert,
        3 => Level::Crit,
        4 => Level::Error,
        5 => Level::Warn,
        6 => Level::Notice,
        7 => Level::Info,
        _ => Level::Debug,
    }
}

/// Whether the log of the request or session takes this level. The site's log decides when it
/// writes.
fn is_logged(level: Level) -> bool {
    let of_session = current::with_session(|s| s.is_logged(level));
    let of_request = || current::with_any(|r| r.error_log().enabled(level)).unwrap_or(true);
    of_session.unwrap_or_else(of_request)
}

fn write(lua: &Lua, level: Level, values: &MultiValue) {
    if !is_logged(level) {
        return;
    }
    let place = place(lua);
    let mut line = match current::side() {
        Side::Requests => place,
        Side::Sessions => format!("stream {place}"),
    };
    for value in values {
        match value {
            Value::String(text) => line.push_str(&weir_log::Bytes(&text.as_bytes()).to_string()),
            Value::LightUserData(pointer) if pointer.0.is_null() => line.push_str("null"),
            value => {
                let mut out = Vec::new();
                match super::natives::write_plain(lua, value, &mut out) {
                    true => line.push_str(&weir_log::Bytes(&out).to_string()),
                    false => line.push_str(&value.to_string().unwrap_or_default()),
                }
            }
        }
    }
    to_log(level, &line);
}

/// Writes to the log of the request or session, or of the site.
pub(super) fn to_log(level: Level, line: &str) {
    if current::is_mute() {
        return;
    }
    let place = current::phase().in_log();
    if current::with_session(|s| s.log(level, format_args!("{line}{place}"))).is_some() {
        return;
    }
    if current::with_any(|r| handshake::log(r, level, format_args!("{line}{place}"))).is_err()
        && let Some(conf) = current::settings()
    {
        let log = &conf.core.error_log;
        let origin = current::timer_origin();
        log.write(level, None, format_args!("{line}{place}{origin}"));
    }
}

/// Writes a debug line, which is made only if the log of the request or session takes it.
pub(super) fn debug(line: impl FnOnce(Option<&Request>) -> String) {
    let place = current::phase().in_log();
    if current::has_session() {
        current::with_session(|s| {
            if s.is_logged(Level::Debug) {
                s.log(Level::Debug, format_args!("{}{place}", line(None)));
            }
        });
        return;
    }
    let _ = current::with_any(|r| {
        if r.error_log().enabled(Level::Debug) {
            let line = line(Some(r));
            handshake::log(r, Level::Debug, format_args!("{line}{place}"));
        }
    });
}

/// `[lua] FILE:LINE: FUNCTION(): ` for the place in the script that called the prelude.
fn place(lua: &Lua) -> String {
    for depth in 1.. {
        let found = lua.inspect_stack(depth, |caller| {
            let source = caller.source();
            let name = source.source.unwrap_or_default();
            if source.what == "C"
                || crate::modules::lua::prelude::PRELUDE.iter().any(|(ours, _)| *ours == name)
            {
                return None;
            }
            // A chunk that is named by its text has a short name in brackets.
            let short = source.short_src.unwrap_or_default();
            let name = name.strip_prefix(['@', '=']).unwrap_or(&short);
            let name = name.rsplit('/').next().unwrap_or_default();
            let line = caller.current_line().unwrap_or_default();
            Some(match caller.names().name {
                Some(function) => format!("[lua] {name}:{line}: {function}(): "),
                None => format!("[lua] {name}:{line}: "),
            })
        });
        match found {
            Some(Some(place)) => return place,
            Some(None) => {}
            None => break,
        }
    }
    "[lua] ".to_owned()
}
