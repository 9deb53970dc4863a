//! Scripts of the header filter, the body filter, the log phase and `set_by_lua`. None of them may
//! yield.

use std::cell::RefCell;

use mlua::{MultiValue, Value};
use weir_engine::Chain;
use weir_log::Level;

use super::answer;
use super::conf::CONF;
use super::current::{Phase, Subject};
use super::phases::ERROR;
use super::run;
use super::script::Script;
use super::vm::{ScriptError, vm_of};
use super::yield_request::Exit;
use crate::answer::filters::{BodyFilter, Filtered, into_bytes};
use crate::phases::Step;
use crate::request::Request;

thread_local! {
    /// `ngx.arg` of the running body filter.
    static PIECE: RefCell<Piece> = const { RefCell::new(Piece { bytes: Vec::new(), last: false }) };
    /// `ngx.arg` of `set_by_lua`.
    static ARGS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A piece of a body that a script filters.
#[derive(Default)]
pub struct Piece {
    /// `ngx.arg[1]`
    pub bytes: Vec<u8>,
    /// `ngx.arg[2]`
    pub last: bool,
}

/// Calls `f` with the piece that the running script filters.
pub fn with_piece<T>(f: impl FnOnce(&mut Piece) -> T) -> T {
    PIECE.with_borrow_mut(f)
}

/// An argument of `set_by_lua`, counted from 1.
pub fn argument(index: i64) -> Option<Vec<u8>> {
    let index = usize::try_from(index.checked_sub(1)?).ok()?;
    ARGS.with_borrow(|args| args.get(index).cloned())
}

/// Runs `header_filter_by_lua`, and adds the body filter of `body_filter_by_lua`.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let conf = CONF.of(r.conf());
    if let Some(script) = &conf.header_filter
        && let Some(step) = head(r, script)
    {
        return Err(step);
    }
    if let Some(script) = &conf.body_filter {
        r.add_body_filter(Box::new(Bodies { script, ended: false }));
    }
    Ok(())
}

fn head(r: &mut Request, script: &'static Script) -> Option<Step> {
    match at_once(r, Phase::HeaderFilter, script, MultiValue::new()) {
        Ok(Ok(_)) => None,
        Ok(Err(Exit::Status(status @ 200..=599))) => {
            let context = answer::context(r);
            if std::mem::replace(&mut context.filter_exited, true) {
                return None;
            }
            context.forget_output();
            r.response.forget_headers();
            Some(Step::Status(status as u16))
        }
        Ok(Err(Exit::Status(..0))) | Err(()) => Some(Step::Abort),
        Ok(Err(_)) => None,
    }
}

/// Runs a script that may not yield. An error is logged.
pub(super) fn at_once(
    r: &mut Request,
    phase: Phase,
    script: &Script,
    args: MultiValue,
) -> Result<Result<MultiValue, Exit>, ()> {
    let vm = vm_of(&r.event_loop).cloned();
    let done = vm.ok_or(ScriptError::NoVm).and_then(|vm| {
        let code = vm.code(r, script)?;
        run::at_once(&vm, Subject::Request(r), phase, &code, args)
    });
    done.map_err(|error| {
        let place = phase.in_log();
        match error {
            ScriptError::Unloadable(error) => r.log(Level::Error, format_args!("{error}{place}")),
            error => {
                let name = phase.directive();
                r.log(Level::Error, format_args!("failed to run {name}: {error}{place}"));
            }
        }
    })
}

/// `body_filter_by_lua`
struct Bodies {
    script: &'static Script,
    /// Whether the script has set `ngx.arg[2]`. Later pieces are dropped.
    ended: bool,
}

impl BodyFilter for Bodies {
    fn module(&self) -> &'static str {
        "lua"
    }

    fn filter<'a>(&'a mut self, r: &'a mut Request, mut input: Chain, last: bool) -> Filtered<'a> {
        let mut bytes = Vec::with_capacity(input.len() as usize);
        while let Some(segment) = input.pop() {
            bytes.extend_from_slice(&into_bytes(segment));
        }
        if self.ended || bytes.is_empty() && !last {
            return Filtered::Now(Ok(Chain::new()));
        }
        PIECE.set(Piece { bytes, last });
        let done = at_once(r, Phase::BodyFilter, self.script, MultiValue::new());
        let Piece { bytes, last } = PIECE.take();
        self.ended = last;
        if !done.is_ok_and(|done| done.is_ok_and(|values| !is_failure(values.front()))) {
            return Filtered::Now(Err(std::io::ErrorKind::InvalidData.into()));
        }
        let mut chain = Chain::new();
        if !bytes.is_empty() {
            chain.push(bytes::Bytes::from(bytes));
        }
        Filtered::Now(Ok(chain))
    }
}

/// Whether a body filter's script has returned `ngx.ERROR`, or a status from 300.
fn is_failure(returned: Option<&Value>) -> bool {
    let number = match returned {
        Some(Value::Integer(n)) => *n as f64,
        Some(Value::Number(n)) => *n,
        Some(Value::String(text)) => text.to_string_lossy().trim().parse().unwrap_or(0.0),
        _ => return false,
    };
    number == f64::from(ERROR) || number >= 300.0
}

/// `log_by_lua`
pub fn log(r: &mut Request) {
    let conf = CONF.of(r.conf());
    if let Some(script) = &conf.log {
        let _ = at_once(r, Phase::Log, script, MultiValue::new());
    }
}

/// `set_by_lua`: the value, or the step with which the request ends.
pub fn value(r: &mut Request, script: &Script, args: Vec<Vec<u8>>) -> Result<Vec<u8>, Step> {
    let failed = Step::Status(500);
    let Some(vm) = vm_of(&r.event_loop).cloned() else { return Err(failed) };
    let strings = args.iter().map(|arg| vm.lua.create_string(arg).map(Value::String));
    let Ok(values) = strings.collect::<mlua::Result<MultiValue>>() else { return Err(failed) };
    ARGS.set(args);
    let args = values;
    let Ok(Ok(values)) = at_once(r, Phase::Set, script, args) else { return Err(failed) };
    let mut out = Vec::new();
    match values.front() {
        None | Some(Value::Nil) => {}
        Some(value) => {
            let value = vm.lua.coerce_string(value.clone());
            if let Ok(Some(text)) = value {
                out.extend_from_slice(&text.as_bytes());
            }
        }
    }
    Ok(out)
}
