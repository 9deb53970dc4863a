//! Time: `ngx.now`, `ngx.time` and the like.

use std::cell::Cell;
use std::io::Write;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use weir_proto::date;

use super::natives::{AnswerKind, Natives};
use crate::event_loop::LoopState;
use crate::modules::lua::current::{self, NgxError, with};

thread_local! {
    /// The wall clock of the turn in which `ngx.update_time` was called, and the updated time, in
    /// milliseconds.
    static UPDATED: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.direct("now", |_, answer| {
        answer.number = now() as f64 / 1000.0;
        Ok::<_, NgxError>(AnswerKind::Number)
    })?;
    natives.direct("time", |_, answer| {
        answer.number = (now() / 1000) as f64;
        Ok::<_, NgxError>(AnswerKind::Number)
    })?;
    natives.add("monotonic_msec", |_, ()| {
        let time = clock_gettime(ClockId::Monotonic);
        time.tv_sec * 1000 + time.tv_nsec / 1_000_000
    })?;
    natives.direct("update_time", |_, _| {
        let time = clock_gettime(ClockId::Realtime);
        UPDATED.set((turn(), time.tv_sec * 1000 + time.tv_nsec / 1_000_000));
        Ok::<_, NgxError>(AnswerKind::Nil)
    })?;
    natives.direct("utctime", |_, answer| calendar(now() / 1000, 19, answer.text()))?;
    natives.direct("localtime", |_, answer| calendar(local(), 19, answer.text()))?;
    natives.direct("today", |_, answer| calendar(local(), 10, answer.text()))?;
    natives.add("http_time", |lua, time: f64| lua.create_string(date::imf_fixdate(time as i64)))?;
    natives.add("cookie_time", |lua, time: f64| {
        let mut out = Vec::new();
        date::cookie(time as i64, &mut out);
        lua.create_string(out)
    })?;
    natives.add("parse_http_time", |_, text: mlua::String| date::parse(&text.as_bytes()))?;
    natives.direct("start_time", |_, answer| {
        let started = match current::with_session(|s| s.started()) {
            Some(started) => started,
            None => with(|r| r.started)?,
        };
        let since = current::now().saturating_duration_since(started);
        answer.number = (turn() as f64) / 1000.0 - (since.as_millis() as f64) / 1000.0;
        Ok::<_, NgxError>(AnswerKind::Number)
    })
}

/// The wall clock of the turn, in milliseconds since 1970.
fn turn() -> i64 {
    LoopState::current().map_or(0, |event_loop| {
        let wall = event_loop.handle.wall();
        wall.secs * 1000 + i64::from(wall.msec)
    })
}

/// An earlier time, in seconds since 1970.
pub(super) fn at(now: Instant, then: Instant) -> i64 {
    turn() / 1000 - now.saturating_duration_since(then).as_secs() as i64
}

fn now() -> i64 {
    let (turn, (updated_in, updated)) = (turn(), UPDATED.get());
    if turn == updated_in { updated } else { turn }
}

/// Seconds since 1970 by the local clock.
fn local() -> i64 {
    let seconds = now() / 1000;
    let offset = LoopState::current().map_or(0, |event_loop| event_loop.local_time().1);
    seconds + i64::from(offset)
}

/// `2026-11-20 12:00:00`, cut to `length`.
fn calendar(time: i64, length: usize, out: &mut Vec<u8>) -> std::io::Result<AnswerKind> {
    let c = date::Calendar::at(time);
    let (year, month, day) = (c.year, c.month, c.day);
    let (hour, minute, second) = (c.hour, c.minute, c.second);
    write!(out, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")?;
    out.truncate(length);
    Ok(AnswerKind::Text)
}
