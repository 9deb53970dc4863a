//! `lua_max_run_time`: ends a script that computes for too long without a pause.
//!
//! LuaJIT calls a hook after each so many instructions of its interpreter, and none in machine code. So the machine of a loop
//! interprets all scripts where some location has the limit.

use std::cell::Cell;
use std::time::Duration;

use mlua::{HookTriggers, Lua, VmState};
use weir_engine::coarse_nanos;

/// Instructions between two looks at the clock: some tenths of a millisecond.
const OFTEN: u32 = 10_000;

thread_local! {
    /// When the running script is to end, by [`coarse_nanos`], and how long it may run.
    static END: Cell<Option<(u64, Duration)>> = const { Cell::new(None) };
    /// The running script has been told to end: each further instruction fails, whatever catches the error.
    static IS_OVER: Cell<bool> = const { Cell::new(false) };
}

/// Makes the limit possible for all scripts of a machine.
pub fn prepare(lua: &Lua) -> mlua::Result<()> {
    lua.load("jit.off()").exec()?;
    look_every(lua, OFTEN)
}

fn look_every(lua: &Lua, instructions: u32) -> mlua::Result<()> {
    let triggers = HookTriggers::new().every_nth_instruction(instructions);
    lua.set_global_hook(triggers, |lua, _| match END.get() {
        Some((at, limit)) if coarse_nanos() >= at => {
            if !IS_OVER.replace(true) {
                look_every(lua, 1)?;
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
    END.get().map(|(_, limit)| limit)
}

/// Runs a script, or a part of one between two pauses, for so long at most; zero is no limit.
pub fn within<T>(lua: &Lua, limit: Duration, run: impl FnOnce() -> T) -> T {
    if limit.is_zero() {
        return run();
    }
    let at = coarse_nanos().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    let before = END.replace(Some((at, limit)));
    let out = run();
    END.set(before);
    if IS_OVER.replace(false) {
        // It was set before, so it can be set again.
        let _ = look_every(lua, OFTEN);
    }
    out
}
