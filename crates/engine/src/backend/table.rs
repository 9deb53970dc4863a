//! Backends that hand all descriptors to the kernel at each wait.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{Backend, Events};
use crate::Arm;
use crate::ready::Ready;
use crate::source::Source;
use crate::token::Token;

/// The system call of such a backend.
pub(crate) trait TableCall: Default {
    /// An error for a descriptor that the call cannot take.
    fn fits(fd: BorrowedFd<'_>) -> io::Result<()> {
        let _ = fd;
        Ok(())
    }

    /// Waits for what is wanted in `table`.
    fn wait(
        &mut self,
        table: &Table,
        timeout: Option<Duration>,
        events: &mut Events,
    ) -> io::Result<()>;
}

/// A backend of a table and a system call.
#[derive(Default)]
pub(crate) struct TableBackend<C> {
    table: Table,
    call: C,
}

impl<C: TableCall> Backend for TableBackend<C> {
    fn add(&mut self, source: &Rc<Source>) -> io::Result<()> {
        C::fits(source.fd.as_fd())?;
        self.table.add(source);
        Ok(())
    }

    /// The waiting tasks are looked up at each wait.
    fn report_room(&mut self, _: &Source) -> io::Result<()> {
        Ok(())
    }

    fn remove(&mut self, source: &Source) {
        self.table.remove(source);
    }

    fn detach(&mut self, source: &Source) {
        self.table.remove(source);
    }

    fn watch(&mut self, fd: &Arc<OwnedFd>, token: Token, _: Arm) -> io::Result<()> {
        C::fits(fd.as_fd())?;
        self.table.watched.push((token, Arc::clone(fd)));
        Ok(())
    }

    fn unwatch(&mut self, _: &OwnedFd, token: Token) {
        self.table.watched.retain(|(t, _)| *t != token);
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<()> {
        self.call.wait(&self.table, timeout, events)
    }
}

/// The sockets and descriptors of a backend.
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
}
