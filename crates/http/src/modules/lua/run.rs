//! Runs a script to its end: step by step, with waits between.
//!
//! Every script is a coroutine. Where a function of `ngx` has to wait, it leaves a [`Wish`] and yields; the run
//! fulfils it and goes on with the answer. What does not need the request is a future of its own, so that the
//! light threads of one script wait side by side; what needs it (reading the body, sending) is done at once,
//! one after another.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use mlua::{Error, Lua, MultiValue, Thread, ThreadStatus, Value};

use super::anchors::{Anchor, Packed};
use super::answer;
use super::api::{raw_socket_reply, tell_failed};
use super::current::{self, Phase, Subject};
use super::limit;
use super::session;
use super::socket::Received;
use super::vm::{Compiled, ScriptError, Vm};
use super::wish::{Exit, Reply, ThreadId, Wait, Wish, failure, is_failed, is_wait, reply, text_of};
use weir_values::doing::{self, ActivityName};

mod leaving;
mod reading;
mod subject;

use leaving::is_watched;
use reading::Reading;
use subject::{failed, limit_of, log, push, tell_length};

/// So often coroutines of a script pass the turn among themselves before other tasks of the loop get it.
const TURNS: u32 = 64;

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ScriptOutcome {
    /// All of it is done.
    Finished,
    /// It ended itself.
    Exit(Exit),
    /// An error, which was logged.
    Failed,
    /// The client has gone.
    Abandoned,
}

/// What a run begins with.
#[derive(Clone, Copy)]
pub enum Start<'a> {
    /// A script of the configuration.
    Script(&'a Compiled),
    /// A timer's function and its arguments.
    Timer {
        /// The loop ends before the timer's time has come.
        premature: bool,
        /// The function first.
        call: &'a Packed,
        /// `lua_max_run_time` where the timer was set.
        limit: Duration,
    },
}

impl Start<'_> {
    fn name(self) -> ActivityName {
        match self {
            Start::Script(code) => code.name,
            Start::Timer { .. } => ActivityName::default(),
        }
    }

    fn activity(self, subject: &mut Subject<'_>, phase: Phase) -> Activity {
        let limit = match self {
            Start::Timer { limit, .. } => limit,
            Start::Script(_) => limit_of(subject),
        };
        Activity { phase, name: self.name(), limit }
    }
}

/// What a run is, the same in all of its steps.
#[derive(Clone, Copy)]
struct Activity {
    phase: Phase,
    name: ActivityName,
    /// `lua_max_run_time`
    limit: Duration,
}

/// One coroutine of a run; the first is the script itself.
struct Routine {
    thread: Anchor,
    /// By which others wait for it.
    id: Option<ThreadId>,
    state: RoutineState,
    /// Its place in the order of the beginnings.
    number: u64,
}

enum RoutineState {
    Ready(Reply),
    /// In its step, or waiting for what needs the request.
    Busy,
    Waiting(Wait),
    /// Waiting for more of the client's body.
    Reading(Rc<Reading>),
    /// Those that it waits for, as the script has listed them.
    Joining(Vec<ThreadId>),
    Ended(bool, Packed),
}

/// What a script has waited for.
enum Event {
    /// Some coroutine can go on.
    Ready,
    /// There is more of the client's body, or it did not come in time.
    Body { in_time: bool },
}

/// A script at work.
struct ScriptRun<'r> {
    vm: &'r Vm,
    subject: Subject<'r>,
    activity: Activity,
    routines: Vec<Routine>,
    /// Those that go on, by their numbers: in the order in which their waits have ended.
    ready: VecDeque<u64>,
    /// Those that wait for others, by their numbers.
    joining: Vec<u64>,
    /// The newest number.
    newest: u64,
    /// How often a coroutine has passed its turn to the others.
    turns: u32,
    /// The client's leaving would end it.
    watching: bool,
}

/// How a step of a coroutine ended.
enum CoroutineStep {
    /// Its end, with these values.
    Ended(MultiValue),
    /// A wait.
    Wished(Wish),
    /// A plain `coroutine.yield`, with these values.
    Yielded,
    Failed(Error),
}

/// Runs a script that may wait, with a request or (a timer) without one.
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
            // Most scripts do not wait for anything.
            if matches!(start, Start::Script(_)) {
                vm.keep(thread);
            }
            return ScriptOutcome::Finished;
        }
        Ok((_, CoroutineStep::Wished(Wish::Exit(exit)))) => return ScriptOutcome::Exit(exit),
        Ok(waits) => waits,
    };
    let id = ThreadId::of(&Value::Thread(thread.clone()));
    let thread = match vm.anchors.keep(thread) {
        Ok(thread) => thread,
        Err(error) => return failed(&subject, vm, &error),
    };
    let watching = is_watched(&mut subject, phase);
    let routines = vec![Routine { thread, id, state: RoutineState::Busy, number: 0 }];
    let (ready, joining, newest, turns) = Default::default();
    let run =
        ScriptRun { vm, subject, activity, routines, ready, joining, newest, turns, watching };
    // Large, and seldom needed: no request pays for its room but one that waits.
    Box::pin(run.go_on(step, matches!(start, Start::Script(_)))).await
}

/// The first step.
fn begin(
    vm: &Vm,
    subject: Subject<'_>,
    activity: Activity,
    start: Start<'_>,
) -> mlua::Result<(Thread, CoroutineStep)> {
    let mut thread = None;
    let step = step(vm, subject, activity, || match start {
        Start::Script(code) => {
            let thread = thread.insert(vm.coroutine()?);
            Ok((thread.resume(code.function.number())?, thread.status()))
        }
        Start::Timer { premature, call, .. } => {
            let mut call = call.unpack()?;
            let Some(Value::Function(function)) = call.pop_front() else {
                return Err(Error::runtime("a timer without a function"));
            };
            // What it keeps by its coroutine (`ngx.ctx`) is its own.
            let thread = thread.insert(vm.lua.create_thread(function)?);
            call.push_front(Value::Boolean(premature));
            Ok((thread.resume(call)?, thread.status()))
        }
    });
    match (thread, step) {
        (Some(thread), step) => Ok((thread, step)),
        (None, CoroutineStep::Failed(error)) => Err(error),
        (None, _) => Err(Error::CoroutineUnresumable),
    }
}

/// Runs a script that may not wait; its values.
pub fn at_once(
    vm: &Vm,
    mut subject: Subject<'_>,
    phase: Phase,
    code: &Compiled,
    args: MultiValue,
) -> Result<Result<MultiValue, Exit>, ScriptError> {
    let mut thread = None;
    let limit = limit_of(&mut subject);
    let step = step(vm, subject, Activity { phase, name: code.name, limit }, || {
        let thread = thread.insert(vm.coroutine()?);
        Ok((thread.resume((code.function.number(), args))?, thread.status()))
    });
    match step {
        CoroutineStep::Ended(values) => {
            if let Some(thread) = thread {
                vm.keep(thread);
            }
            Ok(Ok(values))
        }
        CoroutineStep::Wished(Wish::Exit(exit)) => Ok(Err(exit)),
        CoroutineStep::Failed(error) => Err(ScriptError::Lua(error)),
        _ => Err(ScriptError::Yielded(phase)),
    }
}

/// A step of a coroutine, which answers its values and where it stands after them.
fn step(
    vm: &Vm,
    subject: Subject<'_>,
    Activity { phase, name, limit }: Activity,
    work: impl FnOnce() -> mlua::Result<(MultiValue, ThreadStatus)>,
) -> CoroutineStep {
    // mlua panics where handles run out, as they may within a step: a call can have thousands of arguments.
    let caught = || {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(current::fault(&*panic)))
    };
    let enter =
        || limit::within(&vm.lua, limit, || current::enter(subject, vm.side, phase, caught));
    let done = doing::running(name, enter);
    let wish = current::take_wish();
    match done {
        Err(error) => CoroutineStep::Failed(error),
        Ok((values, ThreadStatus::Resumable)) => match wish.filter(|_| is_wait(&values)) {
            Some(wish) => CoroutineStep::Wished(wish),
            None => CoroutineStep::Yielded,
        },
        // `ngx.exit` lets a script go on that may not wait.
        Ok((values, _)) => {
            match wish.filter(|wish| !phase.may_wait() && matches!(wish, Wish::Exit(_))) {
                Some(wish) => CoroutineStep::Wished(wish),
                None => CoroutineStep::Ended(values),
            }
        }
    }
}

impl ScriptRun<'_> {
    /// All that follows the first step of the script.
    async fn go_on(mut self, first: CoroutineStep, is_script: bool) -> ScriptOutcome {
        if let Some(outcome) = self.stepped(0, first).await {
            return outcome;
        }
        loop {
            if let Some(outcome) = self.step_all().await {
                if let (ScriptOutcome::Finished, [entry], true) =
                    (&outcome, &self.routines[..], is_script)
                    && let Ok(thread) = entry.thread.get()
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

    /// Runs what can run, until all wait or the run is over.
    async fn step_all(&mut self) -> Option<ScriptOutcome> {
        while let Some(i) = self.first_ready() {
            let step = self.step(i);
            if let Some(outcome) = self.stepped(i, step).await {
                return Some(outcome);
            }
        }
        let over =
            self.routines.iter().all(|routine| matches!(routine.state, RoutineState::Ended(..)));
        over.then_some(ScriptOutcome::Finished)
    }

    /// Takes the one that goes on next out of the line. One that was killed meanwhile is passed over.
    fn first_ready(&mut self) -> Option<usize> {
        loop {
            let number = self.ready.pop_front()?;
            if let Some(i) = self.index_of(number) {
                return Some(i);
            }
        }
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        self.routines.binary_search_by_key(&number, |routine| routine.number).ok()
    }

    /// One step of a coroutine: up to its next wish, or its end.
    fn step(&mut self, i: usize) -> CoroutineStep {
        let ScriptRun { vm, subject, activity, routines, .. } = self;
        let Some(routine) = routines.get_mut(i) else { return CoroutineStep::Yielded };
        let state = std::mem::replace(&mut routine.state, RoutineState::Busy);
        let RoutineState::Ready(reply) = state else { return CoroutineStep::Yielded };
        step(vm, subject.lend(), *activity, || {
            let thread: Thread = routine.thread.get()?;
            let args = reply(&vm.lua).unwrap_or_else(|e| failure(&vm.lua, &e.to_string()));
            Ok((thread.resume(args)?, thread.status()))
        })
    }

    /// Goes on from the end of a coroutine's step.
    async fn stepped(&mut self, i: usize, step: CoroutineStep) -> Option<ScriptOutcome> {
        let wish = match step {
            CoroutineStep::Wished(wish) => wish,
            CoroutineStep::Failed(error) => return self.broke(i, &error),
            CoroutineStep::Ended(values) => return self.returned(i, values),
            CoroutineStep::Yielded => {
                self.pass_on(i);
                return None;
            }
        };
        match wish {
            Wish::Exit(exit) => return Some(ScriptOutcome::Exit(exit)),
            Wish::Wait(mut wait) => {
                // A wait begins at once, in the order of the calls: others find the socket busy.
                let begun = poll_fn(|cx| Poll::Ready(wait.as_mut().poll(cx))).await;
                let state = match begun {
                    Poll::Ready(reply) => RoutineState::Ready(reply),
                    Poll::Pending => RoutineState::Waiting(wait),
                };
                self.set(i, state);
            }
            // A subrequest begins when the script's coroutines all wait, as in nginx.
            Wish::Capture(wait) => self.set(i, RoutineState::Waiting(wait)),
            Wish::Spawn(thread, args) => return self.spawn(i, thread, args),
            Wish::Join(ids) => self.join(i, ids),
            Wish::Kill(id) => self.kill(i, id),
            Wish::ReadBody => return self.read_body(i).await,
            Wish::SetBody(bytes, room) => {
                let r = self.subject.request_mut()?;
                if let Err(error) = r.put_body(bytes, room).await {
                    return Some(ScriptOutcome::Exit(Exit::Status(i32::from(error.status()))));
                }
                tell_length(r);
                self.set(i, ready(|_| Ok(MultiValue::new())));
            }
            Wish::SetBodyFile(path, clean) => {
                let r = self.subject.request_mut()?;
                let text = format!("open() \"{}\" failed", path.display());
                let state = match r.put_body_file(path, clean).await {
                    Ok(()) => well(),
                    Err(error) => {
                        let text = format!("{text} {}", weir_log::Cause(&error));
                        ready(move |lua| Ok(failure(lua, &text)))
                    }
                };
                tell_length(r);
                self.set(i, state);
            }
            Wish::ReceiveBody(pattern) => self.receive(i, pattern).await,
            Wish::TakeOver => {
                let r = self.subject.request_mut()?;
                let taken = answer::take_over(r).await;
                self.set(i, RoutineState::Ready(raw_socket_reply(taken)));
            }
            Wish::Flush => {
                let state = self.send(false).await;
                self.set(i, state);
            }
            Wish::Eof => {
                let state = self.send(true).await;
                self.set(i, state);
            }
        }
        None
    }

    /// A routine that need not wait goes on before others do.
    fn set(&mut self, i: usize, state: RoutineState) {
        let Some(routine) = self.routines.get_mut(i) else { return };
        if matches!(state, RoutineState::Ready(_)) {
            self.ready.push_front(routine.number);
        }
        routine.state = state;
    }

    /// A routine goes on when the others had their turn. Routines that pass the turn among themselves leave it to the other
    /// tasks of the loop now and then, and to those of them that wait.
    fn pass_on(&mut self, i: usize) {
        self.turns = self.turns.wrapping_add(1);
        let Some(routine) = self.routines.get_mut(i) else { return };
        if self.ready.is_empty() || self.turns.is_multiple_of(TURNS) {
            routine.state = RoutineState::Waiting(Box::pin(turn()));
        } else {
            routine.state = ready(|_| Ok(MultiValue::new()));
            self.ready.push_back(routine.number);
        }
    }

    /// A coroutine that begins with these values; its number.
    fn add(&mut self, thread: Anchor, id: Option<ThreadId>, state: RoutineState) -> u64 {
        self.newest += 1;
        let number = self.newest;
        self.routines.push(Routine { thread, id, state, number });
        number
    }

    /// Sends what was written, and with `last` the end of the answer.
    async fn send(&mut self, last: bool) -> RoutineState {
        let sent = match &mut self.subject {
            Subject::Nothing | Subject::Timer(_) => Ok(()),
            Subject::Request(r) if last => answer::eof(r).await,
            Subject::Request(r) => answer::flush(r).await,
            Subject::Session(s) => session::send(*s, last).await,
        };
        match sent {
            Ok(()) => well(),
            Err(text) => refused(text),
        }
    }

    /// A coroutine ended with an error: the script's own ends the run.
    fn broke(&mut self, i: usize, error: &Error) -> Option<ScriptOutcome> {
        if i == 0 {
            return Some(failed(&self.subject, self.vm, error));
        }
        let text = text_of(error);
        let shown = format_args!("lua user thread aborted: runtime error: {text}");
        log(&self.subject, self.vm, shown);
        let first = text.split("\nstack traceback:").next().unwrap_or_default();
        let value = self.vm.lua.create_string(first).map_or(Value::Nil, Value::String);
        self.ended(i, false, MultiValue::from_vec(vec![value]))
    }

    /// A coroutine's function has returned. That of a light thread returns what the script's own function raised, too.
    fn returned(&mut self, i: usize, mut values: MultiValue) -> Option<ScriptOutcome> {
        match values.front() {
            Some(value) if is_failed(value) => {}
            _ => return self.ended(i, true, values),
        }
        values.pop_front();
        if let Some(Value::String(text)) = values.pop_front() {
            let error = Error::RuntimeError(text.to_string_lossy());
            let text = text_of(&error);
            let shown = format_args!("lua user thread aborted: runtime error: {text}");
            log(&self.subject, self.vm, shown);
        }
        self.ended(i, false, values)
    }

    /// Notes how a coroutine ended, and wakes the one that waits for it.
    fn ended(&mut self, i: usize, well: bool, values: MultiValue) -> Option<ScriptOutcome> {
        let values = match self.vm.anchors.pack(values) {
            Ok(values) => values,
            Err(error) => return Some(failed(&self.subject, self.vm, &error)),
        };
        self.set(i, RoutineState::Ended(well, values));
        if let Some(id) = self.routines.get(i)?.id {
            self.rejoin(id);
        }
        None
    }

    /// A light thread begins, and the one that has spawned it goes on behind those that are ready.
    fn spawn(&mut self, i: usize, thread: Thread, args: MultiValue) -> Option<ScriptOutcome> {
        let id = ThreadId::of(&Value::Thread(thread.clone()));
        let anchors = &self.vm.anchors;
        match anchors.keep(thread).and_then(|thread| Ok((thread, anchors.pack(args)?))) {
            Ok((thread, args)) => {
                if let Some(routine) = self.routines.get_mut(i) {
                    routine.state = ready(|_| Ok(MultiValue::new()));
                    self.ready.push_back(routine.number);
                }
                let number = self.add(thread, id, ready(move |_| args.unpack()));
                self.ready.push_front(number);
                None
            }
            Err(error) => self.broke(0, &error),
        }
    }

    /// Waits for the first of these to end. A coroutine that has ended can be waited for once.
    fn join(&mut self, i: usize, ids: Vec<ThreadId>) {
        let known =
            |id: &ThreadId| self.routines.iter().position(|routine| routine.id == Some(*id));
        let found: Vec<(usize, usize)> =
            ids.iter().enumerate().filter_map(|(n, id)| Some((n, known(id)?))).collect();
        let is_over = |at: usize| {
            self.routines.get(at).is_some_and(|r| matches!(r.state, RoutineState::Ended(..)))
        };
        let first = found.iter().copied().find(|(_, at)| is_over(*at));
        let over = first.map(|(_, at)| at);
        let state = match first {
            Some((n, at)) => self.take_values(n, at),
            None if found.is_empty() => ready(|lua| {
                let mut values = failure(lua, "already waited or killed");
                values.push_front(Value::Nil);
                Ok(values)
            }),
            None => {
                self.joining.extend(self.routines.get(i).map(|routine| routine.number));
                return self.set(i, RoutineState::Joining(ids));
            }
        };
        // The values are handed over, so the routine is not needed any more. The script's own stays the first as long
        // as the run lasts.
        let at = match over {
            Some(over) if over > 0 => {
                self.routines.remove(over);
                if over < i { i - 1 } else { i }
            }
            _ => i,
        };
        self.set(at, state);
    }

    /// The values of a coroutine that has ended, for the one that waits for it: behind its place in the list there.
    fn take_values(&mut self, place: usize, over: usize) -> RoutineState {
        let Some(routine) = self.routines.get_mut(over) else { return well() };
        routine.id = None;
        let RoutineState::Ended(well, values) = &mut routine.state else { return self::well() };
        let (well, values) = (*well, std::mem::take(values));
        ready(move |_| {
            let mut values = values.unpack()?;
            values.push_front(Value::Boolean(well));
            values.push_front(Value::Integer(place as i64 + 1));
            Ok(values)
        })
    }

    /// Has the coroutines that wait for this one look again.
    fn rejoin(&mut self, id: ThreadId) {
        let mut at = 0;
        while let Some(number) = self.joining.get(at) {
            let i = self.index_of(*number);
            let routine = i.and_then(|i| Some((i, self.routines.get_mut(i)?)));
            match routine.map(|(i, routine)| (i, &mut routine.state)) {
                Some((_, RoutineState::Joining(ids))) if !ids.contains(&id) => at += 1,
                Some((i, RoutineState::Joining(ids))) => {
                    let ids = std::mem::take(ids);
                    self.joining.remove(at);
                    self.join(i, ids);
                }
                // It was killed.
                _ => drop(self.joining.remove(at)),
            }
        }
    }

    fn kill(&mut self, i: usize, id: ThreadId) {
        let at = self.routines.iter().position(|routine| routine.id == Some(id));
        let runs = |at: &usize| {
            self.routines
                .get(*at)
                .is_some_and(|routine| !matches!(routine.state, RoutineState::Ended(..)))
        };
        let Some(at) = at.filter(runs) else {
            return self.set(i, refused("already waited or killed"));
        };
        if at == 0 || at == i {
            return self.set(i, refused("not a light thread of this one"));
        }
        self.set(i, well());
        self.routines.remove(at);
        self.rejoin(id);
    }

    /// Waits until some coroutine can go on.
    async fn wait(&mut self) -> Option<ScriptOutcome> {
        let waits = |state: &RoutineState| {
            matches!(state, RoutineState::Waiting(_) | RoutineState::Reading(_))
        };
        if !self.routines.iter().any(|routine| waits(&routine.state)) {
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
            Some(Event::Body { in_time }) => self.go_on_reading(in_time).await,
        }
    }
}

/// It goes on with these values, made when it does.
fn ready(values: impl FnOnce(&Lua) -> mlua::Result<MultiValue> + 'static) -> RoutineState {
    RoutineState::Ready(Box::new(values))
}

/// It goes on: all is well.
fn well() -> RoutineState {
    ready(|_| Ok(MultiValue::from_vec(vec![Value::Integer(1)])))
}

/// It goes on: this did not succeed.
fn refused(text: &'static str) -> RoutineState {
    ready(move |lua| Ok(failure(lua, text)))
}

/// The other tasks of the loop go first.
async fn turn() -> Reply {
    weir_engine::yield_now().await;
    Box::new(|_| Ok(MultiValue::new()))
}

/// What a receiving method returns: the bytes and, as the fourth value, whether a mark was reached; or nil, the error, and
/// what came.
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
