//! The schedule of requests.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use weir_engine::Handle;

use crate::{LoadPlan, Pace};

/// The schedule of a run, which all threads share: the requests claimed so far, their limit, and
/// the end.
pub(crate) struct Schedule {
    claimed: AtomicU64,
    limit: u64,
    pub(crate) began: Instant,
    pub(crate) end: Option<Instant>,
    rate: Option<f64>,
    interrupted: AtomicBool,
}

/// A claimed request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// Its number, from 0.
    pub(crate) number: u64,
    /// When it is due, in an open loop.
    pub(crate) intended: Option<Instant>,
}

impl Schedule {
    pub(crate) fn new(plan: &LoadPlan, began: Instant) -> Schedule {
        let rate = match plan.pace {
            Pace::Closed => None,
            Pace::Open { rate } => Some(rate),
        };
        let end = plan.duration.and_then(|d| began.checked_add(d));
        let limit = plan.requests.unwrap_or(u64::MAX);
        let (claimed, interrupted) = (AtomicU64::new(0), AtomicBool::new(false));
        Schedule { claimed, limit, began, end, rate, interrupted }
    }

    /// Ends the run early.
    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Claims the next request. `None` if there are no more. Each number below the limit is claimed
    /// once.
    pub(crate) fn claim(&self, now: Instant) -> Option<Start> {
        if self.rate.is_none() && self.end.is_some_and(|end| now >= end) {
            return None;
        }
        let number = self.claimed.fetch_add(1, Ordering::Relaxed);
        if number >= self.limit {
            return None;
        }
        let Some(rate) = self.rate else { return Some(Start { number, intended: None }) };
        let after = Duration::try_from_secs_f64(number as f64 / rate).unwrap_or(Duration::MAX);
        let intended = self.began.checked_add(after)?;
        let over = self.end.is_some_and(|end| intended >= end);
        (!over).then_some(Start { number, intended: Some(intended) })
    }
}

/// Wakes the connections of one loop when their requests are due. It is a timerfd, since the loop's
/// own timers have a resolution of a millisecond.
pub(crate) struct Alarm {
    timer: Arc<OwnedFd>,
    waiting: RefCell<VecDeque<(Instant, Waker)>>,
}

impl Alarm {
    pub(crate) fn new(h: &Handle) -> io::Result<Rc<Alarm>> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = Arc::new(timerfd_create(TimerfdClockId::Monotonic, flags)?);
        let waiting = RefCell::default();
        let alarm = Rc::new(Alarm { timer: Arc::clone(&timer), waiting });
        let rings = Rc::clone(&alarm);
        h.add_watch(timer, move |_| rings.ring())?;
        Ok(alarm)
    }

    /// Waits until `at`. Times of one loop never decrease, since requests are claimed in order.
    pub(crate) async fn until(&self, at: Instant) {
        let mut queued = false;
        poll_fn(|cx| {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            if !queued {
                queued = true;
                self.waiting.borrow_mut().push_back((at, cx.waker().clone()));
                self.set();
            }
            Poll::Pending
        })
        .await;
    }

    fn ring(&self) {
        // The number of expirations does not matter.
        let _ = rustix::io::read(&self.timer, &mut [0u8; 8]);
        let now = Instant::now();
        let due = |waiting: &VecDeque<(Instant, Waker)>| {
            waiting.front().is_some_and(|(at, _)| *at <= now)
        };
        loop {
            let mut waiting = self.waiting.borrow_mut();
            if !due(&waiting) {
                break;
            }
            let first = waiting.pop_front();
            drop(waiting);
            if let Some((_, waker)) = first {
                waker.wake();
            }
        }
        self.set();
    }

    /// Arms the timer for the first waiting connection.
    fn set(&self) {
        let waiting = self.waiting.borrow();
        let Some((at, _)) = waiting.front() else { return };
        // Zero would disarm the timer.
        let left = at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let value = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        // It fails only for times out of the clock's range, which no connection waits for.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }
}
