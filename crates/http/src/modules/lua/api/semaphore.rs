//! `ngx.semaphore`

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use mlua::{MultiValue, UserDataRef, Value};
use weir_sys::lua::direct::Passed;

use super::natives::{AnswerKind, Natives};
use super::socket::handle;
use crate::modules::lua::current::{self, NgxError};
use crate::modules::lua::semaphore::Semaphore;
use crate::modules::lua::yield_request::{YieldRequest, reply};

/// A semaphore, as a script holds it.
struct SemaphoreHandle {
    semaphore: Rc<Semaphore>,
    /// Its index among the thread's semaphores.
    number: usize,
}

impl mlua::UserData for SemaphoreHandle {}

impl Drop for SemaphoreHandle {
    fn drop(&mut self) {
        // The thread's table may be gone when a VM ends with its thread.
        let _ = KNOWN.try_with(|known| known.borrow_mut().remove(self.number));
    }
}

/// The semaphores of this thread by number, since functions called by FFI take no userdata.
#[derive(Default)]
struct Known {
    all: Vec<Option<Rc<Semaphore>>>,
    free: Vec<usize>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

impl Known {
    fn add(&mut self, semaphore: Rc<Semaphore>) -> usize {
        let number = self.free.pop().unwrap_or(self.all.len());
        match self.all.get_mut(number) {
            Some(place) => *place = Some(semaphore),
            None => self.all.push(Some(semaphore)),
        }
        number
    }

    fn remove(&mut self, number: usize) {
        if self.all.get_mut(number).and_then(Option::take).is_some() {
            self.free.push(number);
        }
    }
}

/// Calls `look` with the semaphore whose number is the first argument.
fn with<T>(passed: &Passed<'_>, look: impl FnOnce(&Semaphore) -> T) -> Result<T, NgxError> {
    let [number, ..] = passed.numbers;
    KNOWN.with_borrow(|known| {
        let semaphore = known.all.get(number as usize).and_then(Option::as_ref);
        semaphore.map(|semaphore| look(semaphore)).ok_or("not a semaphore instance".into())
    })
}

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.add_refusing("semaphore_new", |lua, resources: f64| {
        let semaphore = Rc::new(Semaphore::new(resources as u64));
        let number = KNOWN.with_borrow_mut(|known| known.add(semaphore.clone()));
        let handle = lua.create_userdata(SemaphoreHandle { semaphore, number });
        Ok((handle.map_err(|error| error.to_string())?, number))
    })?;
    natives.direct("semaphore_count", |passed, answer| {
        answer.number = with(passed, Semaphore::count)? as f64;
        Ok::<_, NgxError>(AnswerKind::Number)
    })?;
    natives.direct("semaphore_post", |passed, _| {
        let [_, many, ..] = passed.numbers;
        with(passed, |semaphore| semaphore.post(many as u64)).map(|()| AnswerKind::Nil)
    })?;
    // Whether a resource was taken at once.
    natives.direct("semaphore_take", |passed, _| {
        current::may_wait()?;
        with(passed, |semaphore| semaphore.try_take().into())
    })?;
    natives.add_waiting("semaphore_wait", |_, (handle, seconds): (Handle, f64)| {
        let limit = Duration::from_millis((seconds * 1000.0) as u64);
        let taking = handle.semaphore.clone().take(self::handle()?, limit);
        Ok(YieldRequest::Wait(Box::pin(async move {
            let values = match taking.await {
                true => (Value::Boolean(true), None),
                false => (Value::Boolean(false), Some("timeout")),
            };
            reply(move |lua| {
                let why = values.1.map(|why| lua.create_string(why)).transpose()?;
                Ok(MultiValue::from_vec(vec![values.0, why.map_or(Value::Nil, Value::String)]))
            })
        })))
    })
}

type Handle = UserDataRef<SemaphoreHandle>;
