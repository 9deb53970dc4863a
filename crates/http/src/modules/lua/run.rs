//! Runs a script to its end: step by step, with waits between.
//!
//! Every script is a coroutine. Where a function of `ngx` has to wait, it leaves a [`Wish`] and yields; the run
//! fulfils it and goes on with the answer. What does not need the request is a future of its own, so that the
//! light threads of one script wait side by side; what needs it (reading the body, sending) is done at once,
//! one after another.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use mlua::{Error, Function, LightUserData, Lua, MultiValue, Thread, ThreadStatus, Value};
use weir_engine::{Either, either};
use weir_log::Level;

use super::current::{self, Phase};
use super::{answer, vm::Vm};
use crate::request::Request;

/// What a wait came to, as the values that the waiting function returns.
pub type Reply = Box<dyn FnOnce(&Lua) -> mlua::Result<MultiValue>>;

/// A wait that does not need the request.
pub type Wait = Pin<Box<dyn Future<Output = Reply>>>;

/// What a script waits for.
pub enum Wish {
    /// Something outside of the request.
    Wait(Wait),
    /// `ngx.req.read_body`
    ReadBody,
    /// `ngx.flush`
    Flush,
    /// `ngx.eof`
    Eof,
    /// `ngx.exit` and kin: the script does not go on.
    Exit(Exit),
    /// `ngx.thread.spawn`: a light thread that begins at once.
    Spawn(Thread, MultiValue),
    /// `ngx.thread.wait`: the first of these to end.
    Join(Vec<Thread>),
    /// `ngx.thread.kill`
    Kill(Thread),
}

/// How a script ended its run, other than by its end.
#[derive(Debug, PartialEq, Eq)]
pub enum Exit {
    /// `ngx.exit`
    Status(i32),
    /// `ngx.exec`: path (or `@name`) and query.
    Exec(Vec<u8>, Vec<u8>),
    /// `ngx.req.set_uri(uri, true)`: a location is looked for.
    Jump,
}

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it is done.
    Finished,
    /// It ended itself.
    Exit(Exit),
    /// An error, which the log was told.
    Failed,
    /// The client has gone.
    Abandoned,
}

/// One coroutine of a run; the first is the script itself.
struct Routine {
    thread: Thread,
    state: State,
    /// Whoever waited for it has its values.
    joined: bool,
}

enum State {
    Ready(MultiValue),
    Waiting(Wait),
    Joining(Vec<Thread>),
    Ended(bool, MultiValue),
}

/// A script at work.
struct Run<'r> {
    vm: &'r Vm,
    request: Option<&'r mut Request>,
    phase: Phase,
    routines: Vec<Routine>,
    /// The client's leaving would end it.
    watching: bool,
}

/// Runs a script that may wait, with a request or (a timer) without one.
pub async fn drive(
    vm: &Vm,
    mut request: Option<&mut Request>,
    phase: Phase,
    function: Function,
    args: MultiValue,
) -> Outcome {
    // What a timer's script keeps by its coroutine (`ngx.ctx`) is its own.
    let is_kept = request.is_some();
    let thread = if is_kept { vm.coroutine(function) } else { vm.lua.create_thread(function) };
    let thread = match thread {
        Ok(thread) => thread,
        Err(error) => return failed(request.as_deref(), vm, &error),
    };
    let (result, wish) = resume(request.as_deref_mut(), phase, &thread, args);
    if result.is_ok() && wish.is_none() && thread.status() != ThreadStatus::Resumable {
        // Most scripts do not wait for anything.
        if is_kept {
            vm.keep(thread);
        }
        return Outcome::Finished;
    }
    let entry = Routine { thread, state: State::Ready(MultiValue::new()), joined: false };
    let watching = request.as_ref().is_some_and(|r| r.conf().lua.check_client_abort);
    let run = Run { vm, request, phase, routines: vec![entry], watching };
    // Large, and seldom needed: no request pays for its room but one that waits.
    Box::pin(run.go_on((result, wish), is_kept)).await
}

/// Runs a script that may not wait; its values.
pub fn at_once(
    vm: &Vm,
    r: &mut Request,
    phase: Phase,
    function: Function,
    args: MultiValue,
) -> Result<Result<MultiValue, Exit>, String> {
    let thread = vm.coroutine(function).map_err(|error| text_of(&error))?;
    let (values, wish) = resume(Some(r), phase, &thread, args);
    let values = values.map_err(|error| text_of(&error))?;
    match wish.filter(|_| is_wait(&values)) {
        Some(Wish::Exit(exit)) => Ok(Err(exit)),
        None if thread.status() != ThreadStatus::Resumable => {
            vm.keep(thread);
            Ok(Ok(values))
        }
        _ => Err(format!("attempt to yield in the context of {}", phase.directive())),
    }
}

/// What a coroutine has yielded or returned, and what it waits for.
type Stepped = (mlua::Result<MultiValue>, Option<Wish>);

fn resume(r: Option<&mut Request>, phase: Phase, thread: &Thread, args: MultiValue) -> Stepped {
    let result = current::enter(r, phase, || thread.resume::<MultiValue>(args));
    (result, current::take_wish())
}

impl Run<'_> {
    /// All that follows the first step of the script.
    async fn go_on(mut self, first: Stepped, is_kept: bool) -> Outcome {
        if let Some(outcome) = self.stepped(0, first).await {
            return outcome;
        }
        loop {
            if let Some(outcome) = self.step_all().await {
                if let (Outcome::Finished, [_], true) = (&outcome, &self.routines[..], is_kept) {
                    self.routines.into_iter().for_each(|routine| self.vm.keep(routine.thread));
                }
                return outcome;
            }
            if let Some(outcome) = self.wait().await {
                return outcome;
            }
        }
    }

    /// Runs what can run, until all wait or the run is over.
    async fn step_all(&mut self) -> Option<Outcome> {
        while let Some(i) = self.first_ready() {
            if let Some(outcome) = self.step(i).await {
                return Some(outcome);
            }
        }
        let over = self.routines.iter().all(|routine| matches!(routine.state, State::Ended(..)));
        over.then_some(Outcome::Finished)
    }

    /// The newest first: a light thread runs before the one that has spawned it goes on.
    fn first_ready(&self) -> Option<usize> {
        self.routines.iter().rposition(|routine| matches!(routine.state, State::Ready(_)))
    }

    /// One step of a coroutine: up to its next wish, or its end.
    async fn step(&mut self, i: usize) -> Option<Outcome> {
        let routine = self.routines.get_mut(i)?;
        let State::Ready(args) = &mut routine.state else { return None };
        let args = std::mem::take(args);
        let step = resume(self.request.as_deref_mut(), self.phase, &routine.thread, args);
        self.stepped(i, step).await
    }

    /// Does what a coroutine's step has come to.
    async fn stepped(&mut self, i: usize, (result, wish): Stepped) -> Option<Outcome> {
        let values = match result {
            Ok(values) => values,
            Err(error) => return self.broke(i, &error),
        };
        if self.routines.get(i)?.thread.status() != ThreadStatus::Resumable {
            self.ended(i, true, values);
            return None;
        }
        match wish.filter(|_| is_wait(&values)) {
            // A plain `coroutine.yield`: it goes on when others had their turn.
            None => self.set(i, State::Waiting(Box::pin(turn()))),
            Some(Wish::Exit(exit)) => return Some(Outcome::Exit(exit)),
            Some(Wish::Wait(wait)) => self.set(i, State::Waiting(wait)),
            Some(Wish::Spawn(thread, args)) => {
                let value = Value::Thread(thread.clone());
                self.set(i, State::Ready(MultiValue::from_vec(vec![value])));
                let state = State::Ready(args);
                self.routines.push(Routine { thread, state, joined: false });
            }
            Some(Wish::Join(threads)) => self.join(i, threads),
            Some(Wish::Kill(thread)) => {
                let values = self.kill(&thread);
                self.set(i, State::Ready(values));
            }
            Some(Wish::ReadBody) => {
                let r = self.request.as_deref_mut()?;
                if let Err(status) = r.read_body().await {
                    // Too large, broken, too slow: no script can make good for that.
                    return Some(Outcome::Exit(Exit::Status(i32::from(status))));
                }
                self.set(i, State::Ready(MultiValue::new()));
            }
            Some(Wish::Flush) => {
                let values = self.send(false).await;
                self.set(i, State::Ready(values));
            }
            Some(Wish::Eof) => {
                let values = self.send(true).await;
                self.set(i, State::Ready(values));
            }
        }
        None
    }

    fn set(&mut self, i: usize, state: State) {
        if let Some(routine) = self.routines.get_mut(i) {
            routine.state = state;
        }
    }

    /// Sends what was written, and with `last` the end of the answer.
    async fn send(&mut self, last: bool) -> MultiValue {
        let Some(r) = self.request.as_deref_mut() else { return MultiValue::new() };
        let sent = if last { answer::eof(r).await } else { answer::flush(r).await };
        match sent {
            Ok(()) => MultiValue::from_vec(vec![Value::Integer(1)]),
            Err(text) => failure(&self.vm.lua, text),
        }
    }

    /// A coroutine ended with an error: the script's own ends the run.
    fn broke(&mut self, i: usize, error: &Error) -> Option<Outcome> {
        if i == 0 {
            return Some(failed(self.request.as_deref(), self.vm, error));
        }
        let text = text_of(error);
        let shown = format_args!("lua user thread aborted: runtime error: {text}");
        log(self.request.as_deref(), self.vm, shown);
        let first = text.split("\nstack traceback:").next().unwrap_or_default();
        let value = self.vm.lua.create_string(first).map_or(Value::Nil, Value::String);
        self.ended(i, false, MultiValue::from_vec(vec![value]));
        None
    }

    /// Notes how a coroutine ended, and wakes who waits for it.
    fn ended(&mut self, i: usize, well: bool, values: MultiValue) {
        self.set(i, State::Ended(well, values));
        for waiting in 0..self.routines.len() {
            let state = self.routines.get_mut(waiting).map(|routine| &mut routine.state);
            let Some(State::Joining(threads)) = state else { continue };
            let threads = std::mem::take(threads);
            self.join(waiting, threads);
        }
    }

    fn join(&mut self, i: usize, threads: Vec<Thread>) {
        let mut known = false;
        for routine in &mut self.routines {
            if !threads.contains(&routine.thread) || routine.joined {
                continue;
            }
            known = true;
            let State::Ended(well, values) = &mut routine.state else { continue };
            let (well, values) = (*well, std::mem::take(values));
            routine.joined = true;
            let values = std::iter::once(Value::Boolean(well)).chain(values).collect();
            return self.set(i, State::Ready(values));
        }
        if known {
            self.set(i, State::Joining(threads));
        } else {
            let values = failure(&self.vm.lua, "already waited or killed");
            self.set(i, State::Ready(values));
        }
    }

    fn kill(&mut self, thread: &Thread) -> MultiValue {
        let routine = self.routines.iter_mut().skip(1).find(|routine| routine.thread == *thread);
        match routine {
            Some(routine) if !routine.joined && !matches!(routine.state, State::Ended(..)) => {
                (routine.state, routine.joined) = (State::Ended(false, MultiValue::new()), true);
                MultiValue::from_vec(vec![Value::Integer(1)])
            }
            Some(_) => failure(&self.vm.lua, "already waited or killed"),
            None => failure(&self.vm.lua, "not a light thread of this request"),
        }
    }

    /// Waits until some coroutine can go on.
    async fn wait(&mut self) -> Option<Outcome> {
        let vm = self.vm;
        if !self.routines.iter().any(|routine| matches!(routine.state, State::Waiting(_))) {
            let text = format_args!("lua light threads wait for each other");
            log(self.request.as_deref(), vm, text);
            return Some(Outcome::Failed);
        }
        let Run { request, routines, watching, .. } = self;
        if let Some(r) = request.as_deref_mut()
            && answer::push(r).await.is_err()
            && *watching
        {
            return self.abandoned();
        }
        let ready = std::future::poll_fn(|cx| {
            let mut any = false;
            for routine in routines.iter_mut() {
                let State::Waiting(wait) = &mut routine.state else { continue };
                if let Poll::Ready(reply) = wait.as_mut().poll(cx) {
                    let values =
                        reply(&vm.lua).unwrap_or_else(|e| failure(&vm.lua, &e.to_string()));
                    routine.state = State::Ready(values);
                    any = true;
                }
            }
            if any { Poll::Ready(()) } else { Poll::Pending }
        });
        let watched = request.as_deref().filter(|_| *watching);
        let Some(r) = watched else {
            ready.await;
            return None;
        };
        match either(ready, r.client_left()).await {
            Either::Left(()) => None,
            Either::Right(()) => {
                r.log(Level::Info, format_args!("client prematurely closed connection"));
                self.abandoned()
            }
        }
    }

    /// The client has gone: the script ends, or its `ngx.on_abort` has the word.
    fn abandoned(&mut self) -> Option<Outcome> {
        let r = self.request.as_deref_mut()?;
        let Some(function) = answer::context(r).on_abort.take() else {
            return Some(Outcome::Abandoned);
        };
        self.watching = false;
        match self.vm.lua.create_thread(function) {
            Ok(thread) => {
                let state = State::Ready(MultiValue::new());
                self.routines.push(Routine { thread, state, joined: true });
                None
            }
            Err(error) => Some(failed(self.request.as_deref(), self.vm, &error)),
        }
    }
}

/// The other tasks of the loop go first.
async fn turn() -> Reply {
    weir_engine::yield_now().await;
    Box::new(|_| Ok(MultiValue::new()))
}

/// What the prelude yields to tell that it waits, and that no script can make.
pub fn mark() -> Value {
    Value::LightUserData(LightUserData(std::ptr::without_provenance_mut(MARK)))
}

/// Whether this was yielded by the prelude. A wish may have been told before a yield that failed, since C code
/// was between; it is not the next yield's.
fn is_wait(values: &MultiValue) -> bool {
    matches!(values.front(), Some(Value::LightUserData(mark)) if mark.0.addr() == MARK)
}

/// An address at which nothing is.
const MARK: usize = 16;

/// `nil, "what failed"`
pub fn failure(lua: &Lua, text: &str) -> MultiValue {
    let text = lua.create_string(text).map_or(Value::Nil, Value::String);
    MultiValue::from_vec(vec![Value::Nil, text])
}

fn failed(r: Option<&Request>, vm: &Vm, error: &Error) -> Outcome {
    let text = text_of(error);
    log(r, vm, format_args!("lua entry thread aborted: runtime error: {text}"));
    Outcome::Failed
}

/// Tells the log of the request, or of the whole site.
fn log(r: Option<&Request>, vm: &Vm, text: std::fmt::Arguments<'_>) {
    match r {
        Some(r) => r.log(Level::Error, text),
        None => vm.log(Level::Error, text),
    }
}

/// An error with its traceback, as logs of OpenResty have it.
pub fn text_of(error: &Error) -> String {
    let text = match error {
        Error::RuntimeError(text) => text.clone(),
        Error::SyntaxError { message, .. } => message.clone(),
        Error::CallbackError { traceback, cause } => format!("{cause}\n{traceback}"),
        error => error.to_string(),
    };
    text.replacen("\nstack traceback:\n", "\nstack traceback:\ncoroutine 0:\n", 1)
}

/// A reply that is one or more values known already.
pub fn reply(values: impl FnOnce(&Lua) -> mlua::Result<MultiValue> + 'static) -> Reply {
    Box::new(values)
}
