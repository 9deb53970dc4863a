//! Output: `ngx.say`, `ngx.print`, `ngx.flush`, `ngx.eof`, `ngx.send_headers`, `ngx.arg`.

use mlua::{BString, MultiValue, Value};

use super::natives::{Natives, done, gather};
use crate::modules::lua::current::{self, NgxError, Phase, phase, with_answer};
use crate::modules::lua::filters::{argument, with_piece};
use crate::modules::lua::yield_request::YieldRequest;
use crate::modules::lua::{answer, session};

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("print", |lua, values: MultiValue| {
        let bytes = gather(lua, &values, "print")?;
        print(&bytes).map(done)
    })?;
    natives.add_refusing("say", |lua, values: MultiValue| {
        let mut bytes = gather(lua, &values, "say")?;
        bytes.push(b'\n');
        print(&bytes).map(done)
    })?;
    natives.add("print_text", |_, (mut text, is_line): (BString, Option<bool>)| {
        if is_line == Some(true) {
            text.push(b'\n');
        }
        match print(&text) {
            Ok(Ok(())) => (None, Some(1), None),
            Ok(Err(why)) => (None, None, Some(why)),
            Err(refusal) => (Some(refusal.to_string()), None, None),
        }
    })?;
    natives.add_refusing("send_headers", |_, ()| with_answer(|r| done(answer::send_head(r))))?;
    natives.add_waiting("flush", |_, waits: bool| sending(YieldRequest::Flush { waits }))?;
    natives.add_waiting("eof", |_, ()| sending(YieldRequest::Eof))?;
    natives.add_refusing("get_arg", |lua, index: i64| {
        let string = |bytes: &[u8]| lua.create_string(bytes).map_or(Value::Nil, Value::String);
        if phase() == Phase::Set {
            // As in OpenResty, an empty argument is nil.
            let given = argument(index).filter(|bytes| !bytes.is_empty());
            return Ok(given.map_or(Value::Nil, |bytes| string(&bytes)));
        }
        in_body_filter()?;
        Ok(with_piece(|piece| match index {
            1 => string(&piece.bytes),
            2 => Value::Boolean(piece.last),
            _ => Value::Nil,
        }))
    })?;
    natives.add_refusing("set_arg", |lua, (index, value): (i64, Value)| {
        in_body_filter()?;
        let mut bytes = Vec::new();
        match (index, value) {
            (1, Value::Nil) => {}
            (
                1,
                value @ (Value::String(_) | Value::Integer(_) | Value::Number(_) | Value::Table(_)),
            ) => {
                super::natives::write_message(lua, &value, &mut bytes)
                    .map_err(|text| format!("bad argument #3 to '__newindex' ({text})"))?;
            }
            (1, value) => {
                let kind = value.type_name().trim_start_matches("light");
                return Err(format!("bad chunk data type: {kind}").into());
            }
            (2, value) => {
                with_piece(|piece| {
                    piece.last = !matches!(value, Value::Nil | Value::Boolean(false))
                });
                return Ok(());
            }
            (index, _) => return Err(format!("bad index: {index}").into()),
        }
        with_piece(|piece| piece.bytes = bytes);
        Ok(())
    })
}

/// Writes to the client of the request or session. The inner error is returned to the script.
fn print(bytes: &[u8]) -> Result<Result<(), &'static str>, NgxError> {
    match phase().is_session() {
        true => current::with_session(|s| session::print(s, bytes)).ok_or(NgxError::NoRequest),
        false => with_answer(|r| answer::print(r, bytes)),
    }
}

/// The reason of a yield that sends, in phases that have a client.
fn sending(yielded: YieldRequest) -> Result<YieldRequest, NgxError> {
    if phase().is_session() { Ok(yielded) } else { with_answer(|_| yielded) }
}

fn in_body_filter() -> Result<(), NgxError> {
    match phase() {
        Phase::BodyFilter => Ok(()),
        phase => Err(NgxError::Disabled(phase)),
    }
}
