//! What a run does when the client leaves: `lua_check_client_abort`, `ngx.on_abort`.

use std::future::poll_fn;
use std::task::Poll;

use mlua::{Function, MultiValue};
use weir_engine::{Either, either};

use super::subject::{conf_of, failed};
use super::{Event, ScriptOutcome, ScriptRun, ready};
use crate::modules::lua::current::{Phase, Subject};
use crate::modules::lua::{answer, session};

/// Whether the run ends when the client leaves.
pub(super) fn is_watched(subject: &mut Subject<'_>, phase: Phase) -> bool {
    match subject.request().and_then(|r| r.contexts.handshake.as_ref()) {
        Some(handshake) => handshake.is_watched,
        None if phase.is_handshake() => false,
        None if phase.is_to_server() => {
            let handshake = subject.request().and_then(|r| r.contexts.upstream.handshake.as_ref());
            handshake.is_some_and(|handshake| handshake.is_watched)
        }
        None => conf_of(subject).is_some_and(|conf| conf.check_client_abort),
    }
}

impl ScriptRun<'_> {
    /// Waits for the next event. `None` if the client has left.
    pub(super) async fn event(&mut self) -> Option<Event> {
        let reading = self.routines.reading().map(|(_, reading)| reading);
        let ScriptRun { subject, routines, ready: line, watching, .. } = self;
        let ready = poll_fn(|cx| {
            let over = routines.poll_woken(cx);
            let any = !over.is_empty();
            line.extend(over);
            if any { Poll::Ready(()) } else { Poll::Pending }
        });
        let r = subject.request();
        let event = async {
            let Some(reading) = reading else {
                ready.await;
                return Event::Ready;
            };
            match either(ready, reading.readable(r)).await {
                Either::Left(()) => Event::Ready,
                Either::Right(in_time) => Event::Body { in_time },
            }
        };
        if !*watching {
            return Some(event.await);
        }
        let mut first = None;
        let told = async { first = Some(event.await) };
        match &*subject {
            Subject::Request(r) => drop(r.client_stays_until(told, "").await),
            Subject::Session(s) => session::client_stays_until(*s, told).await,
            Subject::Nothing | Subject::Timer(_) => told.await,
        }
        first
    }

    /// The client has left: the run ends, or the function of `ngx.on_abort` runs.
    pub(super) fn abandoned(&mut self) -> Option<ScriptOutcome> {
        let function = match &mut self.subject {
            Subject::Request(r) => answer::context(r).on_abort.take(),
            Subject::Session(s) => session::context(*s).on_abort.take(),
            Subject::Nothing | Subject::Timer(_) => return None,
        };
        let Some(function) = function else { return Some(ScriptOutcome::Abandoned) };
        self.watching = false;
        let thread = function.get::<Function>().and_then(|f| self.vm.lua.create_thread(f));
        match thread.and_then(|thread| self.vm.anchors.keep(thread)) {
            Ok(thread) => {
                let state = ready(|_| Ok(MultiValue::new()));
                let number = self.routines.add(thread, None, state);
                self.ready.push_back(number);
                None
            }
            Err(error) => Some(failed(&self.subject, self.vm, &error)),
        }
    }
}
