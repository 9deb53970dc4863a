//! `ngx.req`: reading and changing the request.

use std::os::unix::ffi::OsStringExt;

use mlua::{Lua, Value};
use weir_proto::http1::{Method, Version};

use super::encode::{self, Counted};
use super::natives::{AnswerKind, Natives};
use crate::answer::change;
use crate::modules::lua::answer;
use crate::modules::lua::current::{NgxError, Phase, phase, with, with_request};
use crate::modules::lua::yield_request::{Exit, YieldRequest};
use crate::request::Request;
use crate::variables::set_args;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.direct("method", |_, answer| {
        with(|r| {
            answer.text().extend_from_slice(r.method_name());
            AnswerKind::Text
        })
    })?;
    natives.add_refusing("set_method", |_, name: mlua::String| {
        let method = Method::from_name(&name.as_bytes());
        if method.name().is_none() {
            return Err(format!("unsupported HTTP method: {}", name.to_string_lossy()).into());
        }
        with(|r| r.method = method)
    })?;
    natives.direct("http_version", |_, answer| {
        with(|r| {
            answer.number = version(r);
            AnswerKind::Number
        })
    })?;
    natives.add_refusing("raw_header", |lua, no_line: Option<bool>| {
        with(|r| lua.create_string(raw_header(r, no_line == Some(true))))
    })?;
    natives.direct("is_internal", |_, _| with(|r| r.internal.into()))?;
    natives.add("uri_args", |lua, most: Option<usize>| {
        match with(|r| encode::decode_args(lua, &r.args, most, Counted::Named)) {
            Ok(Ok(((all, list), truncated))) => (None, all, list, truncated),
            Ok(Err(error)) => (Some(error.to_string()), None, None, None),
            Err(refusal) => (Some(refusal.to_string()), None, None, None),
        }
    })?;
    natives.add_refusing("set_args", |_, text: mlua::String| {
        with(|r| set_args(r, &encode::query(&text.as_bytes())))
    })?;
    natives.add_refusing("set_uri", |_, (uri, binary): (mlua::String, bool)| {
        if uri.as_bytes().is_empty() {
            return Err("attempt to use zero-length uri".into());
        }
        if !binary && let Some(text) = encode::unsafe_byte("uri", &uri.as_bytes()) {
            return Err((text + " (maybe you want to set the 'binary' argument?)").into());
        }
        with(|r| {
            r.set_path(&uri.as_bytes());
            (r.internal, r.unchanged_path) = (true, false);
        })
    })?;
    natives.add_refusing("may_jump", |_, ()| match phase() {
        Phase::ServerRewrite | Phase::Rewrite => {
            with(|r| answer::context(r).may_abort())?.map_err(Into::into)
        }
        phase => Err(NgxError::Disabled(phase)),
    })?;
    natives.add_waiting("jump", |_, ()| {
        with(|r| {
            r.path_changed = true;
            YieldRequest::Exit(Exit::Jump)
        })
    })?;
    bodies(natives)
}

fn bodies(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_waiting("read_body", |_, ()| with_request(|_| YieldRequest::ReadBody))?;
    natives.add_refusing("discard_body", |_, ()| {
        with(|r| {
            // Handlers find an empty body, and the rest is discarded. A body that was read stays.
            if !r.body.is_whole() && !r.body.is_read() {
                r.body.refuse();
            }
        })
    })?;
    natives.add_refusing("body_is_read", |_, ()| with(|r| is_read(r)))?;
    natives.add_refusing("body_is_begun", |_, ()| with(is_begun))?;
    natives.add_waiting("put_body", |_, (data, room): (mlua::String, Option<f64>)| {
        let usual = with(|r| r.conf().core.client_body_buffer_size)?;
        let room = room.map_or(usual, |room| room as u64);
        Ok(YieldRequest::SetBody(data.as_bytes().to_vec(), room))
    })?;
    natives.add_waiting("put_body_file", |_, (path, clean): (mlua::String, bool)| {
        let path = std::ffi::OsString::from_vec(path.as_bytes().to_vec());
        Ok(YieldRequest::SetBodyFile(path.into(), clean))
    })?;
    natives.add_refusing("body_data", |lua, ()| with(|r| body_data(lua, r)))?;
    natives.add_refusing("body_file", |_, ()| with(|r| body_file(r)))?;
    natives.add_refusing("set_body_data", |_, data: mlua::String| {
        let data = data.as_bytes().to_vec();
        with(|r| {
            if !is_begun(r) {
                return Err(NgxError::from("request body not read yet"));
            }
            let length = data.len().to_string().into_bytes();
            r.body.replace(data.into());
            change::set_request(r, b"Content-Length", &[length]);
            Ok(())
        })?
    })
}

/// Whether the body was read, and not discarded.
fn is_read(r: &Request) -> bool {
    r.body.is_whole() && !r.body.is_refused()
}

/// Whether the body was read, or a script reads it by `ngx.req.socket`.
fn is_begun(r: &mut Request) -> bool {
    is_read(r) || answer::context(r).body_socket.is_some()
}

fn version(r: &Request) -> f64 {
    match r.version {
        Version::Http09 => 0.9,
        Version::Http10 => 1.0,
        Version::Http11 => 1.1,
        Version::Http20 => 2.0,
        Version::Http30 => 3.0,
    }
}

/// The head as it was sent.
fn raw_header(r: &Request, no_line: bool) -> &[u8] {
    let head = r.head();
    let from = if no_line { head.line_end as usize } else { 0 };
    let end = memchr::memmem::find(&r.buf, b"\r\n\r\n").map(|at| at + 4);
    let end = end.unwrap_or(head.end as usize);
    r.buf.get(from..end).unwrap_or_default()
}

fn body_data(lua: &Lua, r: &Request) -> mlua::Result<Value> {
    if !r.body.is_whole() || r.body.file.is_some() || r.body.memory.is_empty() {
        return Ok(Value::Nil);
    }
    let whole = match r.body.memory.as_slice() {
        [one] => lua.create_string(one),
        several => lua.create_string(several.concat()),
    };
    whole.map(Value::String)
}

/// A path of the body's file for this process. The file usually has no name of its own.
fn body_file(r: &Request) -> Option<String> {
    use std::os::fd::AsRawFd;
    let body = r.body.file.as_ref().filter(|_| r.body.is_whole())?;
    if body.file.named {
        return Some(body.file.path.display().to_string());
    }
    Some(format!("/proc/self/fd/{}", body.file.file.as_raw_fd()))
}
