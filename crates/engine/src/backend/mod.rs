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

/// Waits for sockets. One that reports readiness, as these do, leaves the operations to the
/// caller; a source's flags remember what was reported.
pub(crate) trait Backend {
    /// A socket of a stream or datagram comes; reported until [`Backend::remove`]. Room to write
    /// is reported at once if it is not known to be there.
    fn add(&mut self, source: &Rc<Source>) -> io::Result<()>;

    /// A task waits to write to a socket, for the first time since it came with
    /// [`Ready::WRITE`]. Most sockets are never full, so their room need not be reported.
    fn report_room(&mut self, source: &Source) -> io::Result<()>;

    /// A socket is about to close.
    fn remove(&mut self, source: &Source);

    /// A socket leaves this loop and lives on.
    fn detach(&mut self, source: &Source);

    /// A listening socket or a foreign descriptor: reported as long as it is readable.
    fn watch(&mut self, fd: &Arc<OwnedFd>, token: Token, arm: Arm) -> io::Result<()>;

    /// Ends [`Backend::watch`].
    fn unwatch(&mut self, fd: &OwnedFd, token: Token);

    /// Waits until something is ready, at most `timeout`; a signal ends the wait early.
    fn wait(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<()>;

    /// The following waits report no more events than this at once, where that leaves the others in the kernel's list.
    fn limit(&mut self, events: usize) {
        let _ = events;
    }

    /// The epoll instance that sockets are in, where others of the process may look into its list.
    fn instance(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Readable when [`Backend::wait`] would report something; none if there is no such descriptor.
    #[cfg(feature = "sim")]
    fn news(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What one wait reported; accept events and foreign descriptors apart, since they come first.
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
