//! What a script asks of its run when it yields, and what it gets back.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;

use mlua::{Error, LightUserData, Lua, MultiValue, Thread, Value};

use super::socket::Pattern;

/// The result of a wait: makes the values that the waiting function returns.
pub type Reply = Box<dyn FnOnce(&Lua) -> mlua::Result<MultiValue>>;

/// A wait that does not need the request.
pub type Wait = Pin<Box<dyn Future<Output = Reply>>>;

/// What a script waits for.
pub enum Wish {
    /// Something outside of the request.
    Wait(Wait),
    /// `ngx.location.capture`
    Capture(Wait),
    /// `ngx.req.read_body`
    ReadBody,
    /// `ngx.req.finish_body`: what is kept in a file if it is larger than this.
    SetBody(Vec<u8>, u64),
    /// `ngx.req.set_body_file`: the path, and whether the file goes with the request.
    SetBodyFile(PathBuf, bool),
    /// A receiving method of `ngx.req.socket`
    ReceiveBody(Pattern),
    /// `ngx.req.socket(true)`
    TakeOver,
    /// `ngx.flush`
    Flush,
    /// `ngx.eof`
    Eof,
    /// `ngx.exit`, `ngx.exec`, `ngx.redirect`: the script does not go on.
    Exit(Exit),
    /// `ngx.thread.spawn`: a light thread that begins at once.
    Spawn(Thread, MultiValue),
    /// `ngx.thread.wait`: the first of these to end.
    Join(Vec<ThreadId>),
    /// `ngx.thread.kill`
    Kill(ThreadId),
}

impl Wish {
    /// It is about the body of the request.
    pub fn is_of_body(&self) -> bool {
        use Wish::{ReadBody, ReceiveBody, SetBody, SetBodyFile, TakeOver};
        matches!(self, ReadBody | ReceiveBody(_) | SetBody(..) | SetBodyFile(..) | TakeOver)
    }
}

/// A coroutine, as long as it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadId(usize);

impl ThreadId {
    /// The one that a value is.
    pub fn of(value: &Value) -> Option<ThreadId> {
        matches!(value, Value::Thread(_)).then(|| ThreadId(value.to_pointer().addr()))
    }
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

/// The value that the prelude yields when it waits. No script can make it.
pub fn mark() -> Value {
    Value::LightUserData(LightUserData(std::ptr::without_provenance_mut(MARK)))
}

/// Whether the prelude yielded this. A yield fails where C code is between the script and its run. Its wish is still
/// noted then, but it does not belong to the next yield.
pub fn is_wait(values: &MultiValue) -> bool {
    matches!(values.front(), Some(Value::LightUserData(mark)) if mark.0.addr() == MARK)
}

/// What the prelude puts in front of a light thread's error, as a text for the log and as it was raised.
pub fn failed_mark() -> Value {
    Value::LightUserData(LightUserData(std::ptr::without_provenance_mut(FAILED)))
}

/// Whether a light thread has put this in front of its error.
pub fn is_failed(value: &Value) -> bool {
    matches!(value, Value::LightUserData(mark) if mark.0.addr() == FAILED)
}

/// Addresses at which nothing is.
const MARK: usize = 16;
const FAILED: usize = 24;

/// `nil, "what failed"`
pub fn failure(lua: &Lua, text: &str) -> MultiValue {
    let text = lua.create_string(text).map_or(Value::Nil, Value::String);
    MultiValue::from_vec(vec![Value::Nil, text])
}

/// An error with its traceback, as logs of OpenResty have it.
pub fn text_of(error: &Error) -> String {
    let text = match error {
        // What is no text tells nothing.
        Error::RuntimeError(text) if text.starts_with("nil\n") => {
            text.replacen("nil", "unknown reason", 1)
        }
        Error::RuntimeError(text) => text.clone(),
        Error::SyntaxError { message, .. } => message.clone(),
        Error::CallbackError { traceback, cause } => format!("{cause}\n{traceback}"),
        error => error.to_string(),
    };
    let Some((text, trace)) = text.split_once("\nstack traceback:\n") else { return text };
    // Lua 5.1, and so OpenResty, calls all of them functions.
    let lines = ["upvalue", "local", "method", "field", "global"]
        .iter()
        .fold(trace.to_owned(), |trace, kind| {
            trace.replace(&format!(": in {kind} '"), ": in function '")
        });
    format!("{text}\nstack traceback:\ncoroutine 0:\n{lines}")
}

/// A reply that is one or more values known already.
pub fn reply(values: impl FnOnce(&Lua) -> mlua::Result<MultiValue> + 'static) -> Reply {
    Box::new(values)
}
