//! The client's body by `ngx.req.socket`: one coroutine of a script reads it, and the others go on meanwhile.

use std::rc::Rc;
use std::time::Instant;

use super::{RoutineState, ScriptRun, received_reply, refused};
use crate::modules::lua::answer;
use crate::modules::lua::conf::CONF;
use crate::modules::lua::socket::{BodySocket, Pattern, Received, SocketError};
use crate::request::Request;

/// What a coroutine waits for.
pub(super) struct Reading {
    socket: Rc<BodySocket>,
    pattern: Pattern,
    /// When it has waited for too long.
    until: Instant,
}

impl Reading {
    /// Waits until there is more of the body; false if that takes too long.
    pub(super) async fn readable(self: Rc<Self>, r: Option<&Request>) -> bool {
        match r {
            Some(r) => self.socket.readable(r, self.until).await,
            None => false,
        }
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
        let state = match self.request.as_deref_mut() {
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

    /// There is more of the body, or it did not come in time.
    pub(super) async fn go_on_reading(&mut self, in_time: bool) {
        let reads = |state: &RoutineState| matches!(state, RoutineState::Reading(_));
        let Some(i) = self.routines.iter().position(|routine| reads(&routine.state)) else {
            return;
        };
        let (Some(reading), Some(r)) = (self.reading(), self.request.as_deref_mut()) else {
            return;
        };
        let more = match in_time {
            true => reading.socket.more(r).await,
            false => Err(SocketError::Timeout),
        };
        let state = match more {
            Ok(()) => of_what_came(r, reading.socket.clone(), reading.pattern.clone()),
            Err(failed) => ended(r, Err(reading.socket.give_up(failed))),
        };
        self.set(i, state);
    }
}

/// What follows from what has come.
fn of_what_came(r: &mut Request, socket: Rc<BodySocket>, pattern: Pattern) -> RoutineState {
    match socket.received(r, &pattern) {
        Some(received) => ended(r, received),
        None => {
            let until = r.event_loop.handle.now() + socket.timeout();
            RoutineState::Reading(Rc::new(Reading { socket, pattern, until }))
        }
    }
}

fn ended(r: &Request, received: Received) -> RoutineState {
    RoutineState::Ready(received_reply(received, CONF.of(r.conf()).socket_log_errors))
}
