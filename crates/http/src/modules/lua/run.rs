//! Runs a script to its end, one step of a coroutine at a time.
//!
//! Each script is a coroutine. A function of `ngx` that must wait sets a [`YieldRequest`] and
//! yields. The run carries it out and resumes the coroutine with the result. A wait that does not
//! need the request is a future of its own, so that light threads of one script wait concurrently.
//! Operations on the request (reading the body, sending) run one after another.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use mlua::{Error, Lua, MultiValue, Thread, Value};

use super::answer;
use super::api::{raw_socket_reply, tell_failed};
use super::current::{Phase, Subject};
use super::session;
use super::socket::Received;
use super::vm::Vm;
use super::yield_request::{Exit, Reply, YieldRequest, failure, is_failed, reply, text_of};

mod leaving;
mod reading;
mod routines;
mod step;
mod subject;
mod threads;

use leaving::is_watched;
use routines::{Routine, RoutineState, Routines};
use step::{Activity, CoroutineStep, begin, step};
pub use step::{Start, at_once};
use subject::{failed, log, push, tell_length};

/// After so many plain yields of a script's coroutines, the other tasks of the loop run.
const YIELDS_BETWEEN_TURNS: u32 = 64;

/// The outcome of a run.
#[derive(Debug, PartialEq, Eq)]
pub enum ScriptOutcome {
    /// All coroutines have ended.
    Finished,
    /// The script ended the run, by `ngx.exit` and the like.
    Exit(Exit),
    /// An error, which was logged.
    Failed,
    /// The client is gone.
    Abandoned,
}

/// An event that a run waits for.
enum Event {
    /// A coroutine is ready.
    Ready,
    /// More of the body has arrived, or its timeout has passed.
    Body { in_time: bool },
}

/// A running script.
struct ScriptRun<'r> {
    vm: &'r Vm,
    subject: Subject<'r>,
    activity: Activity,
    routines: Routines,
    /// The numbers of ready coroutines, in the order in which their waits ended.
    ready: VecDeque<u64>,
    /// The numbers of coroutines that wait for light threads.
    joining: Vec<u64>,
    /// The number of plain yields.
    yields: u32,
    /// Whether the run ends when the client leaves.
    watching: bool,
}

/// Runs a script that may yield.
pub async fn drive(
    vm: &Vm,
    mut subject: Subject<'_>,
    phase: Phase,
    start: Start<'_>,
) -> ScriptOutcome {
    let activity = start.activity(&mut subject, phase);
    let (thread, step) = match begin(vm, subject.lend(), activity, start) {
        Ok((_, CoroutineStep::Failed(error))) | Err(error) => return failed(&subject, vm, &error),
        Ok((thread, CoroutineStep::Ended(_))) => {
            // Most scripts end in their first step.
            if matches!(start, Start::Script(_)) {
                vm.keep(thread);
            }
            return ScriptOutcome::Finished;
        }
        Ok((_, CoroutineStep::Requested(YieldRequest::Exit(exit)))) => {
            return ScriptOutcome::Exit(exit);
        }
        Ok(waits) => waits,
    };
    let thread = match vm.anchors.keep(thread) {
        Ok(thread) => thread,
        Err(error) => return failed(&subject, vm, &error),
    };
    let watching = is_watched(&mut subject, phase);
    let routines = Routines::new(thread);
    let (ready, joining, yields) = Default::default();
    let run = ScriptRun { vm, subject, activity, routines, ready, joining, yields, watching };
    // The future is large. Only scripts that yield need it.
    Box::pin(run.continue_after(step, matches!(start, Start::Script(_)))).await
}

impl ScriptRun<'_> {
    /// Continues after the first step of the script.
    async fn continue_after(mut self, first: CoroutineStep, is_script: bool) -> ScriptOutcome {
        if let Some(outcome) = self.after_step(0, first).await {
            return outcome;
        }
        loop {
            if let Some(outcome) = self.step_all().await {
                if let (ScriptOutcome::Finished, 1, true) =
                    (&outcome, self.routines.len(), is_script)
                    && let Some(Ok(thread)) = self.routines.get(0).map(|r| r.thread().get())
                {
                    self.vm.keep(thread);
                }
                return outcome;
            }
            if let Some(outcome) = self.wait().await {
                return outcome;
            }
        }
    }

    /// Runs ready coroutines until none is ready or the run is over.
    async fn step_all(&mut self) -> Option<ScriptOutcome> {
        while let Some(i) = self.first_ready() {
            let step = self.step(i);
            if let Some(outcome) = self.after_step(i, step).await {
                return Some(outcome);
            }
        }
        self.routines.are_over().then_some(ScriptOutcome::Finished)
    }

    /// Removes the next ready coroutine from the queue. Killed ones are skipped.
    fn first_ready(&mut self) -> Option<usize> {
        loop {
            let number = self.ready.pop_front()?;
            if let Some(i) = self.routines.index_of(number) {
                return Some(i);
            }
        }
    }

    /// Runs a step of a coroutine, up to its next yield or its end.
    fn step(&mut self, i: usize) -> CoroutineStep {
        let ScriptRun { vm, subject, activity, routines, .. } = self;
        let state = routines.replace(i, RoutineState::Busy);
        let (RoutineState::Ready(reply), Some(routine)) = (state, routines.get(i)) else {
            return CoroutineStep::Yielded;
        };
        step(vm, subject.lend(), *activity, || {
            let thread: Thread = routine.thread().get()?;
            let args = reply(&vm.lua).unwrap_or_else(|e| failure(&vm.lua, &e.to_string()));
            Ok((thread.resume(args)?, thread.status()))
        })
    }

    /// Handles the outcome of a step.
    async fn after_step(&mut self, i: usize, step: CoroutineStep) -> Option<ScriptOutcome> {
        let yielded = match step {
            CoroutineStep::Requested(yielded) => yielded,
            CoroutineStep::Failed(error) => return self.coroutine_failed(i, &error),
            CoroutineStep::Ended(values) => return self.coroutine_returned(i, values),
            CoroutineStep::Yielded => {
                self.requeue(i);
                return None;
            }
        };
        match yielded {
            YieldRequest::Exit(exit) => return Some(ScriptOutcome::Exit(exit)),
            YieldRequest::Wait(wait) => {
                // A wait begins at once, in the order of the calls, so that others find the socket
                // busy.
                let mut wait = Some(wait);
                let begun = poll_fn(|cx| {
                    Poll::Ready(wait.take().and_then(|wait| self.routines.begin(i, wait, cx)))
                });
                if let Some(reply) = begun.await {
                    self.set(i, RoutineState::Ready(reply));
                }
            }
            // As in nginx, a subrequest begins once all coroutines of the script wait.
            YieldRequest::Capture(wait) => {
                self.routines.begin_later(i, RoutineState::Capturing(wait));
            }
            YieldRequest::Spawn(thread, args) => return self.spawn(i, thread, args),
            YieldRequest::Join(ids) => self.join(i, ids),
            YieldRequest::Kill(id) => self.kill(i, id),
            YieldRequest::ReadBody => return self.read_body(i).await,
            YieldRequest::SetBody(bytes, room) => {
                let r = self.subject.request_mut()?;
                if let Err(error) = r.put_body(bytes, room).await {
                    return Some(ScriptOutcome::Exit(Exit::Status(i32::from(error.status()))));
                }
                tell_length(r);
                self.set(i, ready(|_| Ok(MultiValue::new())));
            }
            YieldRequest::SetBodyFile(path, clean) => {
                let r = self.subject.request_mut()?;
                let text = format!("open() \"{}\" failed", path.display());
                let state = match r.put_body_file(path, clean).await {
                    Ok(()) => succeeded(),
                    Err(error) => {
                        let text = format!("{text} {}", weir_log::Cause(&error));
                        ready(move |lua| Ok(failure(lua, &text)))
                    }
                };
                tell_length(r);
                self.set(i, state);
            }
            YieldRequest::ReceiveBody(pattern) => self.receive(i, pattern).await,
            YieldRequest::TakeOver => {
                let r = self.subject.request_mut()?;
                let taken = answer::take_over(r).await;
                self.set(i, RoutineState::Ready(raw_socket_reply(taken)));
            }
            YieldRequest::Flush { waits } => {
                let state = self.send(Some(waits)).await;
                self.set(i, state);
            }
            YieldRequest::Eof => {
                let state = self.send(None).await;
                self.set(i, state);
            }
        }
        None
    }

    /// Sets the state of a coroutine. A ready one runs before others that are ready.
    fn set(&mut self, i: usize, state: RoutineState) {
        let number = self.routines.get(i).map(Routine::number);
        if matches!(state, RoutineState::Ready(_)) {
            number.into_iter().for_each(|number| self.ready.push_front(number));
        }
        self.routines.replace(i, state);
    }

    /// Lets a coroutine that has yielded run after the other ready ones. Now and then, the loop's
    /// other tasks and waiting coroutines of this run go first.
    fn requeue(&mut self, i: usize) {
        self.yields = self.yields.wrapping_add(1);
        if self.ready.is_empty() || self.yields.is_multiple_of(YIELDS_BETWEEN_TURNS) {
            self.routines.begin_later(i, RoutineState::Waiting(Box::pin(yield_to_loop())));
        } else {
            self.go_on_behind(i);
        }
    }

    /// Lets a coroutine go on after those that are ready.
    fn go_on_behind(&mut self, i: usize) {
        self.routines.replace(i, ready(|_| Ok(MultiValue::new())));
        self.ready.extend(self.routines.get(i).map(Routine::number));
    }

    /// Sends what was written: `ngx.flush` with its argument, or `ngx.eof`, which ends the answer.
    async fn send(&mut self, flush: Option<bool>) -> RoutineState {
        let sent = match (&mut self.subject, flush) {
            (Subject::Nothing | Subject::Timer(_), _) => Ok(()),
            (Subject::Request(r), Some(waits)) => answer::flush(r, waits).await,
            (Subject::Request(r), None) => answer::eof(r).await,
            (Subject::Session(s), flush) => session::send(*s, flush.is_none()).await,
        };
        match sent {
            Ok(()) => succeeded(),
            Err(text) => refused(text),
        }
    }

    /// A coroutine has failed. If it is the script's own, the run ends.
    fn coroutine_failed(&mut self, i: usize, error: &Error) -> Option<ScriptOutcome> {
        if i == 0 {
            return Some(failed(&self.subject, self.vm, error));
        }
        let text = text_of(error);
        let shown = format_args!("lua user thread aborted: runtime error: {text}");
        log(&self.subject, self.vm, shown);
        let first = text.split("\nstack traceback:").next().unwrap_or_default();
        let value = self.vm.lua.create_string(first).map_or(Value::Nil, Value::String);
        self.record_end(i, false, MultiValue::from_vec(vec![value]))
    }

    /// A coroutine's function has returned. A light thread also returns, behind a mark, the error
    /// that its function raised.
    fn coroutine_returned(&mut self, i: usize, mut values: MultiValue) -> Option<ScriptOutcome> {
        match values.front() {
            Some(value) if is_failed(value) => {}
            _ => return self.record_end(i, true, values),
        }
        values.pop_front();
        if let Some(Value::String(text)) = values.pop_front() {
            let error = Error::RuntimeError(text.to_string_lossy());
            let text = text_of(&error);
            let shown = format_args!("lua user thread aborted: runtime error: {text}");
            log(&self.subject, self.vm, shown);
        }
        self.record_end(i, false, values)
    }

    /// Keeps the values of a coroutine that has ended, and wakes a coroutine that waits for it.
    fn record_end(&mut self, i: usize, well: bool, values: MultiValue) -> Option<ScriptOutcome> {
        let values = match self.vm.anchors.pack(values) {
            Ok(values) => values,
            Err(error) => return Some(failed(&self.subject, self.vm, &error)),
        };
        self.set(i, RoutineState::Ended(well, values));
        if let Some(id) = self.routines.get(i)?.id() {
            self.rejoin(id);
        }
        None
    }

    /// Waits until a coroutine is ready.
    async fn wait(&mut self) -> Option<ScriptOutcome> {
        if !self.routines.wait() {
            let text = format_args!("lua light threads wait for each other");
            log(&self.subject, self.vm, text);
            return Some(ScriptOutcome::Failed);
        }
        if push(&mut self.subject).await.is_err() && self.watching {
            return self.abandoned();
        }
        match self.event().await {
            None => self.abandoned(),
            Some(Event::Ready) => None,
            Some(Event::Body { in_time }) => self.continue_reading(in_time).await,
        }
    }
}

/// Ready to resume with these values.
fn ready(values: impl FnOnce(&Lua) -> mlua::Result<MultiValue> + 'static) -> RoutineState {
    RoutineState::Ready(Box::new(values))
}

/// Ready to resume with 1, for success.
fn succeeded() -> RoutineState {
    ready(|_| Ok(MultiValue::from_vec(vec![Value::Integer(1)])))
}

/// Ready to resume with nil and this error.
fn refused(text: &'static str) -> RoutineState {
    ready(move |lua| Ok(failure(lua, text)))
}

/// Yields to the other tasks of the loop.
async fn yield_to_loop() -> Reply {
    weir_engine::yield_now().await;
    Box::new(|_| Ok(MultiValue::new()))
}

/// The result of a receiving method: the bytes and, as the fourth value, whether a delimiter was
/// reached; or nil, the error, and the bytes received before it.
pub fn received_reply(received: Received, told: Option<Rc<str>>) -> Reply {
    reply(move |lua| match received {
        Ok((bytes, reached)) => {
            let text = Value::String(lua.create_string(bytes)?);
            Ok(MultiValue::from_vec(vec![text, Value::Nil, Value::Nil, Value::Boolean(reached)]))
        }
        Err((failed, part)) => {
            if let Some(peer) = &told {
                tell_failed(&failed, "tcp", "read", peer);
            }
            let mut values = failure(lua, &failed.to_string());
            values.push_back(Value::String(lua.create_string(part)?));
            Ok(values)
        }
    })
}
