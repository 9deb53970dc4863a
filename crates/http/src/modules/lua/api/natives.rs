//! How Rust functions are given to scripts, and conversions of Lua values.

use std::borrow::Cow;
use std::fmt::Display;

use mlua::{BString, Either, FromLuaMulti, IntoLua, IntoLuaMulti, Lua, MultiValue, Table, Value};

use weir_sys::lua::direct::{self, Answer, Passed};

use crate::event_loop::LoopState;
use crate::modules::lua::anchors::Anchor;
use crate::modules::lua::current::{self, NgxError};
use crate::modules::lua::vm::vm_of;
use crate::modules::lua::yield_request::YieldRequest;

/// The native functions, by the names that the prelude uses.
pub struct Natives<'l> {
    pub lua: &'l Lua,
    pub table: Table,
    /// The functions that scripts call by FFI.
    pub direct: Table,
}

/// The kind of answer of a function called by FFI. The prelude has the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// An error. The answer's text has the message.
    Refused = direct::PANICKED as isize,
    /// Nothing.
    Nil = 0,
    /// The answer's text.
    Text = 1,
    /// The answer's number.
    Number = 2,
    /// Yes.
    True = 3,
    /// No.
    False = 4,
    /// The requested object is no longer kept.
    Forgotten = 5,
}

impl From<bool> for AnswerKind {
    fn from(value: bool) -> AnswerKind {
        if value { AnswerKind::True } else { AnswerKind::False }
    }
}

impl AnswerKind {
    /// [`AnswerKind::Text`] if there is one, else [`AnswerKind::Nil`].
    pub fn text_if(is_one: bool) -> AnswerKind {
        if is_one { AnswerKind::Text } else { AnswerKind::Nil }
    }
}

impl Natives<'_> {
    /// Adds a function that cannot fail.
    pub fn add<A, R>(&self, name: &str, f: impl Fn(&Lua, A) -> R + 'static) -> mlua::Result<()>
    where
        A: FromLuaMulti,
        R: IntoLuaMulti,
    {
        let f = self.lua.create_function(move |lua, args: A| Ok(f(lua, args)))?;
        self.table.raw_set(name, f)
    }

    /// Adds a function that may fail. Its first value is nil, or the error that the prelude raises.
    /// The most called functions use [`Natives::direct`] instead.
    pub fn add_refusing<A, R>(
        &self,
        name: &str,
        f: impl Fn(&Lua, A) -> Result<R, NgxError> + 'static,
    ) -> mlua::Result<()>
    where
        A: FromLuaMulti,
        R: IntoLuaMulti,
    {
        let f = self.lua.create_function(move |lua, args: A| match f(lua, args) {
            Ok(values) => {
                let mut values = values.into_lua_multi(lua)?;
                values.push_front(Value::Nil);
                Ok(values)
            }
            Err(refusal) => refusal.to_string().into_lua_multi(lua),
        })?;
        self.table.raw_set(name, f)
    }

    /// Adds a function that is called by FFI: see [`direct`]. It has no state, and must not run
    /// scripts.
    pub fn direct<F, E>(&self, name: &str, f: F) -> mlua::Result<()>
    where
        F: Fn(&Passed<'_>, &mut Answer) -> Result<AnswerKind, E> + Copy + 'static,
        E: Display,
    {
        let pointer = direct::pointer(move |passed, answer| {
            let given = f(passed, answer).unwrap_or_else(|refusal| {
                answer.set_text(refusal.to_string().into_bytes());
                AnswerKind::Refused
            });
            given as i32
        });
        self.direct.raw_set(name, pointer)
    }

    /// Adds a function from text to text that is called by FFI.
    pub fn direct_text<F>(&self, name: &str, f: F) -> mlua::Result<()>
    where
        F: Fn(&[u8], &mut Vec<u8>) + Copy + 'static,
    {
        self.direct(name, move |passed, answer| {
            f(passed.first, answer.text());
            Ok::<_, NgxError>(AnswerKind::Text)
        })
    }

    /// Adds a function that waits. The prelude yields after the call.
    pub fn add_waiting<A>(
        &self,
        name: &str,
        f: impl Fn(&Lua, A) -> Result<YieldRequest, NgxError> + 'static,
    ) -> mlua::Result<()>
    where
        A: FromLuaMulti,
    {
        self.add_refusing(name, move |lua, args: A| {
            current::request_yield(f(lua, args).map_err(NgxError::in_phase)?)
        })
    }

    /// Adds a constant.
    pub fn constant(&self, name: &str, value: impl IntoLua) -> mlua::Result<()> {
        self.table.raw_set(name, value)
    }
}

/// Keeps a value beyond this step of the script.
pub fn keep(value: impl IntoLua) -> Result<Anchor, NgxError> {
    let event_loop = LoopState::current().ok_or(NgxError::NoRequest)?;
    let vm = vm_of(&event_loop).ok_or("no Lua VM")?;
    vm.anchors.keep(value).map_err(failed)
}

/// The error of Lua, such as a lack of memory.
pub fn failed(error: mlua::Error) -> NgxError {
    NgxError::Other(error.to_string())
}

/// A name and a value. Lua gets `true` for a missing value.
pub type Pair<'t> = (Cow<'t, [u8]>, Option<Cow<'t, [u8]>>);

/// Pairs as a table by names; or, if names are repeated or there are many, as a list of names and
/// values, of which the prelude makes a table.
pub type NamedValues = (Option<Table>, Option<Table>);

pub fn named(lua: &Lua, pairs: &[Pair<'_>]) -> mlua::Result<NamedValues> {
    /// The most pairs that are compared with each other.
    const FEW: usize = 32;
    let repeats = |n: usize, name: &[u8]| pairs.iter().take(n).any(|(before, _)| **before == *name);
    if pairs.len() <= FEW && !pairs.iter().enumerate().any(|(n, (name, _))| repeats(n, name)) {
        let all = pairs.iter().map(|(name, given)| (borrowed(name), valued(given.as_deref())));
        return Ok((Some(lua.create_table_from(all)?), None));
    }
    let list = pairs.iter().flat_map(|(name, given)| {
        [Either::Left(borrowed(name)), Either::Right(valued(given.as_deref()))]
    });
    Ok((None, Some(lua.create_sequence_from(list)?)))
}

/// Bytes as a value for a Lua table.
pub fn borrowed(bytes: &[u8]) -> Either<&str, BString> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Either::Left(text),
        Err(_) => Either::Right(bytes.into()),
    }
}

fn valued(value: Option<&[u8]>) -> Either<Either<&str, BString>, bool> {
    value.map_or(Either::Right(true), |bytes| Either::Left(borrowed(bytes)))
}

/// The usual result of OpenResty's functions: 1, or nil and the error.
pub struct Done(pub Result<(), String>);

impl IntoLuaMulti for Done {
    fn into_lua_multi(self, lua: &Lua) -> mlua::Result<MultiValue> {
        match self.0 {
            Ok(()) => 1.into_lua_multi(lua),
            Err(text) => (Value::Nil, text).into_lua_multi(lua),
        }
    }
}

pub fn done(result: Result<(), impl ToString>) -> Done {
    Done(result.map_err(|error| error.to_string()))
}

/// The deepest nesting of tables. More would exhaust the stack.
const DEEPEST: usize = 500;

/// Appends a value as `ngx.print` writes it.
pub fn write(lua: &Lua, value: &Value, out: &mut Vec<u8>) -> Result<(), String> {
    write_at(lua, value, Depth { tables: 0, strict: false }, out)
}

/// Appends a value as sockets send it. Tables may have only texts and numbers.
pub fn write_message(lua: &Lua, value: &Value, out: &mut Vec<u8>) -> Result<(), String> {
    match value {
        Value::Table(table) => write_table(lua, table, Depth { tables: 0, strict: true }, out),
        value => write(lua, value, out),
    }
}

/// The place of a value in nested tables.
#[derive(Clone, Copy)]
struct Depth {
    /// The number of enclosing tables.
    tables: usize,
    /// Whether tables may have only texts and numbers.
    strict: bool,
}

fn write_at(lua: &Lua, value: &Value, depth: Depth, out: &mut Vec<u8>) -> Result<(), String> {
    match value {
        Value::Nil | Value::Boolean(_) | Value::LightUserData(_) if depth.strict => {
            let kind = value.type_name().trim_start_matches("light");
            return Err(format!("bad data type {kind} found"));
        }
        Value::String(text) => out.extend_from_slice(&text.as_bytes()),
        Value::Table(table) => write_table(lua, table, depth, out)?,
        Value::Nil => out.extend_from_slice(b"nil"),
        Value::LightUserData(pointer) if pointer.0.is_null() => out.extend_from_slice(b"null"),
        value if !write_plain(lua, value, out) => {
            let kind = match value {
                // A type of LuaJIT alone.
                Value::Other(_) => "cdata",
                value => value.type_name(),
            };
            if depth.tables > 0 {
                return Err(format!("bad data type {kind} found"));
            }
            return Err(format!(
                "string, number, boolean, nil, ngx.null, or array table expected, but got {kind}"
            ));
        }
        _ => {}
    }
    Ok(())
}

/// Appends a number or boolean. False for other values.
pub fn write_plain(lua: &Lua, value: &Value, out: &mut Vec<u8>) -> bool {
    /// From this number on, Lua prints an exponent.
    const LONGEST: u64 = 100_000_000_000_000;
    match value {
        Value::Boolean(value) => {
            out.extend_from_slice(if *value { b"true" } else { b"false" });
            true
        }
        Value::Integer(n) if n.unsigned_abs() < LONGEST => {
            if *n < 0 {
                out.push(b'-');
            }
            crate::answer::output::write_number(n.unsigned_abs(), out);
            true
        }
        Value::Integer(_) | Value::Number(_) => {
            if let Ok(Some(text)) = lua.coerce_string(value.clone()) {
                out.extend_from_slice(&text.as_bytes());
            }
            true
        }
        _ => false,
    }
}

fn write_table(lua: &Lua, table: &Table, depth: Depth, out: &mut Vec<u8>) -> Result<(), String> {
    if depth.tables == DEEPEST {
        return Err(format!("more than {DEEPEST} tables within each other"));
    }
    let mut length = 0;
    for (key, _) in table.pairs::<Value, Value>().flatten() {
        match key {
            Value::Integer(n @ 1..) => length = length.max(n),
            _ => return Err("non-array table found".to_owned()),
        }
    }
    for i in 1..=length {
        let value = table.raw_get::<Value>(i).map_err(|error| error.to_string())?;
        write_at(lua, &value, Depth { tables: depth.tables + 1, ..depth }, out)?;
    }
    Ok(())
}

/// All arguments as one text. The error names the wrong argument.
pub fn gather(lua: &Lua, values: &MultiValue, function: &str) -> Result<Vec<u8>, NgxError> {
    let mut out = Vec::new();
    for (i, value) in values.iter().enumerate() {
        write(lua, value, &mut out)
            .map_err(|text| format!("bad argument #{} to '{function}' ({text})", i + 1))?;
    }
    Ok(out)
}

/// A string or number as bytes; `None` for other values.
pub fn bytes(lua: &Lua, value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(_) | Value::Number(_) => {
            let mut out = Vec::new();
            write_plain(lua, value, &mut out);
            Some(out)
        }
        _ => None,
    }
}
