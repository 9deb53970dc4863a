//! `select(2)`: as poll, for descriptors below 1024. It cannot report that the peer closed its
//! side while data wait; the loop looks itself (see `Inner::deliver`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_sys::select::SelectSet;

use super::{Backend, Events, Table, Token};
use crate::Arm;
use crate::source::{Ready, Source};

#[derive(Default)]
pub(crate) struct Select {
    table: Table,
    set: SelectSet,
}

impl Select {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn fill(&mut self) {
        self.set.clear();
        for (_, fd) in &self.table.watched {
            self.set.want_read(fd.as_fd());
        }
        for source in self.table.sources.iter().flatten() {
            if source.wants_read() {
                self.set.want_read(source.fd.as_fd());
            }
            if source.wants_write() {
                self.set.want_write(source.fd.as_fd());
            }
        }
    }
}

impl Backend for Select {
    fn add(&mut self, source: &Rc<Source>) -> io::Result<()> {
        SelectSet::fits(source.fd.as_fd())?;
        self.table.add(source);
        Ok(())
    }

    /// Who waits is looked up at each wait.
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
        SelectSet::fits(fd.as_fd())?;
        self.table.watch(fd, token);
        Ok(())
    }

    fn unwatch(&mut self, _: &OwnedFd, token: Token) {
        self.table.unwatch(token);
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<()> {
        self.fill();
        if self.set.wait(timeout)? == 0 {
            return Ok(());
        }
        for (token, fd) in &self.table.watched {
            if self.set.readable(fd.as_fd()) {
                events.push(*token, Ready::READ);
            }
        }
        for source in self.table.sources.iter().flatten() {
            let read = if self.set.readable(source.fd.as_fd()) { Ready::READ } else { Ready::NONE };
            let write =
                if self.set.writable(source.fd.as_fd()) { Ready::WRITE } else { Ready::NONE };
            if read != write || read != Ready::NONE {
                events.push(source.token, read.and(write));
            }
        }
        Ok(())
    }
}
