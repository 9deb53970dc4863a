//! `lua_max_run_time`: ends a script that computes for too long without yielding.
//!
//! LuaJIT calls a hook after a number of interpreted instructions, but not in machine code. So if
//! some location has the limit, the VM interprets all scripts.

use std::cell::Cell;
use std::time::Duration;

use mlua::{HookTriggers, Lua, VmState};
use weir_engine::coarse_nanos;

/// The number of instructions between two looks at the clock. They take some tenths of a
/// millisecond.
const HOOK_INTERVAL: u32 = 10_000;

thread_local! {
    /// The deadline of the running script, by [`coarse_nanos`], and its limit.
    static DEADLINE: Cell<Option<(u64, Duration)>> = const { Cell::new(None) };
    /// Whether the running script has exceeded its limit. Each further instruction fails then, even
    /// if the script catches the error.
    static IS_EXCEEDED: Cell<bool> = const { Cell::new(false) };
}

/// Prepares a VM for the limit.
pub fn prepare(lua: &Lua) -> mlua::Result<()> {
    lua.load("jit.off()").exec()?;
    set_hook(lua, HOOK_INTERVAL)
}

fn set_hook(lua: &Lua, instructions: u32) -> mlua::Result<()> {
    let triggers = HookTriggers::new().every_nth_instruction(instructions);
    lua.set_global_hook(triggers, |lua, _| match DEADLINE.get() {
        Some((at, limit)) if coarse_nanos() >= at => {
            if !IS_EXCEEDED.replace(true) {
                set_hook(lua, 1)?;
            }
            let text = format!("the script computed for longer than lua_max_run_time ({limit:?})");
            let whole = lua.traceback(Some(&text), 0)?;
            Err(mlua::Error::runtime(whole.to_string_lossy()))
        }
        _ => Ok(VmState::Continue),
    })
}

/// The limit of the running script, if it has one.
pub fn running() -> Option<Duration> {
    DEADLINE.get().map(|(_, limit)| limit)
}

/// Runs a step of a script within a limit; zero is no limit.
pub fn within<T>(lua: &Lua, limit: Duration, run: impl FnOnce() -> T) -> T {
    if limit.is_zero() {
        return run();
    }
    let at = coarse_nanos().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    let before = DEADLINE.replace(Some((at, limit)));
    let out = run();
    DEADLINE.set(before);
    if IS_EXCEEDED.replace(false) {
        // The hook was set before, so setting it does not fail.
        let _ = set_hook(lua, HOOK_INTERVAL);
    }
    out
}
