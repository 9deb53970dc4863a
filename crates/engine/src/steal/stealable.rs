//! The connections of a loop that wait at a request boundary, and that other loops may steal.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;
use rustix::io::fcntl_dupfd_cloexec;
use weir_sys::descriptor::replace;

use crate::callbacks::{Idle, Joined};
use crate::token::Token;

/// A table by the slots of the loop's sources. A loop that takes a value out, under the lock, owns the connection.
#[derive(Default)]
pub(crate) struct Stealable(Mutex<Vec<Entry>>);

#[derive(Default)]
struct Entry {
    /// The source, as long as it is in the loop. Keeps the descriptor number open.
    of: Option<(Token, Arc<OwnedFd>)>,
    value: Option<Value>,
}

enum Value {
    Idle(Box<dyn Idle>),
    /// The first of two connections, with the token of the second.
    Joined(Box<dyn Joined>, Token),
    /// The second of two connections, with the token of the first.
    JoinedTo(Token),
}

/// What was stolen: sockets and their value.
pub(crate) enum Stolen {
    Idle(OwnedFd, Box<dyn Idle>),
    Joined([OwnedFd; 2], Box<dyn Joined>),
}

impl Entry {
    fn is_of(&self, token: Token) -> bool {
        self.of.as_ref().is_some_and(|(of, _)| *of == token)
    }
}

impl Stealable {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a connection at a request boundary stealable. Its loop still gets its events.
    pub(crate) fn put(&self, token: Token, fd: &Arc<OwnedFd>, idle: Box<dyn Idle>) {
        put_value(&mut self.lock(), token, fd, Value::Idle(idle));
    }

    /// Makes two connections stealable that have nothing in flight between them. Messages name the first.
    pub(crate) fn put_joined(&self, of: [(Token, &Arc<OwnedFd>); 2], joined: Box<dyn Joined>) {
        let [(first, fd), (second, other)] = of;
        let mut stealable = self.lock();
        put_value(&mut stealable, first, fd, Value::Joined(joined, second));
        put_value(&mut stealable, second, other, Value::JoinedTo(first));
    }

    /// The owner takes its connection back. None if another loop has stolen it.
    pub(crate) fn withdraw(&self, token: Token) -> Option<Box<dyn Idle>> {
        let mut stealable = self.lock();
        match entry(&mut stealable, token)?.value.take() {
            Some(Value::Idle(idle)) => Some(idle),
            _ => None,
        }
    }

    /// As [`Stealable::withdraw`], for two connections, by the token of the first.
    pub(crate) fn withdraw_joined(&self, first: Token) -> Option<Box<dyn Joined>> {
        let mut stealable = self.lock();
        let Some(Value::Joined(joined, second)) = entry(&mut stealable, first)?.value.take() else {
            return None;
        };
        if let Some(other) = entry(&mut stealable, second) {
            other.value = None;
        }
        Some(joined)
    }

    /// Whether the connection is here and `which` holds for it.
    pub(crate) fn any(&self, token: Token, which: impl FnOnce(&dyn Idle) -> bool) -> bool {
        let mut stealable = self.lock();
        match entry(&mut stealable, token).and_then(|offer| offer.value.as_ref()) {
            Some(Value::Idle(idle)) => which(&**idle),
            _ => false,
        }
    }

    /// The source leaves its loop.
    pub(crate) fn forget(&self, token: Token) {
        let offer = entry(&mut self.lock(), token).map(std::mem::take);
        drop(offer);
    }

    /// Gives back the memory of sources at the end of the table that have left.
    pub(crate) fn shrink(&self) {
        let mut stealable = self.lock();
        let used = stealable.iter().rposition(|e| e.of.is_some()).map_or(0, |last| last + 1);
        stealable.truncate(used);
        stealable.shrink_to_fit();
    }

    /// The loop ends.
    pub(crate) fn clear(&self) {
        let stealable = std::mem::take(&mut *self.lock());
        drop(stealable);
    }

    /// Steals the connection with this token out of `instance`; returns the token by which its owner knows it. None if it
    /// is not at a boundary, or if descriptors have run out. The old descriptor numbers then belong to a dummy.
    pub(crate) fn steal(
        &self,
        token: Token,
        instance: &OwnedFd,
        dummy: &OwnedFd,
    ) -> Option<(Token, Stolen)> {
        let mut stealable = self.lock();
        let first = match entry(&mut stealable, token)?.value {
            Some(Value::JoinedTo(first)) => first,
            _ => token,
        };
        let second = match entry(&mut stealable, first)?.value.as_ref()? {
            Value::Idle(_) => None,
            Value::Joined(_, second) => Some(*second),
            Value::JoinedTo(_) => return None,
        };
        let mut moving = Vec::with_capacity(2);
        for token in [Some(first), second].into_iter().flatten() {
            moving.push(Moving::prepare(entry(&mut stealable, token)?, dummy)?);
        }
        let mut moved = moving.into_iter().map(|socket| socket.leave(instance));
        let fd = moved.next()?;
        let emptied = second.and_then(|second| entry(&mut stealable, second)).map(std::mem::take);
        let offer = entry(&mut stealable, first).map(std::mem::take)?;
        let taken = match offer.value? {
            Value::Idle(idle) => Stolen::Idle(fd, idle),
            Value::Joined(joined, _) => Stolen::Joined([fd, moved.next()?], joined),
            Value::JoinedTo(_) => return None,
        };
        drop(stealable);
        drop(emptied);
        Some((first, taken))
    }
}

fn entry(stealable: &mut [Entry], token: Token) -> Option<&mut Entry> {
    stealable.get_mut(token.key().index as usize).filter(|offer| offer.is_of(token))
}

fn put_value(stealable: &mut Vec<Entry>, token: Token, fd: &Arc<OwnedFd>, value: Value) {
    let index = token.key().index as usize;
    if index >= stealable.len() {
        stealable.resize_with(index + 1, Entry::default);
    }
    if let Some(offer) = stealable.get_mut(index) {
        if !offer.is_of(token) {
            offer.of = Some((token, Arc::clone(fd)));
        }
        offer.value = Some(value);
    }
}

/// A socket that is ready to move. All that may fail has been done.
struct Moving {
    before: Arc<OwnedFd>,
    moved: OwnedFd,
    dummy: OwnedFd,
}

impl Moving {
    fn prepare(offer: &Entry, dummy: &OwnedFd) -> Option<Moving> {
        let (_, fd) = offer.of.as_ref()?;
        let moved = fcntl_dupfd_cloexec(fd, 0).ok()?;
        let dummy = fcntl_dupfd_cloexec(dummy, 0).ok()?;
        Some(Moving { before: Arc::clone(fd), moved, dummy })
    }

    fn leave(self, instance: &OwnedFd) -> OwnedFd {
        let Moving { before, moved, dummy } = self;
        // If this fails, the previous owner may still receive an event for the socket. It ignores events for sockets
        // that it no longer owns.
        let _ = epoll::delete(instance, &before);
        // If this fails, the socket stays open until the previous owner reads its mail.
        let _ = replace(before.as_fd(), dummy);
        moved
    }
}
