//! `ngx.timer`: scripts that run later, without a request.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use mlua::MultiValue;
use weir_engine::{Either, either};
use weir_log::Level;

use super::anchors::Packed;
use super::current::Phase;
use super::run::{self, Start};
use super::script::Scripts;
use super::vm::Vm;
use crate::event_loop::LoopState;

/// `lua_max_pending_timers` where nothing is said.
const PENDING: u64 = 1024;
/// `lua_max_running_timers` where nothing is said.
const RUNNING: u64 = 256;

/// A loop's timers.
pub struct Timers {
    most_pending: u64,
    most_running: u64,
    pending: Cell<u64>,
    running: Cell<u64>,
    /// The loop ends: timers come before their time, and are told.
    premature: Cell<bool>,
    /// Those that wait, by number.
    waiting: RefCell<BTreeMap<u64, Waker>>,
    count: Cell<u64>,
}

impl Timers {
    /// None yet.
    pub fn new(scripts: &Scripts) -> Timers {
        Timers {
            most_pending: scripts.pending_timers.unwrap_or(PENDING),
            most_running: scripts.running_timers.unwrap_or(RUNNING),
            pending: Cell::new(0),
            running: Cell::new(0),
            premature: Cell::new(false),
            waiting: RefCell::default(),
            count: Cell::new(0),
        }
    }

    /// `ngx.timer.pending_count()`
    pub fn pending(&self) -> u64 {
        self.pending.get()
    }

    /// `ngx.timer.running_count()`
    pub fn running(&self) -> u64 {
        self.running.get()
    }

    /// None waits for its time or is at work.
    pub fn are_done(&self) -> bool {
        self.pending.get() == 0 && self.running.get() == 0
    }

    /// Calls all timers before their time, and sets no more.
    pub fn hurry(&self) {
        self.premature.set(true);
        self.waiting.take().into_values().for_each(Waker::wake);
    }

    async fn hurried(&self, number: u64) {
        std::future::poll_fn(|cx| {
            if self.premature.get() {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().insert(number, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Sets a timer for a function and its arguments; `every` calls again and again.
pub fn set(
    event_loop: &Rc<LoopState>,
    delay: Duration,
    every: bool,
    what: MultiValue,
) -> Result<(), &'static str> {
    let vm = event_loop.lua.get().cloned().ok_or("no Lua VM")?;
    let timers = &vm.timers;
    // What a loop that ends is asked to do at once is not premature: it comes at its time.
    let late = timers.premature.get();
    if late && !delay.is_zero() {
        return Err("process exiting");
    }
    if timers.pending.get() >= timers.most_pending {
        return Err("too many pending timers");
    }
    let packed = vm.anchors.pack(what).map_err(|_| "no memory")?;
    timers.pending.set(timers.pending.get() + 1);
    timers.count.set(timers.count.get() + 1);
    let number = timers.count.get();
    let handle = event_loop.handle.clone();
    event_loop.handle.spawn(async move {
        loop {
            let timers = &vm.timers;
            let premature = if late {
                handle.sleep(delay).await;
                false
            } else {
                let waited = either(handle.sleep(delay), timers.hurried(number)).await;
                timers.waiting.borrow_mut().remove(&number);
                matches!(waited, Either::Right(())) || timers.premature.get()
            };
            timers.pending.set(timers.pending.get().saturating_sub(1));
            let again = every && !premature && !late;
            if again {
                timers.pending.set(timers.pending.get() + 1);
            }
            call(&vm, premature, &packed).await;
            if !again {
                break;
            }
        }
    });
    Ok(())
}

async fn call(vm: &Vm, premature: bool, call: &Packed) {
    let timers = &vm.timers;
    if timers.running.get() >= timers.most_running {
        let most = timers.most_running;
        vm.log(Level::Alert, format_args!("{most} lua_max_running_timers are not enough"));
        return;
    }
    timers.running.set(timers.running.get() + 1);
    // The error was logged. No client waits for it.
    let _ = run::drive(vm, None, Phase::Timer, Start::Timer { premature, call }).await;
    timers.running.set(timers.running.get().saturating_sub(1));
}
