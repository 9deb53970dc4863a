//! `ngx.run_worker_thread`: functions of modules that run beside the loops, on the threads of a pool. Each such thread has a
//! VM of its own, without requests. What goes to it and comes back are copies.

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

/// Tables that may stand within each other.
const DEEPEST: usize = 100;

/// A VM that has taken more bytes than this is cleaned behind each function.
const LARGE: usize = 4 << 20;

/// How many functions wait or run in this process.
static AT_WORK: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The thread's VM.
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// A copy of a value of Lua, which goes from one VM to another.
pub enum Plain {
    Nil,
    Null,
    Boolean(bool),
    Integer(i64),
    Number(f64),
    Text(Vec<u8>),
    Table(Vec<(Plain, Plain)>),
}

impl Plain {
    /// Copies a value; the error tells what cannot be copied.
    pub fn of(value: &Value) -> Result<Plain, String> {
        Plain::at(value, 0)
    }

    fn at(value: &Value, depth: usize) -> Result<Plain, String> {
        Ok(match value {
            Value::Nil => Plain::Nil,
            Value::LightUserData(pointer) if pointer.0.is_null() => Plain::Null,
            Value::Boolean(value) => Plain::Boolean(*value),
            Value::Integer(value) => Plain::Integer(*value),
            Value::Number(value) => Plain::Number(*value),
            Value::String(text) => Plain::Text(text.as_bytes().to_vec()),
            Value::Table(_) if depth == DEEPEST => {
                let text = "suspicious circular references, table depth exceed max depth";
                return Err(format!("{text}: {DEEPEST}"));
            }
            Value::Table(table) => {
                let pair = |pair: mlua::Result<(Value, Value)>| {
                    let (key, value) = pair.map_err(|error| error.to_string())?;
                    Ok((Plain::at(&key, depth + 1)?, Plain::at(&value, depth + 1)?))
                };
                Plain::Table(table.pairs().map(pair).collect::<Result<_, String>>()?)
            }
            other => {
                let kind = other.type_name().to_ascii_uppercase();
                return Err(format!("unsupported Lua type: LUA_T{kind}"));
            }
        })
    }
}

impl IntoLua for Plain {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        Ok(match self {
            Plain::Nil => Value::Nil,
            Plain::Null => Value::NULL,
            Plain::Boolean(value) => Value::Boolean(value),
            Plain::Integer(value) => Value::Integer(value),
            Plain::Number(value) => Value::Number(value),
            Plain::Text(text) => Value::String(lua.create_string(text)?),
            Plain::Table(pairs) => Value::Table(lua.create_table_from(pairs)?),
        })
    }
}

/// The right to run a function beside the loops; there are only so many.
pub struct Turn(());

impl Turn {
    /// One more than `most` is none.
    pub fn take(most: u64) -> Option<Turn> {
        let more = |n: u64| (n < most).then_some(n + 1);
        AT_WORK.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Turn(()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        AT_WORK.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A function to run.
pub struct Job {
    /// The site, whose dictionaries and package path it has.
    pub site: Lent<Site>,
    /// Of the loop that asks for it.
    pub identity: Identity,
    /// The module's name.
    pub module: Vec<u8>,
    /// The function's name in the module.
    pub function: Vec<u8>,
    /// What it is called with.
    pub arguments: Vec<Plain>,
    /// How many may run.
    pub turn: Turn,
}

impl Job {
    /// Runs it on this thread: what the function returns, or why not.
    pub fn run(self) -> Result<Vec<Plain>, String> {
        MACHINE.with_borrow_mut(|machine| {
            let is_same = |known: &Machine| Arc::ptr_eq(known.site.shared(), self.site.shared());
            let known = machine.take().filter(is_same);
            let known = match known {
                Some(known) => known,
                None => Machine::new(self.site.clone(), self.identity)
                    .map_err(|error| text_of(&error))?,
            };
            machine.insert(known).call(self)
        })
    }
}

/// The VM of a thread.
struct Machine {
    /// It owns the site, from which functions of `ngx` borrow while they run.
    site: Lent<Site>,
    lua: Lua,
    /// What the functions of `ngx` keep.
    _anchors: Rc<Anchors>,
    call: Function,
}

impl Machine {
    #[expect(clippy::disallowed_methods, reason = "all modules of a site are its administrator's")]
    fn new(site: Lent<Site>, identity: Identity) -> mlua::Result<Machine> {
        let lua = weir_sys::lua::vm_without_restrictions();
        let anchors = Anchors::new(&lua)?;
        let furnish = || start::furnish(&lua, &anchors, (site.get(), Side::Requests), identity);
        current::beside_loops(site.get(), furnish)?;
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
        Ok(Machine { site, lua, _anchors: anchors, call })
    }

    fn call(&mut self, job: Job) -> Result<Vec<Plain>, String> {
        let Job { module, function, arguments, turn, .. } = job;
        let called = self.values(module, function, arguments).and_then(|values| {
            let call = || self.call.call::<MultiValue>(values);
            current::beside_loops(self.site.get(), || {
                current::enter(Subject::Nothing, Side::Requests, Phase::WorkerThread, call)
            })
        });
        let returned = called.map_err(|error| text_of(&error)).and_then(|values| {
            let copies: Result<Vec<Plain>, String> = values.iter().map(Plain::of).collect();
            copies.map_err(|text| text + " in the return value")
        });
        if self.lua.used_memory() > LARGE {
            // What it frees is gone; an error of a finalizer changes nothing.
            let _ = self.lua.gc_collect();
        }
        drop(turn);
        returned
    }

    fn values(
        &self,
        module: Vec<u8>,
        function: Vec<u8>,
        arguments: Vec<Plain>,
    ) -> mlua::Result<MultiValue> {
        let names = [Plain::Text(module), Plain::Text(function)];
        names.into_iter().chain(arguments).map(|value| value.into_lua(&self.lua)).collect()
    }
}

/// An error as the script gets it: without its traceback.
fn text_of(error: &Error) -> String {
    let text = super::wish::text_of(error);
    text.split("\nstack traceback:").next().unwrap_or_default().to_owned()
}
