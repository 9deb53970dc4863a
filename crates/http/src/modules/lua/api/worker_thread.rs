//! `ngx.run_worker_thread`: functions on threads beside the loops.

use mlua::{IntoLua, MultiValue, Value};
use weir_engine::Rank;

use super::natives::Natives;
use crate::event_loop::LoopState;
use crate::modules::lua::current::{self, NgxError};
use crate::modules::lua::worker_thread::{Job, PlainValue, ThreadSlot};
use crate::modules::lua::yield_request::{YieldRequest, reply};

/// The default of `lua_worker_thread_vm_pool_size`.
const USUAL: u64 = 10;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("worker_thread", |_, asked: Asked| match prepare(asked)? {
        Ok(yielded) => current::request_yield(yielded).map(|()| None),
        Err(text) => Ok(Some(text)),
    })
}

/// Pool, module, function, and its arguments.
type Asked = (mlua::String, mlua::String, mlua::String, MultiValue);

/// The reason of the yield, or an error.
fn prepare(
    (pool, module, function, values): Asked,
) -> Result<Result<YieldRequest, String>, NgxError> {
    current::may_wait()?;
    let event_loop = LoopState::current().ok_or(NgxError::NoRequest)?;
    let handle = event_loop.handle.clone();
    let Some(pool) = handle.files().pool(&pool.as_bytes()).cloned() else {
        return Ok(Err(format!("thread pool {} not found", pool.to_string_lossy())));
    };
    let most = current::scripts().and_then(|scripts| scripts.worker_vms).unwrap_or(USUAL);
    let Some(slot) = ThreadSlot::take(most) else {
        return Ok(Err("no available Lua vm".to_owned()));
    };
    let arguments: Result<Vec<PlainValue>, String> = values.iter().map(PlainValue::of).collect();
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(text) => return Ok(Err(text + " in the argument")),
    };
    let job = Job {
        site: event_loop.owner(),
        identity: event_loop.identity,
        module: module.as_bytes().to_vec(),
        function: function.as_bytes().to_vec(),
        arguments,
        slot,
    };
    Ok(Ok(YieldRequest::Wait(Box::pin(async move {
        let done = handle.files().run_in(&pool, Rank::Read, move || job.run()).await;
        let done = done.unwrap_or_else(|_| Err("ngx_thread_task_post failed".to_owned()));
        reply(move |lua| {
            let (well, values) = match done {
                Ok(values) => (true, values),
                Err(text) => (false, vec![PlainValue::Text(text.into_bytes())]),
            };
            let values = values.into_iter().map(|value| value.into_lua(lua));
            std::iter::once(Ok(Value::Boolean(well))).chain(values).collect()
        })
    }))))
}
