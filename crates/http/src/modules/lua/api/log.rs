//! `ngx.log` and `print`.

use mlua::{Lua, MultiValue, Value};
use weir_log::Level;

use super::Natives;
use crate::event_loop::LoopState;
use crate::modules::lua::current::{self, Phase};

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add("log", |lua, mut values: MultiValue| {
        let level = match values.pop_front() {
            Some(Value::Integer(n)) => level(n),
            _ => Level::Error,
        };
        write(lua, level, 1, &values);
    })?;
    natives.add("global_written", |lua, name: mlua::String| {
        // The start is the place to make globals.
        if matches!(current::phase(), Phase::Init | Phase::InitWorker) {
            return;
        }
        let text = format!(
            "writing a global Lua variable ('{}') which may lead to race conditions between \
             concurrent requests, so prefer the use of 'local' variables",
            name.to_string_lossy()
        );
        let text = lua.create_string(text).map_or(Value::Nil, Value::String);
        write(lua, Level::Warn, 2, &MultiValue::from_vec(vec![text]));
    })?;
    natives.add("print_log", |lua, values: MultiValue| write(lua, Level::Notice, 1, &values))
}

/// `ngx.STDERR` is 0, `ngx.DEBUG` 8.
fn level(n: i64) -> Level {
    match n {
        ..=1 => Level::Emerg,
        2 => Level::Alert,
        3 => Level::Crit,
        4 => Level::Error,
        5 => Level::Warn,
        6 => Level::Notice,
        7 => Level::Info,
        _ => Level::Debug,
    }
}

fn write(lua: &Lua, level: Level, depth: usize, values: &MultiValue) {
    let enabled = current::with(|r| r.conf().core.error_log.enabled(level));
    if enabled == Ok(false) {
        return;
    }
    let mut line = place(lua, depth);
    for value in values {
        match value {
            Value::String(text) => line.push_str(&text.to_string_lossy()),
            Value::LightUserData(pointer) if pointer.0.is_null() => line.push_str("null"),
            value => {
                let mut out = Vec::new();
                match super::write_plain(lua, value, &mut out) {
                    true => line.push_str(&String::from_utf8_lossy(&out)),
                    false => line.push_str(&value.to_string().unwrap_or_default()),
                }
            }
        }
    }
    if current::with(|r| r.log(level, format_args!("{line}"))).is_err()
        && let Some(event_loop) = LoopState::current()
    {
        event_loop.site.main.core.error_log.write(level, None, format_args!("{line}"));
    }
}

/// `[lua] FILE:LINE: FUNCTION(): ` of who called, so many calls up.
fn place(lua: &Lua, depth: usize) -> String {
    let found = lua.inspect_stack(depth, |caller| {
        let source = caller.source();
        let name = source.source.unwrap_or_default();
        let name = name.trim_start_matches(['@', '=']);
        let name = name.rsplit('/').next().unwrap_or_default();
        let line = caller.current_line().unwrap_or_default();
        match caller.names().name {
            Some(function) => format!("[lua] {name}:{line}: {function}(): "),
            None => format!("[lua] {name}:{line}: "),
        }
    });
    found.unwrap_or_else(|| "[lua] ".to_owned())
}
