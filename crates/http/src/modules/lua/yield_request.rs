//! Why a script yields: what it asks of its run, and the values with which it is resumed.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;

use mlua::{Error, LightUserData, Lua, MultiValue, Thread, Value};

use super::socket::Pattern;

/// Makes the values with which a coroutine is resumed.
pub type Reply = Box<dyn FnOnce(&Lua) -> mlua::Result<MultiValue>>;

/// A wait that does not need the request.
pub type Wait = Pin<Box<dyn Future<Output = Reply>>>;

/// The reason of a yield.
pub enum YieldRequest {
    /// A wait that does not need the request.
    Wait(Wait),
    /// `ngx.location.capture`
    Capture(Wait),
    /// `ngx.req.read_body`
    ReadBody,
    /// `ngx.req.finish_body`: the body, and the size above which it is kept in a file.
    SetBody(Vec<u8>, u64),
    /// `ngx.req.set_body_file`: the path, and whether the file is removed with the request.
    SetBodyFile(PathBuf, bool),
    /// A receiving method of `ngx.req.socket`
    ReceiveBody(Pattern),
    /// `ngx.req.socket(true)`
    TakeOver,
    /// `ngx.flush`
    Flush {
        /// Whether the script waits until all was sent.
        waits: bool,
    },
    /// `ngx.eof`
    Eof,
    /// `ngx.exit`, `ngx.exec`, `ngx.redirect`: the script is not resumed.
    Exit(Exit),
    /// `ngx.thread.spawn`: a light thread that begins at once.
    Spawn(Thread, MultiValue),
    /// `ngx.thread.wait`: waits for the first of these to end.
    Join(Vec<ThreadId>),
    /// `ngx.thread.kill`
    Kill(ThreadId),
}

impl YieldRequest {
    /// Whether it concerns the body of the request.
    pub fn is_of_body(&self) -> bool {
        use YieldRequest::{ReadBody, ReceiveBody, SetBody, SetBodyFile, TakeOver};
        matches!(self, ReadBody | ReceiveBody(_) | SetBody(..) | SetBodyFile(..) | TakeOver)
    }
}

/// The identity of a coroutine, as long as the coroutine lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadId(usize);

impl ThreadId {
    /// The id of a value, if it is a coroutine.
    pub fn of(value: &Value) -> Option<ThreadId> {
        matches!(value, Value::Thread(_)).then(|| ThreadId(value.to_pointer().addr()))
    }
}

/// How a script ended its run early.
#[derive(Debug, PartialEq, Eq)]
pub enum Exit {
    /// `ngx.exit`
    Status(i32),
    /// `ngx.exec`: path (or `@name`) and query.
    Exec(Vec<u8>, Vec<u8>),
    /// `ngx.req.set_uri(uri, true)`: another location is looked up.
    Jump,
}

/// The value that the prelude yields when it waits. Scripts cannot make it.
pub fn mark() -> Value {
    Value::LightUserData(LightUserData(std::ptr::without_provenance_mut(MARK)))
}

/// Whether the prelude made this yield. If C code is between the script and its run, the yield
/// fails. The reason is still set then, but does not belong to the next yield.
pub fn is_wait(values: &MultiValue) -> bool {
    matches!(values.front(), Some(Value::LightUserData(mark)) if mark.0.addr() == MARK)
}

/// The mark that the prelude returns before a light thread's error. The error follows as a text for
/// the log and as it was raised.
pub fn failed_mark() -> Value {
    Value::LightUserData(LightUserData(std::ptr::without_provenance_mut(FAILED)))
}

/// Whether a value is the mark of a light thread's error.
pub fn is_failed(value: &Value) -> bool {
    matches!(value, Value::LightUserData(mark) if mark.0.addr() == FAILED)
}

/// Addresses that no object has.
const MARK: usize = 16;
const FAILED: usize = 24;

/// The values `nil, text` of a failure.
pub fn failure(lua: &Lua, text: &str) -> MultiValue {
    let text = lua.create_string(text).map_or(Value::Nil, Value::String);
    MultiValue::from_vec(vec![Value::Nil, text])
}

/// The text of an error with its traceback, as in OpenResty's log.
pub fn text_of(error: &Error) -> String {
    let text = match error {
        // The error value was no text.
        Error::RuntimeError(text) if text.starts_with("nil\n") => {
            text.replacen("nil", "unknown reason", 1)
        }
        Error::RuntimeError(text) => text.clone(),
        Error::SyntaxError { message, .. } => message.clone(),
        Error::CallbackError { traceback, cause } => format!("{cause}\n{traceback}"),
        error => error.to_string(),
    };
    let Some((text, trace)) = text.split_once("\nstack traceback:\n") else { return text };
    // Lua 5.1, and so OpenResty, calls all of these functions.
    let lines = ["upvalue", "local", "method", "field", "global"]
        .iter()
        .fold(trace.to_owned(), |trace, kind| {
            trace.replace(&format!(": in {kind} '"), ": in function '")
        });
    format!("{text}\nstack traceback:\ncoroutine 0:\n{lines}")
}

/// A reply with these values.
pub fn reply(values: impl FnOnce(&Lua) -> mlua::Result<MultiValue> + 'static) -> Reply {
    Box::new(values)
}
