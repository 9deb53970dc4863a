//! How a loop waits: epoll, poll, select or io_uring. `use` chooses one when the loop is made; all of them pass the same tests.

pub(crate) mod epoll;
pub(crate) mod kind;
pub(crate) mod poll;
pub(crate) mod select;
#[cfg(feature = "sim")]
mod simulated;
mod table;
pub(crate) mod uring;

use std::io;
#[cfg(feature = "sim")]
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::Arm;
use crate::ready::Ready;
use crate::source::Source;
use crate::token::{Token, TokenKind};

/// Waits for events on sockets. Readiness backends, such as those here, leave receiving and sending
/// to the caller. A source's [`Ready`] flags remember what was reported.
pub(crate) trait Backend {
    /// Adds the socket of a stream or of datagrams, which is reported until [`Backend::remove`]. If
    /// the source has no [`Ready::WRITE`], room to write is reported from the start.
    fn add(&mut self, source: &Rc<Source>) -> io::Result<()>;

    /// Reports room to write, too. Called when a task waits to write for the first time, if the
    /// source was added with [`Ready::WRITE`]. Most sockets are never full, so their room need not
    /// be reported.
    fn report_room(&mut self, source: &Source) -> io::Result<()>;

    /// Removes a socket that is about to close.
    fn remove(&mut self, source: &Source);

    /// Removes a socket that stays open, for another loop or owner.
    fn detach(&mut self, source: &Source);

    /// Adds a listening socket or a foreign descriptor, which is reported as long as it is readable
    /// (level-triggered).
    fn watch(&mut self, fd: &Arc<OwnedFd>, token: Token, arm: Arm) -> io::Result<()>;

    /// Removes what [`Backend::watch`] added.
    fn unwatch(&mut self, fd: &OwnedFd, token: Token);

    /// Waits until something is ready, at most `timeout`; a signal ends the wait early.
    fn wait(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<()>;

    /// Later waits report at most this many events. Backends ignore it if the events that they do
    /// not report would not stay in the kernel's ready list.
    fn limit(&mut self, events: usize) {
        let _ = events;
    }

    /// The loop's epoll instance, if other loops of the process may fetch events from it.
    fn instance(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// A descriptor that is readable when [`Backend::wait`] would report something. None if there
    /// is no such descriptor.
    #[cfg(feature = "sim")]
    fn news(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The events of one wait. Those of listening sockets and foreign descriptors are kept apart, since
/// they are handled first.
#[derive(Default)]
pub(crate) struct Events {
    pub(crate) watched: Vec<Token>,
    pub(crate) streams: Vec<(Token, Ready)>,
}

impl Events {
    #[inline]
    pub(crate) fn push(&mut self, token: Token, ready: Ready) {
        if token.kind() == TokenKind::Stream {
            self.streams.push((token, ready));
        } else {
            self.watched.push(token);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.watched.clear();
        self.streams.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.watched.len() + self.streams.len()
    }
}
