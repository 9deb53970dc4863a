//! The connections of a loop that wait at a request boundary, for whoever takes them out.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;
use rustix::io::fcntl_dupfd_cloexec;
use weir_sys::descriptor::replace;

use crate::backend::Token;
use crate::{Idle, Joined};

/// By the slots of the loop's sources. Who holds the lock and finds a value owns the connection once it has taken it out.
#[derive(Default)]
pub(crate) struct Offers(Mutex<Vec<Offer>>);

#[derive(Default)]
struct Offer {
    /// Whose it is, as long as its source is in the loop: the number stays open as long as this is here.
    of: Option<(Token, Arc<OwnedFd>)>,
    value: Option<Value>,
}

enum Value {
    Idle(Box<dyn Idle>),
    /// It goes with this other one.
    Joined(Box<dyn Joined>, Token),
    /// It is the other one of this.
    With(Token),
}

/// What was taken over: sockets and their value.
pub(crate) enum Taken {
    Idle(OwnedFd, Box<dyn Idle>),
    Joined([OwnedFd; 2], Box<dyn Joined>),
}

impl Offer {
    fn is_of(&self, token: Token) -> bool {
        self.of.as_ref().is_some_and(|(of, _)| *of == token)
    }
}

impl Offers {
    fn lock(&self) -> MutexGuard<'_, Vec<Offer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection waits at a boundary; its loop is told of what comes.
    pub(crate) fn put(&self, token: Token, fd: &Arc<OwnedFd>, idle: Box<dyn Idle>) {
        lay(&mut self.lock(), token, fd, Value::Idle(idle));
    }

    /// Two connections with nothing on its way between them; what is told is told of the first.
    pub(crate) fn put_joined(&self, of: [(Token, &Arc<OwnedFd>); 2], joined: Box<dyn Joined>) {
        let [(first, fd), (second, other)] = of;
        let mut offers = self.lock();
        lay(&mut offers, first, fd, Value::Joined(joined, second));
        lay(&mut offers, second, other, Value::With(first));
    }

    /// The owner goes on with it; none if another loop has taken it.
    pub(crate) fn withdraw(&self, token: Token) -> Option<Box<dyn Idle>> {
        let mut offers = self.lock();
        match entry(&mut offers, token)?.value.take() {
            Some(Value::Idle(idle)) => Some(idle),
            _ => None,
        }
    }

    /// As [`Offers::withdraw`], by the first of both.
    pub(crate) fn withdraw_joined(&self, first: Token) -> Option<Box<dyn Joined>> {
        let mut offers = self.lock();
        let Some(Value::Joined(joined, second)) = entry(&mut offers, first)?.value.take() else {
            return None;
        };
        if let Some(other) = entry(&mut offers, second) {
            other.value = None;
        }
        Some(joined)
    }

    /// Whether it is there, and what `which` says of it.
    pub(crate) fn any(&self, token: Token, which: impl FnOnce(&dyn Idle) -> bool) -> bool {
        let mut offers = self.lock();
        match entry(&mut offers, token).and_then(|offer| offer.value.as_ref()) {
            Some(Value::Idle(idle)) => which(&**idle),
            _ => false,
        }
    }

    /// The source leaves its loop.
    pub(crate) fn forget(&self, token: Token) {
        let offer = entry(&mut self.lock(), token).map(std::mem::take);
        drop(offer);
    }

    /// The loop ends.
    pub(crate) fn clear(&self) {
        let offers = std::mem::take(&mut *self.lock());
        drop(offers);
    }

    /// Takes what has this socket for another loop, out of `instance`, and says by which token it is known. None if it is not at
    /// a boundary, or if descriptors have run out. The sockets' numbers are a dummy's from now on.
    pub(crate) fn take(
        &self,
        token: Token,
        instance: &OwnedFd,
        dummy: &OwnedFd,
    ) -> Option<(Token, Taken)> {
        let mut offers = self.lock();
        let first = match entry(&mut offers, token)?.value {
            Some(Value::With(first)) => first,
            _ => token,
        };
        let second = match entry(&mut offers, first)?.value.as_ref()? {
            Value::Idle(_) => None,
            Value::Joined(_, second) => Some(*second),
            Value::With(_) => return None,
        };
        let mut moving = Vec::with_capacity(2);
        for token in [Some(first), second].into_iter().flatten() {
            moving.push(Moving::prepare(entry(&mut offers, token)?, dummy)?);
        }
        let mut moved = moving.into_iter().map(|socket| socket.leave(instance));
        let fd = moved.next()?;
        let emptied = second.and_then(|second| entry(&mut offers, second)).map(std::mem::take);
        let offer = entry(&mut offers, first).map(std::mem::take)?;
        let taken = match offer.value? {
            Value::Idle(idle) => Taken::Idle(fd, idle),
            Value::Joined(joined, _) => Taken::Joined([fd, moved.next()?], joined),
            Value::With(_) => return None,
        };
        drop(offers);
        drop(emptied);
        Some((first, taken))
    }
}

fn entry(offers: &mut [Offer], token: Token) -> Option<&mut Offer> {
    offers.get_mut(token.key().index as usize).filter(|offer| offer.is_of(token))
}

fn lay(offers: &mut Vec<Offer>, token: Token, fd: &Arc<OwnedFd>, value: Value) {
    let index = token.key().index as usize;
    if index >= offers.len() {
        offers.resize_with(index + 1, Offer::default);
    }
    if let Some(offer) = offers.get_mut(index) {
        if !offer.is_of(token) {
            offer.of = Some((token, Arc::clone(fd)));
        }
        offer.value = Some(value);
    }
}

/// A socket that can leave: what may fail has been done.
struct Moving {
    before: Arc<OwnedFd>,
    moved: OwnedFd,
    dummy: OwnedFd,
}

impl Moving {
    fn prepare(offer: &Offer, dummy: &OwnedFd) -> Option<Moving> {
        let (_, fd) = offer.of.as_ref()?;
        let moved = fcntl_dupfd_cloexec(fd, 0).ok()?;
        let dummy = fcntl_dupfd_cloexec(dummy, 0).ok()?;
        Some(Moving { before: Arc::clone(fd), moved, dummy })
    }

    fn leave(self, instance: &OwnedFd) -> OwnedFd {
        let Moving { before, moved, dummy } = self;
        // Should it fail, the first owner hears of what it does not have any more, and ignores it.
        let _ = epoll::delete(instance, &before);
        // Should this, the socket stays open until the first owner hears of all this, and no more than that.
        let _ = replace(before.as_fd(), dummy);
        moved
    }
}
