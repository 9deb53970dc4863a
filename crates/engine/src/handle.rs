//! A handle of a loop, for its tasks and its driver.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_sys::sockopt::set_defer_accept;

use crate::callbacks::Watch;
use crate::inner::Inner;
use crate::outside::Listener;
use crate::seam::{self, Call};
use crate::steal::GroupMember;
use crate::token::{Token, TokenKind};
use crate::{Arm, Files, ListenerKey, Remote, StealCounts, Timekeeper, Wall, WatchKey};

/// A handle of this thread's loop. Cheap to clone.
#[derive(Clone)]
pub struct Handle(pub(crate) Rc<Inner>);

/// Time.
impl Handle {
    /// The time of the turn, read once after each wait.
    #[inline]
    pub fn now(&self) -> Instant {
        self.0.clock.now()
    }

    /// The turn's time, or the coarse clock's if that is later. For times that users see, such as
    /// those in logs.
    pub fn now_or_later(&self) -> Instant {
        self.0.clock.moment()
    }

    /// When the last handler ended, which is later than [`Handle::now`]. For callers between
    /// handlers.
    pub fn lately(&self) -> Instant {
        self.0.clock.instant(self.0.laps.latest())
    }

    /// The time at this moment. For the few callers that cannot use the turn's time.
    pub fn this_moment(&self) -> Instant {
        crate::clock::read()
    }

    /// The turn's time of day.
    pub fn wall(&self) -> Wall {
        self.0.clock.wall()
    }

    /// Fills a buffer with random bytes.
    ///
    /// # Errors
    ///
    /// The system has no source of randomness.
    pub fn fill_random(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        crate::seam::fill_random(bytes)
    }

    /// How long the event of the running handler waited after the wait returned.
    pub fn blocked(&self) -> Duration {
        self.0.laps.blocked()
    }

    /// Calls `keeper` with the time that each handler waited and took.
    pub fn keep_time(&self, keeper: Rc<dyn Timekeeper>) {
        self.0.laps.set_keeper(Some(keeper));
    }
}

/// Tasks.
impl Handle {
    /// Starts a task. A panic in it ends that task alone: see [`Handle::on_panic`].
    pub fn spawn(&self, f: impl Future<Output = ()> + 'static) {
        self.0.tasks.spawn(|| f);
    }

    /// As [`Handle::spawn`], for a large future. It is made in its box and never moved.
    pub fn spawn_large<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F) {
        self.0.tasks.spawn(make);
    }

    /// As [`Handle::spawn_large`], but the task runs after all tasks that this turn's events wake.
    /// For accepted connections: accept events are handled first, but events of older connections
    /// may have waited longer.
    pub fn spawn_behind<F: Future<Output = ()> + 'static>(&self, make: impl FnOnce() -> F) {
        self.0.tasks.spawn_behind(make);
    }

    /// The number of tasks that have not ended.
    pub fn tasks(&self) -> usize {
        self.0.tasks.live()
    }

    /// A sender of work to this loop, for any thread.
    pub fn remote(&self) -> Remote {
        Remote(Arc::clone(&self.0.mailbox))
    }

    /// Whether other loops of the process may steal connections of this one
    /// ([`crate::Options::steal_group`]).
    pub fn has_steal_group(&self) -> bool {
        self.0.steal_group.is_some()
    }

    /// Whether a turn of this loop lasted long lately, and other loops may steal connections. An
    /// idle connection should then become stealable at once.
    pub fn has_stalled_lately(&self) -> bool {
        self.0.steal_group.as_ref().is_some_and(GroupMember::has_stalled_lately)
    }

    /// Whether [`Handle::has_stalled_lately`] holds and events of older connections wait in this
    /// turn. A connection that is accepted now may wait behind them for long.
    pub fn others_come_first(&self) -> bool {
        self.0.steal_group.as_ref().is_some_and(GroupMember::others_come_first)
    }

    /// Whether there are so many tasks that most of a task's memory is not in the processor's
    /// caches. Data that a task needs soon is then worth a prefetch.
    pub fn is_crowded(&self) -> bool {
        self.0.tasks.is_crowded()
    }

    /// What this loop has done for the other loops of its steal group.
    pub fn steal_counts(&self) -> StealCounts {
        self.0.steal_group.as_ref().map(GroupMember::steal_counts).unwrap_or_default()
    }

    /// Ends [`crate::Loop::run`] after this turn.
    pub fn stop(&self) {
        self.0.stopping.set(true);
    }

    /// Runs `run` so that a panic in it does not end the loop. The panic is counted and reported.
    pub fn guard(&self, run: impl FnOnce()) {
        self.0.guard(run);
    }

    /// The number of panics that were caught, in tasks and callbacks.
    pub fn panics(&self) -> u64 {
        self.0.panics.get()
    }

    /// Calls `hook` with the message of each panic that is caught.
    pub fn on_panic(&self, hook: impl Fn(&str) + 'static) {
        *self.0.panic_hook.borrow_mut() = Some(Rc::new(hook));
    }
}

/// Buffers and files.
impl Handle {
    /// An empty buffer with room for at least `capacity` bytes.
    pub fn take_buf(&self, capacity: usize) -> Vec<u8> {
        self.0.buffers.borrow_mut().take(capacity)
    }

    /// File operations.
    pub fn files(&self) -> &Files {
        &self.0.files
    }

    /// Gives a buffer back to the loop for reuse.
    pub fn give_buf(&self, buf: Vec<u8>) {
        self.0.buffers.borrow_mut().give(buf);
    }

    /// Frees memory that the loop keeps for future tasks and connections. Called after a burst of
    /// them.
    pub fn free_spare(&self) {
        let inner = &self.0;
        inner.tasks.free_spare();
        inner.buffers.borrow_mut().clear();
        inner.warm.take();
        inner.sources.borrow_mut().shrink();
        inner.wheel.borrow_mut().shrink();
        if let Some(member) = &inner.steal_group {
            member.stealable().shrink();
        }
    }
}

/// Listening sockets.
impl Handle {
    /// Adds a non-blocking listening socket to the loop, disarmed.
    pub fn add_listener(&self, fd: Arc<OwnedFd>) -> ListenerKey {
        ListenerKey(self.0.listeners.borrow_mut().insert(Listener { fd, armed: None }))
    }

    /// Registers the loop for connections of `l`. Does nothing if it is registered in this mode.
    pub fn arm(&self, l: ListenerKey, mode: Arm) -> io::Result<()> {
        let mut listeners = self.0.listeners.borrow_mut();
        let Some(listener) = listeners.get_mut(l.0) else { return Ok(()) };
        if listener.armed == Some(mode) {
            return Ok(());
        }
        let mut backend = self.0.backend.borrow_mut();
        let token = Token::new(TokenKind::Listener, l.0);
        if listener.armed.take().is_some() {
            backend.unwatch(&listener.fd, token);
        }
        seam::at(Call::Watch)?;
        backend.watch(&listener.fd, token, mode)?;
        listener.armed = Some(mode);
        Ok(())
    }

    /// Ends the registration for connections of `l`.
    pub fn disarm(&self, l: ListenerKey) {
        if let Some(listener) = self.0.listeners.borrow_mut().get_mut(l.0)
            && listener.armed.take().is_some()
        {
            let token = Token::new(TokenKind::Listener, l.0);
            self.0.backend.borrow_mut().unwatch(&listener.fd, token);
        }
    }

    /// Whether the loop is registered for connections of `l`.
    pub fn is_armed(&self, l: ListenerKey) -> bool {
        self.0.listeners.borrow().get(l.0).is_some_and(|listener| listener.armed.is_some())
    }

    /// Removes and adds an armed listener, which puts this loop at the end of the kernel's wait
    /// list.
    pub fn rearm(&self, l: ListenerKey) -> io::Result<()> {
        let armed = self.0.listeners.borrow().get(l.0).and_then(|listener| listener.armed);
        let Some(mode) = armed else { return Ok(()) };
        self.disarm(l);
        self.arm(l, mode)
    }

    /// Sets `TCP_DEFER_ACCEPT`: whether the kernel holds a new connection of `l` back until its
    /// first bytes arrive, for a second at most.
    pub fn defer(&self, l: ListenerKey, on: bool) -> io::Result<()> {
        match self.0.listeners.borrow().get(l.0) {
            Some(listener) => set_defer_accept(listener.fd.as_fd(), i32::from(on)),
            None => Ok(()),
        }
    }

    /// Removes a listening socket, which closes with its last reference.
    pub fn remove_listener(&self, l: ListenerKey) {
        self.disarm(l);
        let listener = self.0.listeners.borrow_mut().remove(l.0);
        drop(listener);
    }
}

/// Foreign descriptors: signal pipes, channels, a nested epoll.
impl Handle {
    /// Calls `call` in each turn in which `fd` is readable, until [`Handle::remove_watch`].
    pub fn add_watch(
        &self,
        fd: Arc<OwnedFd>,
        call: impl FnMut(&Handle) + 'static,
    ) -> io::Result<WatchKey> {
        let watch = Watch { fd: fd.clone(), call: Some(Box::new(call)) };
        let key = self.0.watches.borrow_mut().insert(watch);
        let token = Token::new(TokenKind::Foreign, key);
        if let Err(e) = self.0.backend.borrow_mut().watch(&fd, token, Arm::Shared) {
            let watch = self.0.watches.borrow_mut().remove(key);
            drop(watch);
            return Err(e);
        }
        Ok(WatchKey(key))
    }

    /// Ends a watch. A callback may end its own.
    pub fn remove_watch(&self, watch: WatchKey) {
        let removed = self.0.watches.borrow_mut().remove(watch.0);
        if let Some(removed) = &removed {
            let token = Token::new(TokenKind::Foreign, watch.0);
            self.0.backend.borrow_mut().unwatch(&removed.fd, token);
        }
    }
}
