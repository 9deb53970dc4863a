//! The timers of a loop's scripts: how many wait and run, and waking them when the loop ends.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::{Poll, Waker};
use std::time::Duration;

use weir_engine::{Handle, yield_now};

use super::script::Scripts;

/// `lua_max_pending_timers` where nothing is said.
const PENDING: u64 = 1024;
/// `lua_max_running_timers` where nothing is said.
const RUNNING: u64 = 256;

/// Waits so long from now on. Without a time it waits for no tick of the clock: only the others go first, those that are ready and
/// those that the next look for events wakes.
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
    /// Those that wait for their time.
    pub pending: Cell<u64>,
    /// Those that run.
    pub running: Cell<u64>,
    /// The loop ends: timers come before their time, and their argument says so.
    pub premature: Cell<bool>,
    /// Those that wait, by number.
    pub waiting: RefCell<BTreeMap<u64, Waker>>,
    /// The number of the newest timer.
    pub count: Cell<u64>,
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

    /// Waits until the loop ends.
    pub async fn hurried(&self, number: u64) {
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
