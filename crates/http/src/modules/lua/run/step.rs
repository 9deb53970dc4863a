//! One step of a coroutine: from its start or its last yield to its next yield or its end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use mlua::{Error, MultiValue, Thread, ThreadStatus, Value};
use weir_values::doing::{self, ActivityName};

use super::subject::limit_of;
use crate::modules::lua::anchors::Packed;
use crate::modules::lua::current::{self, Phase, Subject};
use crate::modules::lua::limit;
use crate::modules::lua::vm::{Compiled, ScriptError, Vm};
use crate::modules::lua::yield_request::{Exit, YieldRequest, is_wait};

/// What a run starts with.
#[derive(Clone, Copy)]
pub enum Start<'a> {
    /// A script of the configuration.
    Script(&'a Compiled),
    /// The function of a timer and its arguments.
    Timer {
        /// Whether the loop retires before the timer's time.
        premature: bool,
        /// The function, followed by its arguments.
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

    pub(super) fn activity(self, subject: &mut Subject<'_>, phase: Phase) -> Activity {
        let limit = match self {
            Start::Timer { limit, .. } => limit,
            Start::Script(_) => limit_of(subject),
        };
        Activity { phase, name: self.name(), limit }
    }
}

/// What stays the same for all steps of a run.
#[derive(Clone, Copy)]
pub(super) struct Activity {
    phase: Phase,
    name: ActivityName,
    /// `lua_max_run_time`
    limit: Duration,
}

/// The outcome of a coroutine's step.
pub(super) enum CoroutineStep {
    /// The coroutine has returned these values.
    Ended(MultiValue),
    /// It has yielded to wait.
    Requested(YieldRequest),
    /// It has yielded by `coroutine.yield`.
    Yielded,
    Failed(Error),
}

/// Runs the first step.
pub(super) fn begin(
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
            // A timer's coroutine is not reused: values kept by coroutine (`ngx.ctx`) are its own.
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

/// Runs a script that may not yield. Returns its values.
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
        let thread = thread.insert(vm.unyielding_coroutine()?);
        Ok((thread.resume((code.function.number(), args))?, thread.status()))
    });
    match step {
        CoroutineStep::Ended(values) => {
            if let Some(thread) = thread {
                vm.keep_unyielding(thread);
            }
            Ok(Ok(values))
        }
        CoroutineStep::Requested(YieldRequest::Exit(exit)) => Ok(Err(exit)),
        CoroutineStep::Failed(error) => Err(ScriptError::Lua(error)),
        _ => Err(ScriptError::Yielded(phase)),
    }
}

/// Runs a step of a coroutine.
pub(super) fn step(
    vm: &Vm,
    subject: Subject<'_>,
    Activity { phase, name, limit }: Activity,
    work: impl FnOnce() -> mlua::Result<(MultiValue, ThreadStatus)>,
) -> CoroutineStep {
    // mlua panics when its handles run out, which may happen within a step: a call can have
    // thousands of arguments.
    let caught = || {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(current::fault(&*panic)))
    };
    let enter =
        || limit::within(&vm.lua, limit, || current::enter(subject, vm.side, phase, caught));
    let done = doing::running(name, enter);
    let yielded = current::take_yield_request();
    match done {
        Err(error) => CoroutineStep::Failed(error),
        Ok((values, ThreadStatus::Resumable)) => match yielded.filter(|_| is_wait(&values)) {
            Some(yielded) => CoroutineStep::Requested(yielded),
            None => CoroutineStep::Yielded,
        },
        // In phases that may not yield, `ngx.exit` returns to the script.
        Ok((values, _)) => {
            match yielded
                .filter(|yielded| !phase.may_wait() && matches!(yielded, YieldRequest::Exit(_)))
            {
                Some(yielded) => CoroutineStep::Requested(yielded),
                None => CoroutineStep::Ended(values),
            }
        }
    }
}
