//! The loop's side of a socket: its descriptor, what is known ready, which tasks wait for it.

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

/// Whether a task rests on a stream: see [`crate::Stream::rest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    No,
    /// Listed among the parked sources.
    Yes,
    /// Stolen from the list, for this reason.
    Over(Wake),
}

/// A socket's descriptor.
pub(crate) enum Fd {
    /// This loop's alone.
    Own(OwnedFd),
    /// Another loop of the process may take the socket over: see [`crate::Stream::shared`].
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
    /// The socket lives on when this one is dropped.
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
    /// A world in the kernel's place knows of it so long.
    _known: seam::Known,
    pub(crate) token: Token,
    pub(crate) ready: Cell<Ready>,
    pub(crate) parked: Cell<bool>,
    /// The task that has the stream rests, as in the list of parked sources.
    pub(crate) rest: Cell<Rest>,
    /// The backend reports it: see [`Registered::report`].
    pub(crate) reported: Cell<bool>,
    /// The backend reports room to write, too.
    pub(crate) reports_room: Cell<bool>,
    pub(crate) reader: Cell<Waiter>,
    pub(crate) writer: Cell<Waiter>,
    /// Waits for the peer to go away, whether or not it sent more before.
    pub(crate) closer: Cell<Waiter>,
    /// When pending operations give up, in ticks.
    pub(crate) deadline: Cell<u64>,
    /// The tick of the one timer in the wheel; later deadlines do not move it.
    scheduled: Cell<u64>,
    timer: Cell<Option<TimerId>>,
    /// What it is while it is parked, unless that is offered to other loops.
    pub(crate) idle: Cell<Option<Box<dyn Idle>>>,
    /// It was offered to other loops, and may be now.
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
            reader: Cell::new(Waiter::NOBODY),
            writer: Cell::new(Waiter::NOBODY),
            closer: Cell::new(Waiter::NOBODY),
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

    /// For level-triggered backends: does a task wait for an event that is not known yet?
    pub(crate) fn wants_read(&self) -> bool {
        let waits = self.parked.get() || self.reader.get().is_set() || self.closer.get().is_set();
        waits && !self.is(Ready::READ)
    }

    /// As [`Source::wants_read`].
    pub(crate) fn wants_write(&self) -> bool {
        self.writer.get().is_set() && !self.is(Ready::WRITE)
    }
}

/// The parked sources, oldest first, linked through themselves.
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

/// A source in its loop; dropped, it leaves the loop and closes, unless it is parked.
pub(crate) struct Registered {
    pub(crate) h: Handle,
    pub(crate) source: Rc<Source>,
}

impl Registered {
    /// Lets go of the descriptor without closing it.
    pub(crate) fn into_fd(self) -> Option<OwnedFd> {
        let source = Rc::clone(&self.source);
        self.h.0.backend.borrow_mut().detach(&source);
        drop(self);
        Rc::into_inner(source).and_then(|source| source.fd.into_inner())
    }

    /// From now on the backend reports the socket, if it did not before. What was only supposed of it is forgotten;
    /// the backend's first report tells what is there already.
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

    /// As [`Registered::report`], without a result: a socket that the backend refuses counts as broken, which the next receive
    /// reports.
    #[inline]
    pub(crate) fn report_or_break(&self) {
        if self.report().is_err() {
            self.source.mark(Ready::ERR);
        }
    }

    /// Stealable the connection to other loops; its value comes back if there are none.
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

    /// The timer fired: has the deadline come? It may have moved on since the timer was set.
    pub(crate) fn deadline_came(&self, h: &Handle) -> bool {
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
    /// Takes back what was offered; none if it was not, or if another loop has taken it.
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
            inner.waiters.forget(place.replace(Waiter::NOBODY));
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
        // The source with its reference counts, its slot, its timer: what a connection costs
        // between requests, without its owner's `Idle` value and the kernel's socket.
        let source = size_of::<Source>() + 2 * size_of::<usize>();
        let slot = size_of::<(u32, Option<Rc<Source>>)>();
        let timer = 40;
        assert!(source + slot + timer <= 200, "{source} + {slot} + {timer}");
    }
}
