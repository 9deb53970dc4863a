//! What the loop of this thread is at, for the warning about handlers that hold it up.
//!
//! Whoever begins something notes it here, with a look at the kernel's coarse clock, which costs a few
//! nanoseconds and is exact enough for what is worth a warning. What took longest of a handler is named at its
//! lap ([`weir_engine::Timekeeper`]), so that nobody is blamed for another one's work.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use weir_engine::Timekeeper;
use weir_log::{Level, Log};
use weir_metrics::{Histogram, Metric};

use crate::location::Location;
use crate::request::Request;
use crate::worker::Worker;

/// How often a loop warns.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
struct Doing {
    what: &'static str,
    location: Option<&'static Location>,
    /// Since when, by the coarse clock, in milliseconds.
    since: i64,
}

/// Nothing was noted.
const NOTHING: Doing = Doing { what: "", location: None, since: 0 };

thread_local! {
    /// What is being done.
    static DOING: Cell<Doing> = const { Cell::new(NOTHING) };
    /// What took longest of what this handler did before; `since` is how long.
    static LONGEST: Cell<Doing> = const { Cell::new(NOTHING) };
}

/// Notes what is being done for a request: a phase or an operation.
#[inline]
pub fn note(what: &'static str, r: &Request) {
    begin(what, r.location);
}

#[inline]
fn begin(what: &'static str, location: &'static Location) {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    let now = time.tv_sec * 1000 + time.tv_nsec / 1_000_000;
    let before = DOING.replace(Doing { what, location: Some(location), since: now });
    let took = now - before.since;
    if before.location.is_some() && took > LONGEST.get().since {
        LONGEST.set(Doing { since: took, ..before });
    }
}

/// What took longest of what the handler did that has just ended.
fn blame(took: Duration) -> Doing {
    let (last, longest) = (DOING.replace(NOTHING), LONGEST.replace(NOTHING));
    let took = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
    if 2 * longest.since >= took && longest.since > 0 { longest } else { last }
}

/// Runs a future, and notes at each of its steps what it is for.
pub async fn noting<T>(
    what: &'static str,
    location: &'static Location,
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        begin(what, location);
        future.as_mut().poll(cx)
    })
    .await
}

/// Runs a future; also says how long, at worst, the event that it waited for waited for it.
pub async fn blocked<T>(
    worker: &Worker,
    mut future: Pin<&mut impl Future<Output = T>>,
) -> (T, Duration) {
    let mut worst = Duration::ZERO;
    let out = std::future::poll_fn(|cx| {
        worst = worst.max(worker.handle.blocked());
        future.as_mut().poll(cx)
    })
    .await;
    (out, worst)
}

/// Puts the times of a loop into its counters, and warns of handlers that hold it up.
pub struct Keeper {
    worker: Weak<Worker>,
    warned: Cell<Option<Instant>>,
}

impl Keeper {
    /// The keeper of a worker's loop.
    pub fn new(worker: &Rc<Worker>) -> Rc<Keeper> {
        Rc::new(Keeper { worker: Rc::downgrade(worker), warned: Cell::new(None) })
    }

    fn held_up(&self, worker: &Worker, doing: Doing, took: Duration) {
        worker.metrics.add(Metric::SlowHandlers, 1);
        let now = worker.handle.now();
        if self.warned.get().is_some_and(|at| now.saturating_duration_since(at) < PAUSE) {
            return;
        }
        self.warned.set(Some(now));
        let log: &Log = match doing.location {
            Some(location) => &location.conf.core.error_log,
            None => &worker.site.main.core.error_log,
        };
        let what = if doing.what.is_empty() { "something else" } else { doing.what };
        let millis = took.as_millis();
        match doing.location {
            Some(location) => {
                let name = String::from_utf8_lossy(&location.name);
                let text = format_args!(
                    "the event loop was held up for {millis} ms by {what}, location: \"{name}\""
                );
                log.write(Level::Warn, None, text);
            }
            None => {
                let text = format_args!("the event loop was held up for {millis} ms by {what}");
                log.write(Level::Warn, None, text);
            }
        }
    }
}

impl Timekeeper for Keeper {
    fn handled(&self, blocked: Duration, took: Duration) {
        let doing = blame(took);
        let Some(worker) = self.worker.upgrade() else { return };
        worker.metrics.record(Histogram::Blocked, blocked);
        worker.metrics.record(Histogram::Handler, took);
        let conf = doing.location.map_or(&worker.site.main, |l| &l.conf);
        if took > conf.event_loop.threshold {
            self.held_up(&worker, doing, took);
        }
    }

    fn turned(&self, took: Duration) {
        let Some(worker) = self.worker.upgrade() else { return };
        worker.metrics.add(Metric::Turns, 1);
        worker.metrics.record(Histogram::Turn, took);
    }
}
