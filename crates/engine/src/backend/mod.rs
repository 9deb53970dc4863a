//! How a loop waits. Chosen when the loop is made; every backend keeps the same laws.

pub(crate) mod epoll;
pub(crate) mod poll;
pub(crate) mod select;
pub(crate) mod uring;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::Arm;
use crate::seam;
use crate::slots::Key;
use crate::source::{Ready, Source};

/// The backends that a loop can be made with; nginx: the `use` directive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendKind {
    /// `epoll(7)`, edge-triggered: the default.
    #[default]
    Epoll,
    /// `poll(2)`: for comparison.
    Poll,
    /// `select(2)`: for comparison, and descriptors below 1024 only.
    Select,
    /// `io_uring(7)`: where the kernel has it, see [`BackendKind::check`].
    IoUring,
}

impl BackendKind {
    /// An error where the kernel has no such backend, or forbids it.
    pub fn check(self) -> io::Result<()> {
        make(self, 1).map(drop)
    }
}

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

pub(crate) fn make(kind: BackendKind, events: usize) -> io::Result<Box<dyn Backend>> {
    let real: Box<dyn Backend> = match kind {
        BackendKind::Epoll => Box::new(epoll::Epoll::new(events)?),
        BackendKind::Poll => Box::new(poll::Poll::new()),
        BackendKind::Select => Box::new(select::Select::new()),
        BackendKind::IoUring => Box::new(uring::Uring::new(events)?),
    };
    Ok(seam::backend(real))
}

/// What kind of thing an event is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Stream = 0,
    Listener = 1,
    Foreign = 2,
    Own = 3,
}

/// An event's 64 bits of user data: kind, generation, slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) u64);

impl Token {
    /// The mailbox's notifier.
    pub(crate) const NOTIFIER: Token = Token::own(0);
    /// The timer of the loop's steal group.
    pub(crate) const STALL_TIMER: Token = Token::own(1);

    const fn own(which: u64) -> Token {
        Token((TokenKind::Own as u64) << 62 | which)
    }

    pub(crate) fn new(kind: TokenKind, key: Key) -> Self {
        Token((kind as u64) << 62 | u64::from(key.generation) << 32 | u64::from(key.index))
    }

    #[inline]
    pub(crate) fn kind(self) -> TokenKind {
        match self.0 >> 62 {
            0 => TokenKind::Stream,
            1 => TokenKind::Listener,
            2 => TokenKind::Foreign,
            _ => TokenKind::Own,
        }
    }

    #[inline]
    pub(crate) fn key(self) -> Key {
        Key { index: self.0 as u32, generation: (self.0 >> 32) as u32 & ((1 << 30) - 1) }
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

/// The sockets and descriptors of a backend that hands all of them to the kernel at each wait.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) sources: Vec<Option<Rc<Source>>>,
    pub(crate) watched: Vec<(Token, Arc<OwnedFd>)>,
}

/// What a wait is to watch one descriptor for.
pub(crate) struct Wanted<'a> {
    pub(crate) token: Token,
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Whether the peer closes its side; not once that is known, since it would be reported at every
    /// wait.
    pub(crate) close: bool,
}

impl Table {
    /// Everything in it: foreign descriptors are to be read, sockets as tasks wait for them.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = Wanted<'_>> {
        let watched = self.watched.iter().map(|(token, fd)| {
            let (token, fd) = (*token, fd.as_fd());
            Wanted { token, fd, read: true, write: false, close: false }
        });
        let sources = self.sources.iter().flatten().map(|source| Wanted {
            token: source.token,
            fd: source.fd.as_fd(),
            read: source.wants_read(),
            write: source.wants_write(),
            close: !source.is(Ready::GONE),
        });
        watched.chain(sources)
    }

    pub(crate) fn add(&mut self, source: &Rc<Source>) {
        let index = source.token.key().index as usize;
        if index >= self.sources.len() {
            self.sources.resize(index + 1, None);
        }
        self.sources[index] = Some(Rc::clone(source));
    }

    pub(crate) fn remove(&mut self, source: &Source) {
        if let Some(slot) = self.sources.get_mut(source.token.key().index as usize) {
            *slot = None;
        }
    }

    pub(crate) fn watch(&mut self, fd: &Arc<OwnedFd>, token: Token) {
        self.watched.push((token, Arc::clone(fd)));
    }

    pub(crate) fn unwatch(&mut self, token: Token) {
        self.watched.retain(|(t, _)| *t != token);
    }
}
