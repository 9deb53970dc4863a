//! Operations of a run on its subject: a request, a session, or none.

use std::time::Duration;

use mlua::Error;
use weir_log::Level;

use super::ScriptOutcome;
use crate::answer::change;
use crate::modules::lua::conf::{CONF, Conf};
use crate::modules::lua::current::{Phase, Subject};
use crate::modules::lua::vm::Vm;
use crate::modules::lua::yield_request::text_of;
use crate::modules::lua::{answer, handshake, session};
use crate::request::Request;

/// `lua_max_run_time`
pub(super) fn limit_of(subject: &mut Subject<'_>) -> Duration {
    conf_of(subject).map_or(Duration::ZERO, |conf| conf.max_run_time)
}

/// The settings of the request or the session.
pub(super) fn conf_of<'a>(subject: &'a mut Subject<'_>) -> Option<&'a Conf> {
    match subject {
        Subject::Nothing | Subject::Timer(_) => None,
        Subject::Request(r) => Some(CONF.of(r.conf())),
        Subject::Session(s) => Some(CONF.of(session::context(*s).conf)),
    }
}

/// Sends what was written if it is enough, since the script waits.
pub(super) async fn push(subject: &mut Subject<'_>) -> Result<(), ()> {
    match subject {
        Subject::Nothing | Subject::Timer(_) => Ok(()),
        Subject::Request(r) => answer::push(r).await,
        Subject::Session(s) => session::send(*s, false).await.map_err(|_| ()),
    }
}

/// Sets `Content-Length` to the length of a body that a script made.
pub(super) fn tell_length(r: &mut Request) {
    let length = r.body.len().to_string().into_bytes();
    change::set_request(r, b"Content-Length", &[length]);
}

/// Logs the script's error and ends the run.
pub(super) fn failed(subject: &Subject<'_>, vm: &Vm, error: &Error) -> ScriptOutcome {
    let text = text_of(error);
    log(subject, vm, format_args!("lua entry thread aborted: runtime error: {text}"));
    ScriptOutcome::Failed
}

/// Writes to the log of the request, the session, or the site.
pub(super) fn log(subject: &Subject<'_>, vm: &Vm, text: std::fmt::Arguments<'_>) {
    match subject {
        Subject::Request(r) => {
            let place = r.contexts.handshake.as_ref().map_or("", |handshake| handshake.place);
            handshake::log(r, Level::Error, format_args!("{text}{place}"));
        }
        Subject::Session(s) => s.log(Level::Error, format_args!("{text}{}", s.place())),
        Subject::Timer(timer) => {
            let (place, origin) = (Phase::Timer.in_log(), &timer.origin);
            let log = &timer.conf.core.error_log;
            log.write(Level::Error, None, format_args!("{text}{place}{origin}"));
        }
        Subject::Nothing => vm.log(Level::Error, text),
    }
}
