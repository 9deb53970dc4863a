//! The timers of a loop's scripts: limits, counts, and their early end when the loop retires.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::{Poll, Waker};
use std::time::Duration;

use weir_engine::{Handle, yield_now};

use super::script::Scripts;

/// The default of `lua_max_pending_timers`.
const PENDING: u64 = 1024;
/// The default of `lua_max_running_timers`.
const RUNNING: u64 = 256;

/// Waits for `time` from now on. Zero does not wait for a tick of the clock: tasks that are ready,
/// and those that the next poll for events wakes, run first.
pub fn pause(handle: &Handle, time: Duration) -> impl Future<Output = ()> + use<> {
    let sleep = (!time.is_zero()).then(|| handle.sleep(time));
    async move {
        match sleep {
            Some(sleep) => sleep.await,
            None => yield_now().await,
        }
    }
}

/// A loop's timers.
pub struct Timers {
    /// `lua_max_pending_timers`
    pub most_pending: u64,
    /// `lua_max_running_timers`
    pub most_running: u64,
    /// The number of pending timers.
    pub pending: Cell<u64>,
    /// The number of running timers.
    pub running: Cell<u64>,
    /// Whether the loop retires. Timers then run early, with `premature` set.
    pub premature: Cell<bool>,
    /// Wakers of the pending timers, by number.
    pub waiting: RefCell<BTreeMap<u64, Waker>>,
    /// The number of the newest timer.
    pub count: Cell<u64>,
}

impl Timers {
    /// No timers yet.
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

    /// Whether no timer is pending or running.
    pub fn are_done(&self) -> bool {
        self.pending.get() == 0 && self.running.get() == 0
    }

    /// Runs all pending timers early. Later ones with a delay are refused.
    pub fn run_early(&self) {
        self.premature.set(true);
        self.waiting.take().into_values().for_each(Waker::wake);
    }

    /// Waits until timers run early.
    pub async fn until_run_early(&self, number: u64) {
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
