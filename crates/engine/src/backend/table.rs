//! Backends that pass all their descriptors to the kernel at each wait.

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

/// The system call of a [`TableBackend`].
pub(crate) trait TableCall: Default {
    /// An error if the call cannot take this descriptor.
    fn fits(fd: BorrowedFd<'_>) -> io::Result<()> {
        let _ = fd;
        Ok(())
    }

    /// Waits for the events that `table` wants.
    fn wait(
        &mut self,
        table: &Table,
        timeout: Option<Duration>,
        events: &mut Events,
    ) -> io::Result<()>;
}

/// A backend that consists of a table and a system call.
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

    /// Nothing to do: each wait looks up the tasks that wait.
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

/// The sockets and watched descriptors of a backend.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) sources: Vec<Option<Rc<Source>>>,
    pub(crate) watched: Vec<(Token, Arc<OwnedFd>)>,
}

/// The events that a wait watches one descriptor for.
pub(crate) struct Wanted<'a> {
    pub(crate) token: Token,
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// Whether to report that the peer closes its side. False once that is known, since each wait
    /// would report it again.
    pub(crate) close: bool,
}

impl Table {
    /// All descriptors. Watched ones are to be read, sockets as tasks wait for them.
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
