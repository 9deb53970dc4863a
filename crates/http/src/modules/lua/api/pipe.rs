//! `ngx.pipe`

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use mlua::{BString, IntoLuaMulti, MultiValue, UserDataRef, Value};
use weir_log::Level;

use super::log::to_log;
use super::natives::{Natives, failed, write_message};
use super::socket::handle;
use crate::event_loop::LoopState;
use crate::modules::lua::current::NgxError;
use crate::modules::lua::pipe::{PipeEnd, PipeError, Process, ProcessOptions, or_endless};
use crate::modules::lua::socket::{Pattern, SocketError};
use crate::modules::lua::vm::vm_of;
use crate::modules::lua::yield_request::{YieldRequest, failure, reply};

/// A process as scripts hold it.
struct ProcessHandle(Rc<Process>);

impl mlua::UserData for ProcessHandle {}

type Proc = UserDataRef<ProcessHandle>;

/// The most running processes before a garbage collection looks for those whose objects are unused.
const MANY: usize = 64;

/// Arguments, environment, whether the error stream is merged, and the buffer size of reads.
type Starting = (Vec<BString>, Option<Vec<BString>>, bool, usize);

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("pipe_spawn", |lua, (args, environ, merged, room): Starting| {
        let event_loop = LoopState::current().ok_or(NgxError::NoRequest)?;
        let vm = vm_of(&event_loop).ok_or("no Lua VM")?;
        let running = vm.processes.borrow().len();
        if running >= MANY && running.is_multiple_of(MANY) {
            lua.gc_collect().map_err(failed)?;
        }
        let begin = ProcessOptions { command: command(&args, environ.as_deref()), merged, room };
        let started = Process::start(&event_loop.handle, &vm.processes, begin);
        let (process, unstarted) = match started {
            Ok(started) => started,
            Err(error) => return Ok((None, Some(SocketError::from(error).to_string()))),
        };
        if let (Some(error), Some(program)) = (unstarted, args.first()) {
            let (program, cause) = (weir_log::Bytes(program), weir_log::Cause(&error));
            let text = format!("lua pipe child execvp() failed while executing {program} {cause}");
            to_log(Level::Warn, &text);
        }
        let process = lua.create_userdata(ProcessHandle(Rc::new(process)));
        Ok((Some(process.map_err(failed)?), None))
    })?;
    natives.add("pipe_timeouts", |_, (process, a, b, c, d): Times| {
        let time = |ms: f64| Duration::from_millis(ms as u64);
        let [write, stdout, stderr, wait] = [a, b, c, d].map(|ms: Option<f64>| ms.map(time));
        let Process { stdin, stdout: out, stderr: err, limit, .. } = &*process.0;
        let ends = [(Some(stdin), write), (Some(out), stdout), (err.as_ref(), stderr)];
        for (end, time) in ends {
            if let (Some(end), Some(time)) = (end, time) {
                end.set_limit(time);
            }
        }
        limit.set(wait.map_or(limit.get(), or_endless));
    })?;
    natives.add("pipe_pid", |_, process: Proc| process.0.pid())?;
    natives.add("pipe_kill", |_, (process, number): (Proc, i32)| told(process.0.kill(number)))?;
    natives.add("pipe_shut", |_, (process, end): (Proc, u8)| {
        told(process.0.shut(end_of(&process.0, end)))
    })?;
    natives.add_waiting("pipe_wait", |_, process: Proc| {
        let (process, handle) = (process.0.clone(), handle()?);
        Ok(YieldRequest::Wait(Box::pin(async move {
            let ended = process.wait(&handle).await;
            reply(move |lua| match ended {
                Err(why) => Ok(failure(lua, &why.to_string())),
                Ok(status) => match (status.code(), status.signal()) {
                    (Some(code), _) => (code == 0, "exit", code).into_lua_multi(lua),
                    (None, signal) => (false, "signal", signal).into_lua_multi(lua),
                },
            })
        })))
    })?;
    natives.add_waiting("pipe_write", |lua, (process, data): (Proc, Value)| {
        let mut bytes = Vec::new();
        write_message(lua, &data, &mut bytes)?;
        let (process, handle) = (process.0.clone(), handle()?);
        Ok(YieldRequest::Wait(Box::pin(async move {
            let written = process.stdin.write(&handle, &bytes).await;
            reply(move |lua| match written {
                Ok(()) => bytes.len().into_lua_multi(lua),
                Err(why) => Ok(failure(lua, &why.to_string())),
            })
        })))
    })?;
    natives.add_waiting("pipe_read", |_, (process, end, kind, many): Reading| {
        let pattern = match kind.as_str() {
            "all" => Pattern::All,
            "line" => Pattern::Line,
            "bytes" => Pattern::Bytes(many),
            _ => Pattern::Any(many),
        };
        let (process, handle) = (process.0.clone(), handle()?);
        Ok(YieldRequest::Wait(Box::pin(async move {
            let read = match end_of(&process, end) {
                Some(end) => end.read(&handle, &pattern).await,
                None => Err((PipeError::Merged, Vec::new())),
            };
            reply(move |lua| match read {
                Ok(bytes) => {
                    Ok(MultiValue::from_vec(vec![Value::String(lua.create_string(bytes)?)]))
                }
                Err((why, part)) => {
                    let mut values = failure(lua, &why.to_string());
                    if !part.is_empty() || matches!(why, PipeError::Closed | PipeError::Timeout) {
                        values.push_back(Value::String(lua.create_string(part)?));
                    }
                    Ok(values)
                }
            })
        })))
    })
}

/// The process, and the timeouts in milliseconds of writing, reading, reading errors and waiting.
type Times = (Proc, Option<f64>, Option<f64>, Option<f64>, Option<f64>);

/// The process, the number of the stream, the pattern, and its length.
type Reading = (Proc, u8, String, usize);

/// A stream of a process, by its file descriptor there.
fn end_of(process: &Process, number: u8) -> Option<&PipeEnd> {
    match number {
        0 => Some(&process.stdin),
        1 => Some(&process.stdout),
        _ => process.stderr.as_ref(),
    }
}

fn told(done: Result<(), PipeError>) -> (Option<bool>, Option<String>) {
    match done {
        Ok(()) => (Some(true), None),
        Err(why) => (None, Some(why.to_string())),
    }
}

fn command(args: &[BString], environ: Option<&[BString]>) -> Command {
    let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
    let mut args = args.iter().map(|arg| text(arg));
    let mut command = Command::new(args.next().unwrap_or_default());
    command.args(args);
    if let Some(environ) = environ {
        command.env_clear();
        for pair in environ {
            // The prelude has checked that there is one.
            let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
            let (name, value) = pair.split_at(at);
            command.env(text(name), text(value.get(1..).unwrap_or_default()));
        }
    }
    command
}
