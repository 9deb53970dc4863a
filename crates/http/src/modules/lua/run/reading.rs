//! Reading the request's body: one coroutine of a script reads it, while the others run.

use std::rc::Rc;
use std::time::Instant;

use mlua::MultiValue;
use weir_engine::{Either, either};

use super::{RoutineState, ScriptOutcome, ScriptRun, ready, received_reply, refused};
use crate::body::RequestBodyError;
use crate::modules::lua::answer;
use crate::modules::lua::conf::CONF;
use crate::modules::lua::socket::{BodySocket, Pattern, Received, Searched, SocketError};
use crate::modules::lua::yield_request::Exit;
use crate::request::Request;

/// A coroutine's read of the body.
pub(super) struct Reading {
    what: Wanted,
    /// The deadline for more of the body.
    until: Instant,
}

#[derive(Clone)]
enum Wanted {
    /// A part, read through `ngx.req.socket`.
    Part(Part),
    /// All of it, read by `ngx.req.read_body`.
    All,
}

#[derive(Clone)]
struct Part {
    socket: Rc<BodySocket>,
    pattern: Pattern,
    searched: Searched,
}

impl Reading {
    /// Waits until more of the body is there. False if the deadline passes.
    pub(super) async fn readable(self: Rc<Self>, r: Option<&Request>) -> bool {
        let Some(r) = r else { return false };
        let handle = &r.event_loop.handle;
        let left = self.until.saturating_duration_since(handle.now());
        matches!(either(r.body_readable(), handle.sleep(left)).await, Either::Left(()))
    }
}

impl ScriptRun<'_> {
    /// A receiving method of `ngx.req.socket`: returns what the pattern asks for, or waits for more
    /// of the body.
    pub(super) async fn receive(&mut self, i: usize, pattern: Pattern) {
        let is_busy = self.routines.reading().is_some();
        let state = match self.subject.request_mut() {
            Some(r) if !is_busy => match answer::context(r).body_socket.clone() {
                Some(socket) => match socket.begin(r).await {
                    Ok(()) => {
                        of_what_came(r, Part { socket, pattern, searched: Searched::default() })
                    }
                    Err(failed) => ended(r, Err((failed, Vec::new()))),
                },
                None => refused("closed"),
            },
            Some(_) => refused("socket busy reading"),
            None => refused("closed"),
        };
        self.set(i, state);
    }

    /// `ngx.req.read_body`: resumes the coroutine once all of the body is there.
    pub(super) async fn read_body(&mut self, i: usize) -> Option<ScriptOutcome> {
        let (is_busy, is_alone) = (self.routines.reading().is_some(), self.routines.len() == 1);
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

    /// Resumes the coroutine if all of the body is there, or lets it wait for more.
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
            // The body is too large, broken or too slow. The request ends.
            Err(error) => {
                return Some(ScriptOutcome::Exit(Exit::Status(i32::from(error.status()))));
            }
        };
        self.set(i, state);
        None
    }

    /// Continues a read: more of the body has arrived, or the deadline has passed.
    pub(super) async fn continue_reading(&mut self, in_time: bool) -> Option<ScriptOutcome> {
        let (i, reading) = self.routines.reading()?;
        let r = self.subject.request_mut()?;
        let Wanted::Part(part) = reading.what.clone() else {
            if !in_time {
                r.body_timed_out();
            }
            let read = r.gather_more().await;
            return self.gathered(i, read);
        };
        let more = match in_time {
            true => part.socket.more(r).await,
            false => Err(SocketError::Timeout),
        };
        let state = match more {
            Ok(()) => of_what_came(r, part),
            Err(failed) => ended(r, Err(part.socket.give_up(&part.pattern, failed))),
        };
        self.set(i, state);
        None
    }
}

/// The state of a coroutine after a receive: done, or waiting for more.
fn of_what_came(r: &mut Request, mut part: Part) -> RoutineState {
    let Part { socket, pattern, searched } = &mut part;
    match socket.received(r, pattern, searched) {
        Some(received) => ended(r, received),
        None => {
            let until = r.event_loop.handle.now() + socket.timeout();
            RoutineState::Reading(Rc::new(Reading { what: Wanted::Part(part), until }))
        }
    }
}

fn ended(r: &Request, received: Received) -> RoutineState {
    let told = CONF.of(r.conf()).socket_log_errors.then(Rc::default);
    RoutineState::Ready(received_reply(received, told))
}
