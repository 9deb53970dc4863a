//! Waiting between requests without ending the task.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::NEVER;
use crate::ops::must_yield;
use crate::ready::Ready;
use crate::source::{Registered, Rest};
use crate::{Idle, Stream, Wake};

/// See [`Stream::rest`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Pause<'a> {
    stream: &'a Stream,
    grace: Duration,
}

impl Stream {
    /// Waits for the next request as a parked connection does ([`crate::Handle::park`]), but keeps
    /// the task. The loop counts and evicts the connection as if it were parked. A busy client asks
    /// again soon, and keeping the task costs less than ending and starting one.
    ///
    /// Returns [`Wake::Deadline`] after `grace`; the caller then parks the connection. The stream's
    /// deadline is unset afterwards.
    pub fn rest(&self, grace: Duration) -> Pause<'_> {
        Pause { stream: self, grace }
    }
}

impl Future for Pause<'_> {
    type Output = Wake;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Wake> {
        let registered = &self.stream.0;
        let (h, source) = (&registered.h, &registered.source);
        if let Rest::Over(why) = source.rest.get() {
            source.rest.set(Rest::No);
            source.deadline.set(NEVER);
            return Poll::Ready(why);
        }
        registered.report_or_break();
        if source.is(Ready::READABLE) {
            // A task without budget could receive nothing and would rest again.
            if must_yield(cx) {
                return Poll::Pending;
            }
            end(registered);
            return Poll::Ready(Wake::Ready);
        }
        if source.rest.get() == Rest::No {
            source.rest.set(Rest::Yes);
            h.link(source);
            registered.set_timeout(Some(self.grace));
        } else if registered.expired() {
            end(registered);
            return Poll::Ready(Wake::Deadline);
        }
        h.0.waiters.register(&source.reader, cx, &h.0.tasks);
        Poll::Pending
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        end(&self.stream.0);
    }
}

/// See [`Stream::rest_stealable`].
#[must_use = "futures do nothing unless they are awaited"]
pub struct Offered<'a> {
    pause: Pause<'a>,
    /// Present while it is not offered.
    idle: Option<Box<dyn Idle>>,
}

impl Stream {
    /// As [`Stream::rest`], but other loops of the group ([`crate::Options::steal_group`]) may
    /// steal the connection with its state `idle`. Returns `idle`, or `None` if another loop has
    /// stolen the connection. The stream is then unusable and must be dropped.
    pub fn rest_stealable(&self, grace: Duration, idle: Box<dyn Idle>) -> Offered<'_> {
        Offered { pause: self.rest(grace), idle: Some(idle) }
    }
}

impl Offered<'_> {
    fn withdraw(&mut self) -> Option<Box<dyn Idle>> {
        let registered = &self.pause.stream.0;
        self.idle.take().or_else(|| registered.h.withdraw(&registered.source))
    }
}

impl Future for Offered<'_> {
    type Output = Option<(Wake, Box<dyn Idle>)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match Pin::new(&mut self.pause).poll(cx) {
            Poll::Ready(why) => Poll::Ready(self.withdraw().map(|idle| (why, idle))),
            Poll::Pending => {
                // From now on, a loop that takes the value out owns the connection.
                self.idle = self.idle.take().and_then(|idle| self.pause.stream.0.offer(idle));
                Poll::Pending
            }
        }
    }
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        drop(self.withdraw());
    }
}

fn end(registered: &Registered) {
    let source = &registered.source;
    match source.rest.replace(Rest::No) {
        Rest::No => return,
        Rest::Yes => registered.h.forget_parked(source),
        Rest::Over(_) => {}
    }
    source.deadline.set(NEVER);
}
