//! Control flow: `ngx.exit`, `ngx.exec`, `ngx.redirect`, `ngx.sleep`, coroutines and light threads.

use mlua::{MultiValue, Thread, Value};

use super::natives::{AnswerKind, Natives, done, keep};
use super::timer::seconds_of;
use super::{encode, log};
use crate::answer::change::set_location_as_said;
use crate::event_loop::LoopState;
use crate::modules::lua::anchors::Anchor;
use crate::modules::lua::conf::{CONF, Conf};
use crate::modules::lua::current::{self, NgxError, Scripted, phase, with, with_answer, with_any};
use crate::modules::lua::timers::pause;
use crate::modules::lua::yield_request::{Exit, ThreadId, YieldRequest, reply};
use crate::modules::lua::{answer, session};
use crate::request::Request;

/// `ngx.AGAIN`
const AGAIN: i64 = -2;

/// `ngx.DONE`
const DONE: i64 = -4;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    // True if the call returns to the script, and the exit takes effect at its end.
    natives.add_refusing("exit", |_, status: f64| {
        exit(status as i64)?;
        Ok(!phase().may_wait())
    })?;
    natives.add_waiting("exec", |_, (uri, args): (mlua::String, mlua::String)| {
        with_answer(|r| exec(r, &uri.as_bytes(), &args.as_bytes()))?
    })?;
    natives.add_waiting("redirect", |_, (uri, status): (mlua::String, Option<i64>)| {
        with_answer(|r| redirect(r, &uri.as_bytes(), status.unwrap_or(302)))?
    })?;
    natives.add_waiting("sleep", |_, seconds: f64| {
        let delay = seconds_of(seconds)?;
        let event_loop = LoopState::current().ok_or(NgxError::NoRequest)?;
        let sleep = pause(&event_loop.handle, delay);
        Ok(YieldRequest::Wait(Box::pin(async move {
            sleep.await;
            reply(|_| {
                log::debug(|r| {
                    let Some(r) = r else { return "lua sleep timer expired".to_owned() };
                    let (path, args) = (weir_log::Bytes(&r.path), weir_log::Bytes(&r.args));
                    format!("lua sleep timer expired: \"{path}?{args}\"")
                });
                Ok(MultiValue::new())
            })
        })))
    })?;
    natives.add_refusing("on_abort", |_, function: Value| {
        if !checks_abort()? {
            return Ok(done(Err("lua_check_client_abort is off")));
        }
        if !function.is_function() {
            let text = "bad argument #1 to 'on_abort' (Lua function expected)";
            return Err(text.into());
        }
        let function = keep(function)?;
        with_abort(|_, known| {
            if known.is_some() {
                return done(Err("duplicate call"));
            }
            *known = Some(function);
            done(Ok::<(), &str>(()))
        })
    })?;
    natives.direct("get_phase", |_, answer| {
        answer.text().extend_from_slice(phase().name().as_bytes());
        Ok::<_, NgxError>(AnswerKind::Text)
    })?;
    natives.add_refusing("may_wait", |_, ()| current::may_wait())?;
    threads(natives)
}

/// `lua_check_client_abort` of the script's location or server.
fn checks_abort() -> Result<bool, NgxError> {
    // A filter or a log phase may ask, too.
    with(|r| CONF.of(r.conf()).check_client_abort)
        .or_else(|_| with_abort(|conf, _| conf.check_client_abort))
}

/// Calls `f` with the settings of the script, and the place of its `ngx.on_abort` function.
fn with_abort<T>(f: impl FnOnce(&Conf, &mut Option<Anchor>) -> T) -> Result<T, NgxError> {
    if !phase().is_session() {
        return with_answer(|r| f(CONF.of(r.conf()), &mut answer::context(r).on_abort));
    }
    let of_session = |s: &mut Scripted| {
        let context = session::context(s);
        f(CONF.of(context.conf), &mut context.on_abort)
    };
    current::with_session(of_session).ok_or(NgxError::NoRequest)
}

fn threads(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_waiting("spawn", |_, (thread, arguments): (Thread, MultiValue)| {
        Ok(YieldRequest::Spawn(thread, arguments))
    })?;
    natives.add_waiting("join", |_, threads: MultiValue| {
        let ids: Option<Vec<ThreadId>> = threads.iter().map(ThreadId::of).collect();
        ids.map(YieldRequest::Join).ok_or_else(|| "attempt to wait on a non-thread".into())
    })?;
    natives.add_waiting("kill", |_, thread: Value| {
        let id = ThreadId::of(&thread).ok_or("attempt to kill a non-thread")?;
        Ok(YieldRequest::Kill(id))
    })
}

/// The status for `ngx.exit`, or an error if it may not be called here with this status.
fn exit_status(status: i64) -> Result<i32, NgxError> {
    if matches!(status, AGAIN | DONE) {
        return Err("bad argument to 'ngx.exit': does not accept NGX_AGAIN or NGX_DONE".into());
    }
    match phase() {
        phase if phase.may_exit() => i32::try_from(status).map_err(|_| "bad status".into()),
        phase => Err(NgxError::Disabled(phase)),
    }
}

fn exit(status: i64) -> Result<(), NgxError> {
    let status = exit_status(status)?;
    if !matches!(status, -1 | 408 | 444 | 499)
        && let Ok(refused) = with(|r| answer::context(r).may_abort())
    {
        refused?;
    }
    let late = |r: &mut Request| answer::is_begun(r) && phase().may_answer();
    // A timer has no request, and ends with any status.
    if status < 300 || matches!(status, 408 | 444 | 499) || !with_any(late).unwrap_or(false) {
        return current::request_yield(YieldRequest::Exit(Exit::Status(status)));
    }
    // The status was sent already: the answer ends where it is.
    with(|r| {
        let was = r.response.status;
        if i32::from(was) != status {
            let text = format_args!(
                "attempt to set status {status} via ngx.exit after sending out the response status {was}"
            );
            r.log(weir_log::Level::Error, text);
        }
    })?;
    current::request_yield(YieldRequest::Exit(Exit::Status(0)))
}

fn exec(r: &mut Request, uri: &[u8], args: &[u8]) -> Result<YieldRequest, NgxError> {
    answer::context(r).may_abort()?;
    if answer::is_begun(r) {
        return Err("attempt to call ngx.exec after sending out response headers".into());
    }
    if uri.is_empty() {
        return Err("The uri argument is empty".into());
    }
    if uri.first() == Some(&b'@') {
        let mut parts = uri.splitn(2, |byte| *byte == b'?');
        let (name, query) = (parts.next().unwrap_or(uri), parts.next().unwrap_or_default());
        let between: &[u8] = if query.is_empty() || args.is_empty() { b"" } else { b"&" };
        let all = [query, between, args].concat();
        if !all.is_empty() {
            let (all, name) = (weir_log::Bytes(&all), weir_log::Bytes(name));
            let text = "ignored when exec'ing named location";
            r.log(weir_log::Level::Warn, format_args!("query strings {all} {text} {name}"));
        }
        return Ok(YieldRequest::Exit(Exit::Exec(name.to_vec(), Vec::new())));
    }
    let safe = weir_proto::uri::is_unsafe(uri).map_err(|_| {
        let shown = weir_log::Bytes(uri);
        r.log(weir_log::Level::Error, format_args!("unsafe URI \"{shown}\" was detected"));
        "unsafe uri"
    })?;
    let mut query = encode::query(&safe.args.unwrap_or_default());
    if !query.is_empty() && !args.is_empty() {
        query.push(b'&');
    }
    query.extend_from_slice(&encode::query(args));
    Ok(YieldRequest::Exit(Exit::Exec(safe.path, query)))
}

fn redirect(r: &mut Request, uri: &[u8], status: i64) -> Result<YieldRequest, NgxError> {
    answer::context(r).may_abort()?;
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return Err("only ngx.HTTP_MOVED_TEMPORARILY, ngx.HTTP_MOVED_PERMANENTLY, \
                    ngx.HTTP_PERMANENT_REDIRECT, ngx.HTTP_SEE_OTHER, and \
                    ngx.HTTP_TEMPORARY_REDIRECT are allowed"
            .into());
    }
    if answer::is_begun(r) {
        return Err("attempt to call ngx.redirect after sending out the headers".into());
    }
    if let Some(text) = encode::unsafe_byte("redirect uri", uri) {
        return Err(text.into());
    }
    set_location_as_said(r, &mut [uri.to_vec()]);
    Ok(YieldRequest::Exit(Exit::Status(status as i32)))
}
