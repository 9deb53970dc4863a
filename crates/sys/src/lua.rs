//! A Lua machine with all libraries of LuaJIT. mlua calls that unsafe where `ffi`, `debug` or C modules are
//! among them, since a script can break memory with these.

use mlua::{Lua, LuaOptions, StdLib};

/// A machine whose scripts may do all that LuaJIT's can: for scripts of the configuration only, whose author
/// is trusted with as much by `load_module` and kin.
#[must_use]
pub fn machine() -> Lua {
    // SAFETY: mlua keeps its own invariants as long as scripts do not write to memory that is not theirs. Only
    // `ffi`, `debug` and C modules could, and the administrator who writes or installs the scripts answers for
    // them as for the binary itself. No script comes from a client.
    unsafe { Lua::unsafe_new_with(StdLib::ALL, LuaOptions::new()) }
}
