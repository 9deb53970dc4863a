//! `ngx.var`, `ngx.ctx`, `ngx.status`, `ngx.headers_sent`, `ngx.is_subrequest`.

use mlua::{BString, Lua, Value};
use weir_log::Level;
use weir_proto::http1::Version;

use super::natives::{AnswerKind, Natives, keep};
use crate::event_loop::LoopState;
use crate::modules::lua::anchors::Anchor;
use crate::modules::lua::answer;
use crate::modules::lua::current::{self, NgxError, Scripted, with, with_any};
use crate::modules::lua::script::Side;
use crate::modules::lua::{handshake, session};
use crate::request::Request;
use crate::variables::NotStored;
use weir_values::Subject;

/// The status line of status 101, without the version.
const SWITCHING: &[u8] = b"101 Switching Protocols";

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("get_group", |lua, n: i64| with(|r| group(lua, r, n)))?;
    natives.direct("get_var", |passed, answer| {
        let (name, out) = (passed.first, answer.text());
        if let Some(found) = current::with_session(|s| s.variable(name, out)) {
            return Ok(AnswerKind::text_if(found));
        }
        with(|r| AnswerKind::text_if(r.variable_named(name, out)))
    })?;
    natives.direct("get_var_at", |passed, answer| {
        let [number, ..] = passed.numbers;
        with(|r| AnswerKind::text_if(r.variable_at(number as u32, answer.text())))
    })?;
    natives.add("var_number", |_, name: BString| {
        // The numbers are those of request variables.
        let of_requests = LoopState::current().filter(|_| current::side() == Side::Requests);
        of_requests.and_then(|event_loop| event_loop.site.variables.number_of(&name))
    })?;
    // Takes the name, the value, whether there is one, and the variable's number or -1.
    natives.direct("set_var", |passed, _| {
        let (name, [has_value, number, ..]) = (passed.first, passed.numbers);
        let value = (has_value != 0.0).then(|| passed.second.to_vec());
        let unknown = |name: &str| {
            format!(
                "variable \"{name}\" not found for writing; maybe it is a built-in variable that \
                 is not changeable or you forgot to use \"set ${name} '';\" in the config file to \
                 define it first"
            )
        };
        let done = match current::has_session() {
            true => current::with_session(|s| stored(s.store(name, value), name, unknown)),
            false if number < 0.0 => Some(with(|r| store(r, name, value, unknown))?),
            false => Some(with(|r| stored(r.store_at(number as u32, value), name, unknown))?),
        };
        done.unwrap_or(Err(NgxError::NoRequest)).map(|()| AnswerKind::Nil)
    })?;
    // The anchor of the table; nil if there is none yet, false without a request.
    natives.direct("ctx_number", |_, answer| {
        let of_session = |s: &mut Scripted| session::context(s).ctx.as_ref().map(Anchor::number);
        let of_request =
            |r: &mut Request| answer::CONTEXT.of(&r.contexts)?.ctx.as_ref().map(Anchor::number);
        let number = match current::with_session(of_session) {
            Some(number) => number,
            None => match with_any(of_request) {
                Ok(number) => number,
                Err(_) => return Ok::<_, NgxError>(AnswerKind::False),
            },
        };
        answer.number = number.unwrap_or_default() as f64;
        Ok(number.map_or(AnswerKind::Nil, |_| AnswerKind::Number))
    })?;
    // The anchor of the handshake's table.
    natives.add("connection_ctx", |_, ()| with(|r| handshake::ctx_of(r)).ok().flatten())?;
    natives.add_refusing("set_ctx", |_, value: Value| {
        let mut value = if value.is_nil() { None } else { Some(keep(value)?) };
        if current::with_session(|s| session::context(s).ctx = value.take()).is_some() {
            return Ok(());
        }
        with_any(|r| answer::context(r).ctx = value)
    })?;
    natives.direct("get_status", |_, answer| {
        with(|r| {
            answer.number = match (r.error_status, r.response.status) {
                // As in OpenResty, the status of an HTTP/0.9 request before its answer is 9.
                (0, 0) if r.version <= Version::Http09 => 9,
                (0, status) | (status, _) => status,
            }
            .into();
            AnswerKind::Number
        })
    })?;
    natives.direct("set_status", |passed, _| {
        let [status, ..] = passed.numbers;
        with(|r| {
            set_status(r, status);
            AnswerKind::Nil
        })
    })?;
    natives.add_refusing("set_status_line", |_, (status, reason): (f64, mlua::String)| {
        with(|r| {
            if set_status(r, status) {
                let reason = reason.as_bytes();
                let safe = reason.iter().map(|b| if b.is_ascii_control() { b' ' } else { *b });
                let line = format!("{:03} ", r.response.status).into_bytes();
                r.response.status_line = Some(line.into_iter().chain(safe).collect());
            }
        })
    })?;
    natives.add_refusing("answer_always", |_, ()| with(|r| r.response.unconditional = true))?;
    natives.direct("headers_sent", |_, _| with(|r| r.response.sent.into()))?;
    natives.direct("is_subrequest", |_, _| with(|r| (!r.is_main()).into()))?;
    natives.add("has_request", |_, ()| current::has_session() || with_any(|_| ()).is_ok())
}

fn string(lua: &Lua, bytes: &[u8]) -> Value {
    lua.create_string(bytes).map_or(Value::Nil, Value::String)
}

fn group(lua: &Lua, r: &Request, n: i64) -> Value {
    // Group 0, the whole match, is not available.
    let n = usize::try_from(n).ok().filter(|n| *n > 0);
    let group = n.and_then(|n| r.captures.get(n));
    group.map_or(Value::Nil, |group| string(lua, group))
}

/// Sets a variable for a script; `None` unsets it. `unknown` makes the error for a missing
/// variable.
pub fn store(
    r: &mut Request,
    name: &[u8],
    value: Option<Vec<u8>>,
    unknown: impl FnOnce(&str) -> String,
) -> Result<(), NgxError> {
    let is_none = value.is_none();
    stored(r.store_named(name, value), name, unknown)?;
    if is_none && name.eq_ignore_ascii_case(b"args") {
        r.args_set = false;
    }
    Ok(())
}

/// The error of a failed assignment, in words.
fn stored(
    stored: Result<(), NotStored>,
    name: &[u8],
    unknown: impl FnOnce(&str) -> String,
) -> Result<(), NgxError> {
    stored.map_err(|why| {
        let name = String::from_utf8_lossy(name);
        NgxError::Other(match why {
            NotStored::Fixed => format!("variable \"{name}\" not changeable"),
            NotStored::Unknown => unknown(&name),
        })
    })
}

/// Sets the status of the answer. False if it cannot be set.
fn set_status(r: &mut Request, status: f64) -> bool {
    if !(100.0..1000.0).contains(&status) {
        r.log(Level::Error, format_args!("invalid HTTP status code {status:.0}"));
        return false;
    }
    if r.response.sent {
        let text = "attempt to set ngx.status after sending out response headers";
        r.log(Level::Error, format_args!("{text}"));
        return false;
    }
    r.response.status = u16::try_from(status as i64).unwrap_or(500);
    // Other answers with this status have no reason.
    r.response.status_line = (status == 101.0).then(|| SWITCHING.to_vec());
    r.error_status = 0;
    true
}
