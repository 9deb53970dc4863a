//! A socket in its loop: the descriptor, its known readiness, and the tasks that wait for it.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::NEVER;
use crate::ready::Ready;
use crate::seam::{self, Call};
use crate::timers::TimerId;
use crate::token::Token;
use crate::waiter::{TimerTarget, Waiter};
use crate::{Handle, Idle, Wake};

/// Whether a task rests on the stream: see [`crate::Stream::rest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    No,
    /// It rests. The source is in the list of parked sources.
    Yes,
    /// It was removed from the list for this reason and is about to continue.
    Over(Wake),
}

/// A socket's descriptor.
pub(crate) enum Fd {
    /// This loop's alone.
    Own(OwnedFd),
    /// Other loops of the process may take the socket over: see [`crate::Stream::shared`].
    Shared(Arc<OwnedFd>),
}

impl AsFd for Fd {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Fd::Own(fd) => fd.as_fd(),
            Fd::Shared(fd) => fd.as_fd(),
        }
    }
}

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Fd {
        Fd::Own(fd)
    }
}

impl Fd {
    /// Whether the socket has other owners and stays open when this one is dropped.
    fn has_others(&self) -> bool {
        matches!(self, Fd::Shared(fd) if Arc::strong_count(fd) > 1)
    }

    fn into_inner(self) -> Option<OwnedFd> {
        match self {
            Fd::Own(fd) => Some(fd),
            Fd::Shared(fd) => Arc::into_inner(fd),
        }
    }
}

pub(crate) struct Source {
    pub(crate) fd: Fd,
    /// Registers the socket with the simulated world, if there is one.
    _known: seam::Known,
    pub(crate) token: Token,
    pub(crate) ready: Cell<Ready>,
    pub(crate) parked: Cell<bool>,
    /// Whether the task that owns the stream rests.
    pub(crate) rest: Cell<Rest>,
    /// Whether the backend reports the socket: see [`Registered::report`].
    pub(crate) reported: Cell<bool>,
    /// Whether the backend reports room to write, too.
    pub(crate) reports_room: Cell<bool>,
    pub(crate) reader: Cell<Waiter>,
    pub(crate) writer: Cell<Waiter>,
    /// Waits until the peer has closed its side, even if bytes are unread.
    pub(crate) closer: Cell<Waiter>,
    /// When pending operations fail, in ticks.
    pub(crate) deadline: Cell<u64>,
    /// The tick of the source's one timer. A deadline that moves later leaves it alone.
    scheduled: Cell<u64>,
    timer: Cell<Option<TimerId>>,
    /// The state of a parked connection, if it is not stealable.
    pub(crate) idle: Cell<Option<Box<dyn Idle>>>,
    /// The state was made stealable at some time, and may be now.
    pub(crate) offered: Cell<bool>,
    /// Neighbours in the list of parked sources, by slot.
    pub(crate) prev: Cell<u32>,
    pub(crate) next: Cell<u32>,
}

impl Source {
    pub(crate) fn new(fd: Fd, token: Token, ready: Ready) -> Self {
        Source {
            _known: seam::opened(fd.as_fd()),
            fd,
            token,
            ready: Cell::new(ready),
            parked: Cell::new(false),
            rest: Cell::new(Rest::No),
            reported: Cell::new(false),
            reports_room: Cell::new(!ready.any(Ready::WRITE)),
            reader: Cell::new(Waiter::NONE),
            writer: Cell::new(Waiter::NONE),
            closer: Cell::new(Waiter::NONE),
            deadline: Cell::new(NEVER),
            scheduled: Cell::new(NEVER),
            timer: Cell::new(None),
            idle: Cell::new(None),
            offered: Cell::new(false),
            prev: Cell::new(NIL),
            next: Cell::new(NIL),
        }
    }

    #[inline]
    pub(crate) fn is(&self, ready: Ready) -> bool {
        self.ready.get().any(ready)
    }

    #[inline]
    pub(crate) fn mark(&self, ready: Ready) {
        self.ready.set(self.ready.get().and(ready));
    }

    #[inline]
    pub(crate) fn clear(&self, ready: Ready) {
        self.ready.set(self.ready.get().without(ready));
    }

    /// For level-triggered backends: whether a task waits to read and the source is not known to be
    /// readable.
    pub(crate) fn wants_read(&self) -> bool {
        let waits = self.parked.get() || self.reader.get().is_set() || self.closer.get().is_set();
        waits && !self.is(Ready::READ)
    }

    /// As [`Source::wants_read`].
    pub(crate) fn wants_write(&self) -> bool {
        self.writer.get().is_set() && !self.is(Ready::WRITE)
    }
}

/// The list of parked sources, oldest first. The links are in the sources.
#[derive(Clone, Copy)]
pub(crate) struct Parked {
    pub(crate) oldest: u32,
    pub(crate) newest: u32,
    pub(crate) count: usize,
}

/// No source.
pub(crate) const NIL: u32 = u32::MAX;

impl Parked {
    pub(crate) fn new() -> Self {
        Parked { oldest: NIL, newest: NIL, count: 0 }
    }
}

/// A source in its loop. When this is dropped, the source leaves the loop and closes, unless it is
/// parked.
pub(crate) struct Registered {
    pub(crate) h: Handle,
    pub(crate) source: Rc<Source>,
}

impl Registered {
    /// Removes the socket from the loop without closing it.
    pub(crate) fn into_fd(self) -> Option<OwnedFd> {
        let source = Rc::clone(&self.source);
        self.h.0.backend.borrow_mut().detach(&source);
        drop(self);
        Rc::into_inner(source).and_then(|source| source.fd.into_inner())
    }

    /// Adds the socket to the backend if it is not there yet. Until then, it is only assumed to be
    /// readable. That assumption is dropped; the backend's first report says what is true.
    #[inline]
    pub(crate) fn report(&self) -> io::Result<()> {
        if self.source.reported.replace(true) {
            return Ok(());
        }
        self.source.clear(Ready::READ);
        let add = || self.h.0.backend.borrow_mut().add(&self.source);
        let added = seam::at(Call::Watch).map_err(io::Error::from).and_then(|()| add());
        self.source.reported.set(added.is_ok());
        added
    }

    /// As [`Registered::report`]. If the backend refuses the socket, it counts as failed, and the
    /// next receive returns an error.
    #[inline]
    pub(crate) fn report_or_break(&self) {
        if self.report().is_err() {
            self.source.mark(Ready::ERR);
        }
    }

    /// Makes the connection stealable. Returns its state if no other loop could steal it.
    pub(crate) fn offer(&self, idle: Box<dyn Idle>) -> Option<Box<dyn Idle>> {
        let source = &self.source;
        let (Some(member), Fd::Shared(fd)) = (&self.h.0.steal_group, &source.fd) else {
            return Some(idle);
        };
        source.offered.set(true);
        member.stealable().put(source.token, fd, idle);
        None
    }

    pub(crate) fn set_deadline(&self, at: Option<Instant>) {
        self.set_tick(at.map_or(NEVER, |at| self.h.0.clock.tick_of(at)));
    }

    pub(crate) fn set_timeout(&self, after: Option<Duration>) {
        self.set_tick(after.map_or(NEVER, |after| self.h.0.clock.tick_after(after)));
    }

    #[inline]
    fn set_tick(&self, tick: u64) {
        self.source.deadline.set(tick);
        if tick < self.source.scheduled.get() {
            self.source.schedule(&self.h, tick);
        }
    }

    #[inline]
    pub(crate) fn expired(&self) -> bool {
        self.source.deadline.get() <= self.h.0.clock.tick()
    }
}

impl Source {
    fn schedule(&self, h: &Handle, tick: u64) {
        let mut wheel = h.0.wheel.borrow_mut();
        if let Some(old) = self.timer.take() {
            wheel.cancel(old);
        }
        self.scheduled.set(tick);
        self.timer.set(Some(wheel.insert(tick, TimerTarget::Source(self.token))));
    }

    /// The timer has fired. Returns whether the deadline has passed. It may have moved later since
    /// the timer was set.
    pub(crate) fn deadline_passed(&self, h: &Handle) -> bool {
        self.timer.set(None);
        self.scheduled.set(NEVER);
        let deadline = self.deadline.get();
        if deadline <= h.0.clock.tick() {
            return true;
        }
        if deadline != NEVER {
            self.schedule(h, deadline);
        }
        false
    }
}

impl Handle {
    /// Takes the state of a stealable connection back. None if it was not made stealable or another
    /// loop has stolen it.
    pub(crate) fn withdraw(&self, source: &Source) -> Option<Box<dyn Idle>> {
        let member = self.0.steal_group.as_ref().filter(|_| source.offered.get())?;
        member.stealable().withdraw(source.token)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let source = &self.source;
        if source.parked.get() {
            return;
        }
        let inner = &self.h.0;
        if let Some(timer) = source.timer.take() {
            inner.wheel.borrow_mut().cancel(timer);
        }
        for place in [&source.reader, &source.writer, &source.closer] {
            inner.waiters.forget(place.replace(Waiter::NONE));
        }
        if source.offered.get()
            && let Some(member) = &inner.steal_group
        {
            member.stealable().forget(source.token);
        }
        let mut backend = inner.backend.borrow_mut();
        match source.fd.has_others() {
            true => backend.detach(source),
            false => backend.remove(source),
        }
        drop(backend);
        let removed = inner.sources.borrow_mut().remove(source.token.key());
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parked_connection_is_small() {
        // The cost of a connection between requests: source, reference counts, slot and timer. Its
        // `Idle` value and the kernel's socket come on top.
        let source = size_of::<Source>() + 2 * size_of::<usize>();
        let slot = size_of::<(u32, Option<Rc<Source>>)>();
        let timer = 40;
        assert!(source + slot + timer <= 200, "{source} + {slot} + {timer}");
    }
}
