//! A future that is ready at a given time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::Handle;
use crate::clock::NEVER;
use crate::timers::TimerId;
use crate::waiter::TimerTarget;

/// See [`Handle::sleep`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Sleep {
    h: Handle,
    at: u64,
    timer: Option<TimerId>,
}

impl Handle {
    /// A future that is ready after `d`, counted from [`Handle::now`].
    pub fn sleep(&self, d: Duration) -> Sleep {
        let at = self.now().checked_add(d);
        let tick = at.map_or(NEVER, |at| self.0.clock.tick_of(at));
        Sleep { h: self.clone(), at: tick, timer: None }
    }

    /// A future that is ready at `at`.
    pub fn sleep_until(&self, at: Instant) -> Sleep {
        Sleep { h: self.clone(), at: self.0.clock.tick_of(at), timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let inner = &this.h.0;
        if inner.clock.tick() >= this.at {
            this.cancel();
            return Poll::Ready(());
        }
        if this.at == NEVER {
            return Poll::Pending;
        }
        let target = TimerTarget::Waiter(inner.waiters.of(cx, &inner.tasks));
        let mut wheel = inner.wheel.borrow_mut();
        let pending = this.timer.and_then(|timer| wheel.payload_mut(timer));
        if let Some(pending) = pending {
            if let TimerTarget::Waiter(old) = std::mem::replace(pending, target) {
                inner.waiters.forget(old);
            }
        } else {
            this.timer = Some(wheel.insert(this.at, target));
        }
        Poll::Pending
    }
}

impl Sleep {
    fn cancel(&mut self) {
        let inner = &self.h.0;
        let timer = self.timer.take();
        let target = timer.and_then(|timer| inner.wheel.borrow_mut().cancel(timer));
        if let Some(TimerTarget::Waiter(waiter)) = target {
            inner.waiters.forget(waiter);
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}
