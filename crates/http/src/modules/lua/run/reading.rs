//! The client's body: one coroutine of a script reads it, and the others go on meanwhile.

use std::rc::Rc;
use std::time::Instant;

use mlua::MultiValue;
use weir_engine::{Either, either};

use super::{RoutineState, ScriptOutcome, ScriptRun, ready, received_reply, refused};
use crate::body::RequestBodyError;
use crate::modules::lua::answer;
use crate::modules::lua::conf::CONF;
use crate::modules::lua::socket::{BodySocket, Pattern, Received, SocketError};
use crate::modules::lua::wish::Exit;
use crate::request::Request;

/// What a coroutine waits for.
pub(super) struct Reading {
    what: Wanted,
    /// When it has waited for too long.
    until: Instant,
}

#[derive(Clone)]
enum Wanted {
    /// A part, by `ngx.req.socket`.
    Part(Rc<BodySocket>, Pattern),
    /// All of it, by `ngx.req.read_body`.
    All,
}

impl Reading {
    /// Waits until there is more of the body; false if that takes too long.
    pub(super) async fn readable(self: Rc<Self>, r: Option<&Request>) -> bool {
        let Some(r) = r else { return false };
        let handle = &r.event_loop.handle;
        let left = self.until.saturating_duration_since(handle.now());
        matches!(either(r.body_readable(), handle.sleep(left)).await, Either::Left(()))
    }
}

impl ScriptRun<'_> {
    /// What a coroutine reads, if one does.
    pub(super) fn reading(&self) -> Option<Rc<Reading>> {
        self.routines.iter().find_map(|routine| match &routine.state {
            RoutineState::Reading(reading) => Some(reading.clone()),
            _ => None,
        })
    }

    /// A coroutine gets what it wants of the body, or waits for more of it.
    pub(super) async fn receive(&mut self, i: usize, pattern: Pattern) {
        let is_busy = self.reading().is_some();
        let state = match self.subject.request_mut() {
            Some(r) if !is_busy => match answer::context(r).body_socket.clone() {
                Some(socket) => match socket.begin(r).await {
                    Ok(()) => of_what_came(r, socket, pattern),
                    Err(failed) => ended(r, Err((failed, Vec::new()))),
                },
                None => refused("closed"),
            },
            Some(_) => refused("socket busy reading"),
            None => refused("closed"),
        };
        self.set(i, state);
    }

    /// `ngx.req.read_body`: a coroutine goes on once all of the body is there.
    pub(super) async fn read_body(&mut self, i: usize) -> Option<ScriptOutcome> {
        let (is_busy, is_alone) = (self.reading().is_some(), self.routines.len() == 1);
        let r = self.subject.request_mut()?;
        let is_taken = answer::context(r).body_socket.is_some() || answer::is_taken_over(r);
        let read = match is_taken || is_busy {
            true => Ok(true),
            false if is_alone => r.read_body().await.map(|()| true),
            false => match r.send_continue().await {
                Ok(()) => r.gather_now().await,
                Err(error) => Err(error),
            },
        };
        self.gathered(i, read)
    }

    /// All of the body is there, or not yet.
    fn gathered(
        &mut self,
        i: usize,
        read: Result<bool, RequestBodyError>,
    ) -> Option<ScriptOutcome> {
        let state = match read {
            Ok(true) => ready(|_| Ok(MultiValue::new())),
            Ok(false) => {
                let r = self.subject.request()?;
                let until = r.event_loop.handle.now() + r.conf().core.client_body_timeout;
                RoutineState::Reading(Rc::new(Reading { what: Wanted::All, until }))
            }
            // Too large, broken, too slow: no script can make good for that.
            Err(error) => {
                return Some(ScriptOutcome::Exit(Exit::Status(i32::from(error.status()))));
            }
        };
        self.set(i, state);
        None
    }

    /// There is more of the body, or it did not come in time.
    pub(super) async fn go_on_reading(&mut self, in_time: bool) -> Option<ScriptOutcome> {
        let reads = |state: &RoutineState| matches!(state, RoutineState::Reading(_));
        let i = self.routines.iter().position(|routine| reads(&routine.state))?;
        let reading = self.reading()?;
        let r = self.subject.request_mut()?;
        let Wanted::Part(socket, pattern) = reading.what.clone() else {
            if !in_time {
                r.body_timed_out();
            }
            let read = r.gather_more().await;
            return self.gathered(i, read);
        };
        let more = match in_time {
            true => socket.more(r).await,
            false => Err(SocketError::Timeout),
        };
        let state = match more {
            Ok(()) => of_what_came(r, socket, pattern),
            Err(failed) => ended(r, Err(socket.give_up(failed))),
        };
        self.set(i, state);
        None
    }
}

/// What follows from what has come.
fn of_what_came(r: &mut Request, socket: Rc<BodySocket>, pattern: Pattern) -> RoutineState {
    match socket.received(r, &pattern) {
        Some(received) => ended(r, received),
        None => {
            let until = r.event_loop.handle.now() + socket.timeout();
            RoutineState::Reading(Rc::new(Reading { what: Wanted::Part(socket, pattern), until }))
        }
    }
}

fn ended(r: &Request, received: Received) -> RoutineState {
    let told = CONF.of(r.conf()).socket_log_errors.then(Rc::default);
    RoutineState::Ready(received_reply(received, told))
}
