//! `ngx.worker`, `ngx.config`, and what else scripts ask of the server.

use std::rc::Rc;

use mlua::Value;

use super::Natives;
use crate::worker::Worker;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>, worker: &Rc<Worker>) -> mlua::Result<()> {
    natives.constant("null", Value::NULL)?;
    natives.constant("worker_pid", worker.identity.pid)?;
    natives.constant("worker_id", worker.identity.worker)?;
    natives.constant("worker_count", worker.identity.workers)?;
    natives.constant("worker_loop", worker.identity.index)?;
    let prefix = natives.lua.create_string(prefix(worker))?;
    natives.constant("prefix", prefix)?;
    natives.add("worker_exiting", |_, ()| Worker::current().is_some_and(|w| w.retiring()))
}

/// With the slash that scripts expect at its end.
fn prefix(worker: &Worker) -> Vec<u8> {
    let mut prefix = worker.site.prefix.clone();
    if prefix.last() != Some(&b'/') {
        prefix.push(b'/');
    }
    prefix
}
