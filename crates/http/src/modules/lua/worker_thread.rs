//! `ngx.run_worker_thread`: runs functions of modules on a thread pool, beside the loops. Each
//! thread has a VM of its own, without requests. Arguments and results are copied.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mlua::{Error, Function, IntoLua, Lua, MultiValue, Value};
use weir_sys::lent::Lent;
use weir_values::Identity;

use super::anchors::Anchors;
use super::current::{self, Phase, Subject};
use super::script::Side;
use super::start;
use crate::site::Site;

/// The deepest nesting of tables.
const DEEPEST: usize = 100;

/// A VM above this size in bytes is collected after each function.
const LARGE: usize = 4 << 20;

/// The number of functions that wait or run in this process.
static IN_PROGRESS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The VM of the thread.
    static THREAD_VM: RefCell<Option<ThreadVm>> = const { RefCell::new(None) };
}

/// A copy of a Lua value, for another VM.
pub enum PlainValue {
    Nil,
    Null,
    Boolean(bool),
    Integer(i64),
    Number(f64),
    Text(Vec<u8>),
    Table(Vec<(PlainValue, PlainValue)>),
}

impl PlainValue {
    /// Copies a value. The error names what cannot be copied.
    pub fn of(value: &Value) -> Result<PlainValue, String> {
        PlainValue::at(value, 0)
    }

    fn at(value: &Value, depth: usize) -> Result<PlainValue, String> {
        Ok(match value {
            Value::Nil => PlainValue::Nil,
            Value::LightUserData(pointer) if pointer.0.is_null() => PlainValue::Null,
            Value::Boolean(value) => PlainValue::Boolean(*value),
            Value::Integer(value) => PlainValue::Integer(*value),
            Value::Number(value) => PlainValue::Number(*value),
            Value::String(text) => PlainValue::Text(text.as_bytes().to_vec()),
            Value::Table(_) if depth == DEEPEST => {
                let text = "suspicious circular references, table depth exceed max depth";
                return Err(format!("{text}: {DEEPEST}"));
            }
            Value::Table(table) => {
                let pair = |pair: mlua::Result<(Value, Value)>| {
                    let (key, value) = pair.map_err(|error| error.to_string())?;
                    Ok((PlainValue::at(&key, depth + 1)?, PlainValue::at(&value, depth + 1)?))
                };
                PlainValue::Table(table.pairs().map(pair).collect::<Result<_, String>>()?)
            }
            other => {
                let kind = other.type_name().to_ascii_uppercase();
                return Err(format!("unsupported Lua type: LUA_T{kind}"));
            }
        })
    }
}

impl IntoLua for PlainValue {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        Ok(match self {
            PlainValue::Nil => Value::Nil,
            PlainValue::Null => Value::NULL,
            PlainValue::Boolean(value) => Value::Boolean(value),
            PlainValue::Integer(value) => Value::Integer(value),
            PlainValue::Number(value) => Value::Number(value),
            PlainValue::Text(text) => Value::String(lua.create_string(text)?),
            PlainValue::Table(pairs) => Value::Table(lua.create_table_from(pairs)?),
        })
    }
}

/// Counts a function that waits or runs.
pub struct ThreadSlot(());

impl ThreadSlot {
    /// `None` if `most` functions wait or run already.
    pub fn take(most: u64) -> Option<ThreadSlot> {
        let more = |n: u64| (n < most).then_some(n + 1);
        IN_PROGRESS
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()
            .map(|_| ThreadSlot(()))
    }
}

impl Drop for ThreadSlot {
    fn drop(&mut self) {
        IN_PROGRESS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A function to run.
pub struct Job {
    /// The site, for its dictionaries and package path.
    pub site: Lent<Site>,
    /// The identity of the calling loop.
    pub identity: Identity,
    /// The module's name.
    pub module: Vec<u8>,
    /// The function's name in the module.
    pub function: Vec<u8>,
    /// The arguments.
    pub arguments: Vec<PlainValue>,
    /// Counts the function until it has ended.
    pub slot: ThreadSlot,
}

impl Job {
    /// Runs the function on this thread. Returns its values or the error.
    pub fn run(self) -> Result<Vec<PlainValue>, String> {
        THREAD_VM.with_borrow_mut(|vm| {
            let is_same = |known: &ThreadVm| Arc::ptr_eq(known.site.shared(), self.site.shared());
            let known = vm.take().filter(is_same);
            let known = match known {
                Some(known) => known,
                None => ThreadVm::new(self.site.clone(), self.identity)
                    .map_err(|error| text_of(&error))?,
            };
            vm.insert(known).call(self)
        })
    }
}

/// The VM of a thread.
struct ThreadVm {
    /// Keeps the site alive, from which functions of `ngx` borrow.
    site: Lent<Site>,
    lua: Lua,
    /// Keeps the values of functions of `ngx` alive.
    _anchors: Rc<Anchors>,
    call: Function,
}

impl ThreadVm {
    #[expect(clippy::disallowed_methods, reason = "all modules of a site are its administrator's")]
    fn new(site: Lent<Site>, identity: Identity) -> mlua::Result<ThreadVm> {
        let lua = weir_sys::lua::vm_without_restrictions();
        let anchors = Anchors::new(&lua)?;
        let install = || start::install_ngx(&lua, &anchors, (site.get(), Side::Requests), identity);
        current::beside_loops(site.get(), install)?;
        let call = lua.load(
            "local module, name = ...
             local ok, found = pcall(require, module)
             if not ok then error(found, 0) end
             module = found
             if type(module) ~= 'table' then error('invalid lua module', 0) end
             if type(module[name]) ~= 'function' then error('invalid function', 0) end
             return module[name](select(3, ...))",
        );
        let call = call.set_name("=run_worker_thread").into_function()?;
        Ok(ThreadVm { site, lua, _anchors: anchors, call })
    }

    fn call(&mut self, job: Job) -> Result<Vec<PlainValue>, String> {
        let Job { module, function, arguments, slot, .. } = job;
        let called = self.values(module, function, arguments).and_then(|values| {
            let call = || self.call.call::<MultiValue>(values);
            current::beside_loops(self.site.get(), || {
                current::enter(Subject::Nothing, Side::Requests, Phase::WorkerThread, call)
            })
        });
        let returned = called.map_err(|error| text_of(&error)).and_then(|values| {
            let copies: Result<Vec<PlainValue>, String> =
                values.iter().map(PlainValue::of).collect();
            copies.map_err(|text| text + " in the return value")
        });
        if self.lua.used_memory() > LARGE {
            // An error of a finalizer does no harm.
            let _ = self.lua.gc_collect();
        }
        drop(slot);
        returned
    }

    fn values(
        &self,
        module: Vec<u8>,
        function: Vec<u8>,
        arguments: Vec<PlainValue>,
    ) -> mlua::Result<MultiValue> {
        let names = [PlainValue::Text(module), PlainValue::Text(function)];
        names.into_iter().chain(arguments).map(|value| value.into_lua(&self.lua)).collect()
    }
}

/// The text of an error without its traceback.
fn text_of(error: &Error) -> String {
    let text = super::yield_request::text_of(error);
    text.split("\nstack traceback:").next().unwrap_or_default().to_owned()
}
