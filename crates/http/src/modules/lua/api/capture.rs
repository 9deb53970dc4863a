//! `ngx.location.capture`: subrequests whose answers scripts get.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use mlua::{Lua, Table, Value};
use weir_proto::http1::Method;

use super::natives::{Natives, failed, keep};
use super::{encode, headers};
use crate::answer::change::{self, Unfit};
use crate::modules::lua::answer;
use crate::modules::lua::current::{NgxError, with_request};
use crate::modules::lua::yield_request::{YieldRequest, reply};
use crate::request::Request;
use crate::subrequest::Capture;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_waiting("capture", |lua, list: Table| {
        let prepared: Result<Vec<Capture>, NgxError> = list
            .sequence_values::<Table>()
            .map(|asked| with_request(|r| prepare(lua, r, &asked.map_err(failed)?))?)
            .collect();
        let captures = prepared?.into_iter().map(|capture| -> Running { Box::pin(capture.run()) });
        let all = join(captures.collect());
        let pending = with_request(|r| answer::context(r).capture())?;
        Ok(YieldRequest::Capture(Box::pin(async move {
            let answers = all.await;
            drop(pending);
            reply(move |lua| {
                let tables = answers.iter().map(|answer| table(lua, answer));
                tables.map(|table| table.map(Value::Table)).collect()
            })
        })))
    })
}

/// A running subrequest.
type Running = Pin<Box<dyn Future<Output = Box<Request>>>>;

/// Waits for all subrequests.
async fn join(mut running: Vec<Running>) -> Vec<Box<Request>> {
    let mut answers: Vec<Option<Box<Request>>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, answer) in running.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(done) = future.as_mut().poll(cx)
            {
                *answer = Some(done);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// A subrequest, as the prelude's table describes it.
fn prepare(lua: &Lua, r: &mut Request, asked: &Table) -> Result<Capture, NgxError> {
    let text = |key: &str| asked.raw_get::<Option<mlua::String>>(key).ok().flatten();
    let flag = |key: &str| asked.raw_get::<Option<bool>>(key).ok().flatten() == Some(true);
    let uri = text("uri").ok_or("no uri is given")?;
    let args = text("args").map(|args| args.as_bytes().to_vec()).unwrap_or_default();
    let uri = uri.as_bytes();
    let safe = weir_proto::uri::is_unsafe(&uri)
        .map_err(|_| format!("unsafe uri in argument #1: {}", String::from_utf8_lossy(&uri)))?;
    let mut query = encode::query(&safe.args.unwrap_or_default());
    if !query.is_empty() && !args.is_empty() {
        query.push(b'&');
    }
    query.extend_from_slice(&encode::query(&args));
    let mut capture = r.capture(&safe.path, &query).ok_or("too many subrequests")?;
    capture.refuse_pages();
    let values = match () {
        () if flag("share_all_vars") => None,
        () if flag("copy_all_vars") => Some(r.values.copy()),
        () => Some(Default::default()),
    };
    let sr = capture.request();
    if let Some(values) = values {
        sr.values = values;
    }
    sr.method = text("method").map_or(Method::Get, |name| Method::from_name(&name.as_bytes()));
    sr.response.header_only = sr.method == Method::Head;
    match text("body") {
        Some(body) => {
            let body = body.as_bytes().to_vec();
            let length = body.len().to_string().into_bytes();
            sr.body.replace(body.into());
            change::set_request(sr, b"Content-Length", &[length]);
        }
        None if flag("always_forward_body") || matches!(sr.method, Method::Post | Method::Put) => {
            // The body of a request in chunks has a length here.
            if let Some(length) = sr.body.length {
                change::set_request(sr, b"Content-Length", &[length.to_string().into_bytes()]);
            }
        }
        None => {
            sr.body = crate::body::Body::none();
            change::set_request(sr, b"Content-Length", &[]);
        }
    }
    if let Some(headers) = option(asked, "headers")? {
        for pair in headers.pairs::<Value, Value>().flatten() {
            let (name, value) = texts(lua, &pair)?;
            change::fits_request(&name, &value)
                .map_err(|Unfit| "failed to adjust the subrequest: -1")?;
            change::set_request(sr, &name, &[value]);
        }
    }
    if let Ok(Some(ctx)) = asked.raw_get::<Option<Table>>("ctx") {
        answer::context(sr).ctx = Some(keep(ctx)?);
    }
    if let Some(vars) = option(asked, "vars")? {
        for pair in vars.pairs::<Value, Value>().flatten() {
            let (name, value) = texts(lua, &pair)?;
            super::variables::store(sr, &name, Some(value), |name| {
                let why = "maybe you forgot to define it first?";
                format!("variable \"{name}\" cannot be assigned a value ({why})")
            })?;
        }
    }
    Ok(capture)
}

/// A pair of the options `vars` and `headers`. As in lua-nginx-module, the errors speak of variables in both.
fn texts(lua: &Lua, (name, value): &(Value, Value)) -> Result<(Vec<u8>, Vec<u8>), NgxError> {
    let Value::String(name) = name else {
        return Err("attempt to use a non-string key in the \"vars\" option table".into());
    };
    let text = super::natives::bytes(lua, value).ok_or_else(|| {
        let kind = value.type_name().trim_start_matches("light");
        NgxError::from(format!("attempt to use bad variable value type {kind}"))
    })?;
    Ok((name.as_bytes().to_vec(), text))
}

/// An option that is a table, if it is given.
fn option(asked: &Table, name: &str) -> Result<Option<Table>, NgxError> {
    asked.raw_get(name).map_err(|_| format!("Bad {name} option value").into())
}

/// The answer of a subrequest, as a table for the script.
fn table(lua: &Lua, sr: &Request) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let headers = lua.create_table()?;
    table.raw_set("truncated", !sr.capture_is_whole() || sr.response.header_only)?;
    // As in lua-nginx-module, an answer without a head has status 200.
    let status = match sr.response.status {
        0 if sr.response.sent => 200,
        // The subrequest ended without an answer.
        0 => 500,
        status => status,
    };
    table.raw_set("status", status)?;
    table.raw_set("body", lua.create_string(sr.captured_body())?)?;
    for (name, value) in headers::answer_headers(sr) {
        // lua-nginx-module gives a number here.
        let length = std::str::from_utf8(&value).ok().and_then(|text| text.parse::<u64>().ok());
        if let (b"Content-Length", Some(length)) = (name.as_slice(), length) {
            headers.raw_set("Content-Length", length)?;
            continue;
        }
        let (name, value) = (lua.create_string(name)?, lua.create_string(value)?);
        let known: Value = headers.raw_get(&name)?;
        match known {
            Value::Nil => headers.raw_set(name, value)?,
            Value::Table(list) => list.raw_push(value)?,
            first => {
                let list = lua.create_sequence_from([first, Value::String(value)])?;
                headers.raw_set(name, list)?;
            }
        }
    }
    table.raw_set("header", headers)?;
    Ok(table)
}
