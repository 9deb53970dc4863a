//! `ngx.semaphore`

use std::rc::Rc;
use std::time::Duration;

use mlua::{MultiValue, UserDataRef, Value};

use super::natives::Natives;
use super::socket::handle;
use crate::modules::lua::current;
use crate::modules::lua::semaphore::Semaphore;
use crate::modules::lua::wish::{Wish, reply};

/// A semaphore as scripts hold it.
struct SemaphoreHandle(Rc<Semaphore>);

impl mlua::UserData for SemaphoreHandle {}

type SemaphoreRef = UserDataRef<SemaphoreHandle>;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("semaphore_new", |lua, resources: f64| {
        let semaphore = SemaphoreHandle(Rc::new(Semaphore::new(resources as u64)));
        lua.create_userdata(semaphore).map_err(|error| error.to_string().into())
    })?;
    natives.add("semaphore_count", |_, semaphore: SemaphoreRef| semaphore.0.count())?;
    natives.add("semaphore_post", |_, (semaphore, many): (SemaphoreRef, f64)| {
        semaphore.0.post(many as u64);
    })?;
    // True or false at once, or nil where the prelude waits.
    natives.add_refusing("semaphore_wait", |_, (semaphore, seconds): (SemaphoreRef, f64)| {
        current::may_wait()?;
        let limit = Duration::from_millis((seconds * 1000.0) as u64);
        if semaphore.0.try_take() {
            return Ok(Some(true));
        }
        if limit.is_zero() {
            return Ok(Some(false));
        }
        let taking = semaphore.0.clone().take(handle()?, limit);
        current::wish(Wish::Wait(Box::pin(async move {
            let values = match taking.await {
                true => (Value::Boolean(true), None),
                false => (Value::Boolean(false), Some("timeout")),
            };
            reply(move |lua| {
                let why = values.1.map(|why| lua.create_string(why)).transpose()?;
                Ok(MultiValue::from_vec(vec![values.0, why.map_or(Value::Nil, Value::String)]))
            })
        })))?;
        Ok(None)
    })
}
