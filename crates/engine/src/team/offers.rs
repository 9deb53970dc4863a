//! The connections of a loop that wait at a request boundary, for whoever takes them out.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll;
use rustix::io::fcntl_dupfd_cloexec;
use weir_sys::descriptor::replace;

use crate::Idle;
use crate::backend::Token;

/// By the slots of the loop's sources. Who holds the lock and finds a value owns the connection once it has taken it out.
#[derive(Default)]
pub(crate) struct Offers(Mutex<Vec<Offer>>);

#[derive(Default)]
struct Offer {
    /// Whose it is, as long as its source is in the loop: the number stays open as long as this is here.
    of: Option<(Token, Arc<OwnedFd>)>,
    idle: Option<Box<dyn Idle>>,
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

    /// What `look` makes of the entry of `token`, if there is one.
    fn with<T>(&self, token: Token, look: impl FnOnce(&mut Offer) -> Option<T>) -> Option<T> {
        let mut offers = self.lock();
        let offer = offers.get_mut(token.key().index as usize)?;
        if offer.is_of(token) { look(offer) } else { None }
    }

    /// The connection waits at a boundary; its loop is told of what comes.
    pub(crate) fn put(&self, token: Token, fd: &Arc<OwnedFd>, idle: Box<dyn Idle>) {
        let index = token.key().index as usize;
        let mut offers = self.lock();
        if index >= offers.len() {
            offers.resize_with(index + 1, Offer::default);
        }
        if let Some(offer) = offers.get_mut(index) {
            if !offer.is_of(token) {
                offer.of = Some((token, Arc::clone(fd)));
            }
            offer.idle = Some(idle);
        }
    }

    /// The owner goes on with it; none if another loop has taken it.
    pub(crate) fn withdraw(&self, token: Token) -> Option<Box<dyn Idle>> {
        self.with(token, |offer| offer.idle.take())
    }

    /// Whether it is there, and what `which` says of it.
    pub(crate) fn any(&self, token: Token, which: impl FnOnce(&dyn Idle) -> bool) -> bool {
        self.with(token, |offer| offer.idle.as_deref().map(which)).unwrap_or(false)
    }

    /// The source leaves its loop.
    pub(crate) fn forget(&self, token: Token) {
        let offer = self.with(token, |offer| Some(std::mem::take(offer)));
        drop(offer);
    }

    /// The loop ends.
    pub(crate) fn clear(&self) {
        let offers = std::mem::take(&mut *self.lock());
        drop(offers);
    }

    /// Takes a connection for another loop, out of `instance`. None if it is not at a boundary, or if descriptors have
    /// run out. The source's number is a dummy's from now on.
    pub(crate) fn take(
        &self,
        token: Token,
        instance: &OwnedFd,
        dummy: &OwnedFd,
    ) -> Option<(OwnedFd, Box<dyn Idle>)> {
        let taken = self.with(token, |offer| {
            let (_, fd) = offer.of.as_ref()?;
            offer.idle.as_ref()?;
            let moved = fcntl_dupfd_cloexec(fd, 0).ok()?;
            let dummy = fcntl_dupfd_cloexec(dummy, 0).ok()?;
            epoll::delete(instance, fd).ok()?;
            // Should it fail, the socket stays open until its first owner hears of all this, and no more than that.
            let _ = replace(fd.as_fd(), dummy);
            let idle = offer.idle.take()?;
            Some((moved, idle, std::mem::take(offer)))
        });
        let (moved, idle, emptied) = taken?;
        drop(emptied);
        Some((moved, idle))
    }
}
