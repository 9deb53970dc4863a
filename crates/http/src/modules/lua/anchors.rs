//! Keeps Lua values that outlive a step of a script.
//!
//! mlua keeps the value of each handle in a slot of one stack, which has room for about 8,000, and
//! panics when it is full. So no handle outlives a step. Values of requests, timers and suspended
//! scripts are kept in a Lua table, and an [`Anchor`] is a key of that table.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use mlua::{FromLua, Function, IntoLua, Lua, MultiValue, Table, Thread, Value};

/// The table of kept values of a VM.
pub struct Anchors {
    /// Keeps the VM alive as long as a value is kept in it.
    lua: Lua,
    table: Table,
    /// Calls a kept function by its key, without a handle to the function.
    call: Function,
    /// Coroutines of scripts that may not yield, as weak keys.
    unyielding: Table,
    free: RefCell<Vec<usize>>,
    /// The highest key so far.
    most: Cell<usize>,
    /// A function that is called before the VM ends.
    end: OnceCell<Function>,
}

/// A value that is kept as long as the anchor lives.
pub struct Anchor {
    anchors: Rc<Anchors>,
    number: usize,
}

/// Several values that are kept together.
pub struct Packed {
    values: Option<Anchor>,
    len: usize,
}

impl Anchors {
    /// An empty table.
    pub fn new(lua: &Lua) -> mlua::Result<Rc<Anchors>> {
        let table = lua.create_table()?;
        let call = "local kept = ... return function(number, ...) return kept[number](...) end";
        let call = lua.load(call).set_name("=kept").call(&table)?;
        let weak = lua.load("return setmetatable({}, { __mode = 'k' })");
        let unyielding = weak.set_name("=kept").call(())?;
        let (free, most, end) = Default::default();
        Ok(Rc::new(Anchors { lua: lua.clone(), table, call, unyielding, free, most, end }))
    }

    /// Calls a function before the VM ends and the remaining finalizers run.
    pub fn before_end(&self, end: Function) {
        // `ngx` is installed once in a VM.
        let _ = self.end.set(end);
    }

    /// The table. Its keys are the numbers of anchors.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// A Lua function that calls a kept function. It takes the function's key and its arguments.
    pub fn call(&self) -> Function {
        self.call.clone()
    }

    /// A coroutine that calls a kept function, and in which `coroutine.yield` raises an error.
    pub fn unyielding_coroutine(&self) -> mlua::Result<Thread> {
        let thread = self.lua.create_thread(self.call())?;
        self.unyielding.raw_set(&thread, true)?;
        Ok(thread)
    }

    /// The coroutines that may not yield, as keys of a table.
    pub fn unyielding(&self) -> &Table {
        &self.unyielding
    }

    /// Keeps a value.
    pub fn keep(self: &Rc<Self>, value: impl IntoLua) -> mlua::Result<Anchor> {
        let free = self.free.borrow_mut().pop();
        let number = free.unwrap_or_else(|| {
            self.most.set(self.most.get() + 1);
            self.most.get()
        });
        // If this fails, dropping the anchor frees the key.
        let anchor = Anchor { anchors: self.clone(), number };
        self.table.raw_set(number, value)?;
        Ok(anchor)
    }

    /// Keeps several values.
    pub fn pack(self: &Rc<Self>, values: MultiValue) -> mlua::Result<Packed> {
        let len = values.len();
        if len == 0 {
            return Ok(Packed::default());
        }
        let table = self.lua.create_table_with_capacity(len, 0)?;
        for (i, value) in values.into_iter().enumerate() {
            table.raw_set(i + 1, value)?;
        }
        Ok(Packed { values: Some(self.keep(table)?), len })
    }
}

impl Drop for Anchors {
    fn drop(&mut self) {
        if let Some(end) = self.end.get() {
            // An error cannot be reported any more.
            let _ = end.call::<()>(());
        }
    }
}

impl Anchor {
    /// The value.
    pub fn get<T: FromLua>(&self) -> mlua::Result<T> {
        self.anchors.table.raw_get(self.number)
    }

    /// Its key in the table.
    pub fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        // The key exists, so the table does not grow.
        let _ = self.anchors.table.raw_set(self.number, Value::Nil);
        self.anchors.free.borrow_mut().push(self.number);
    }
}

impl Default for Packed {
    /// No value.
    fn default() -> Self {
        Packed { values: None, len: 0 }
    }
}

impl Packed {
    /// The values.
    pub fn unpack(&self) -> mlua::Result<MultiValue> {
        let Some(values) = &self.values else { return Ok(MultiValue::new()) };
        let table: Table = values.get()?;
        (1..=self.len).map(|i| table.raw_get::<Value>(i)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_hold_nothing_meanwhile() {
        let lua = Lua::new();
        let anchors = Anchors::new(&lua).unwrap();
        for _ in 0..3 {
            // mlua has room for fewer handles at once.
            let all: Vec<Anchor> = (0..20_000).map(|n| anchors.keep(n).unwrap()).collect();
            assert!(all.iter().enumerate().all(|(n, anchor)| anchor.get::<usize>().unwrap() == n));
            drop(all);
            assert_eq!(anchors.most.get(), 20_000);
            assert!(anchors.table.is_empty());
        }
        let function = lua.load("return function(a, b) return b, a, nil end").eval::<Value>();
        let function = anchors.keep(function.unwrap()).unwrap();
        let values: MultiValue = anchors.call().call((function.number(), 1, "b")).unwrap();
        let packed = anchors.pack(values).unwrap();
        assert_eq!((packed.len, packed.unpack().unwrap().len()), (3, 3));
        assert_eq!(packed.unpack().unwrap().front().unwrap().to_string().unwrap(), "b");
    }

    #[test]
    fn what_is_kept_keeps_its_machine() {
        let lua = Lua::new();
        let anchor = Anchors::new(&lua).unwrap().keep("text").unwrap();
        drop(lua);
        assert_eq!(anchor.get::<String>().unwrap(), "text");
    }
}
