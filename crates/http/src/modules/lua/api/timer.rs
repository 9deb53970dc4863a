//! `ngx.timer`: scripts that run later, without a request.

use std::rc::Rc;
use std::time::Duration;

use mlua::{MultiValue, Value};
use weir_engine::{Either, either};
use weir_log::Level;

use super::natives::{Done, Natives, done};
use crate::event_loop::LoopState;
use crate::modules::lua::anchors::Packed;
use crate::modules::lua::conf::CONF;
use crate::modules::lua::current::{self, NgxError, Phase, Subject, TimerSubject, phase};
use crate::modules::lua::limit;
use crate::modules::lua::run::{self, Start};
use crate::modules::lua::socket::OwnSockets;
use crate::modules::lua::timers::pause;
use crate::modules::lua::vm::{Vm, vm_of};
use crate::site::settings::LocationConf;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("set_timer", |_, arguments: MultiValue| set_timer(arguments))?;
    natives.add("timers_pending", |_, ()| {
        LoopState::current().and_then(|w| vm_of(&w).map(|vm| vm.timers.pending()))
    })?;
    natives.add("timers_running", |_, ()| {
        LoopState::current().and_then(|w| vm_of(&w).map(|vm| vm.timers.running()))
    })
}

/// `delay, every, function, ...`
fn set_timer(mut arguments: MultiValue) -> Result<Done, NgxError> {
    if phase() == Phase::ExitWorker {
        return Err(NgxError::Disabled(Phase::ExitWorker));
    }
    let delay = match arguments.pop_front() {
        Some(Value::Integer(n)) => n as f64,
        Some(Value::Number(n)) => n,
        _ => return Err("bad argument #1 (number expected)".into()),
    };
    let delay = seconds_of(delay)?;
    let every = matches!(arguments.pop_front(), Some(Value::Boolean(true)));
    if !matches!(arguments.front(), Some(Value::Function(_))) {
        return Err("bad argument #2 (function expected)".into());
    }
    let event_loop = LoopState::current().ok_or(NgxError::NoRequest)?;
    Ok(done(set(&event_loop, delay, every, arguments)))
}

/// A script's delay as a duration. As in OpenResty, it has whole milliseconds.
pub fn seconds_of(seconds: f64) -> Result<Duration, NgxError> {
    let whole = Duration::try_from_secs_f64((seconds * 1000.0).trunc() / 1000.0);
    whole.map_err(|_| format!("invalid delay {seconds}").into())
}

/// Sets a timer for a function and its arguments. With `every` it repeats.
fn set(
    event_loop: &Rc<LoopState>,
    delay: Duration,
    every: bool,
    what: MultiValue,
) -> Result<(), &'static str> {
    let vm = vm_of(event_loop).cloned().ok_or("no Lua VM")?;
    let timers = &vm.timers;
    // A retiring loop still runs functions without a delay, and they are not premature.
    let late = timers.premature.get();
    if late && !delay.is_zero() {
        return Err("process exiting");
    }
    if timers.pending.get() >= timers.most_pending {
        return Err("too many pending timers");
    }
    let packed = Rc::new(vm.anchors.pack(what).map_err(|_| "no memory")?);
    let origin = current::origin();
    let conf = current::settings().ok_or("no site")?;
    let limit = limit::running().unwrap_or(CONF.of(conf).max_run_time);
    timers.pending.set(timers.pending.get() + 1);
    timers.count.set(timers.count.get() + 1);
    let number = timers.count.get();
    let handle = event_loop.handle.clone();
    // A timer without a delay that `init_worker_by_lua` sets runs before the first request.
    let mut at_once = delay.is_zero() && phase() == Phase::InitWorker;
    event_loop.handle.spawn(async move {
        loop {
            let timers = &vm.timers;
            let premature = if std::mem::take(&mut at_once) {
                false
            } else if late {
                pause(&handle, delay).await;
                false
            } else {
                let waited = either(pause(&handle, delay), timers.until_run_early(number)).await;
                timers.waiting.borrow_mut().remove(&number);
                matches!(waited, Either::Right(())) || timers.premature.get()
            };
            timers.pending.set(timers.pending.get().saturating_sub(1));
            let again = every && !premature && !late;
            if again {
                timers.pending.set(timers.pending.get() + 1);
            }
            let Some(running) = RunningTimer::new(&vm, &packed) else {
                if again { continue } else { break }
            };
            let call = call(running, premature, packed.clone(), (limit, origin.clone(), conf));
            if !again {
                break call.await;
            }
            // The next call comes at its time, whether this one has ended or not.
            handle.spawn(call);
        }
    });
    Ok(())
}

/// A running timer.
struct RunningTimer(Rc<Vm>);

impl RunningTimer {
    /// `None` if too many timers run.
    fn new(vm: &Rc<Vm>, call: &Packed) -> Option<RunningTimer> {
        let timers = &vm.timers;
        if timers.running.get() >= timers.most_running {
            let (most, place) = (timers.most_running, place(call));
            let text = format_args!(
                "lua failed to run timer with function defined at {place}: {most} \
                 lua_max_running_timers are not enough"
            );
            vm.log(Level::Alert, text);
            return None;
        }
        timers.running.set(timers.running.get() + 1);
        Some(RunningTimer(vm.clone()))
    }
}

impl Drop for RunningTimer {
    fn drop(&mut self) {
        let running = &self.0.timers.running;
        running.set(running.get().saturating_sub(1));
    }
}

/// The place in the script of a timer's function, the first of these values.
fn place(call: &Packed) -> String {
    let values = call.unpack().unwrap_or_default();
    let Some(Value::Function(function)) = values.front() else { return "?".to_owned() };
    let info = function.info();
    format!("{}:{}", info.source.unwrap_or_default(), info.line_defined.unwrap_or_default())
}

async fn call(
    timer: RunningTimer,
    premature: bool,
    call: Rc<Packed>,
    (limit, origin, conf): (Duration, Rc<str>, &'static LocationConf),
) {
    let start = Start::Timer { premature, call: &call, limit };
    let subject = Rc::new(TimerSubject { origin, conf, sockets: OwnSockets::default() });
    // The error was logged. No client waits for it.
    let _ = run::drive(&timer.0, Subject::Timer(&subject), Phase::Timer, start).await;
}
