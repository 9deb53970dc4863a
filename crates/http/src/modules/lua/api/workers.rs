//! `ngx.worker`, `ngx.config`, and what else scripts ask of the server.

use std::rc::Rc;

use mlua::Value;

use super::Natives;
use crate::event_loop::LoopState;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>, event_loop: &Rc<LoopState>) -> mlua::Result<()> {
    natives.constant("null", Value::NULL)?;
    natives.constant("worker_pid", event_loop.identity.pid)?;
    natives.constant("worker_id", event_loop.identity.worker)?;
    natives.constant("worker_count", event_loop.identity.workers)?;
    natives.constant("worker_loop", event_loop.identity.index)?;
    let prefix = natives.lua.create_string(prefix(event_loop))?;
    natives.constant("prefix", prefix)?;
    natives.add("worker_exiting", |_, ()| LoopState::current().is_some_and(|w| w.retiring()))
}

/// With the slash that scripts expect at its end.
fn prefix(event_loop: &LoopState) -> Vec<u8> {
    let mut prefix = event_loop.site.prefix.clone();
    if prefix.last() != Some(&b'/') {
        prefix.push(b'/');
    }
    prefix
}
