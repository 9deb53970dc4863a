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
        for wanted in self.table.wanted() {
            if wanted.read {
                self.set.want_read(wanted.fd);
            }
            if wanted.write {
                self.set.want_write(wanted.fd);
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
        for wanted in self.table.wanted() {
            let found = [
                (self.set.readable(wanted.fd), Ready::READ),
                (self.set.writable(wanted.fd), Ready::WRITE),
            ];
            let found = found.into_iter().filter(|(is, _)| *is);
            let ready = found.fold(Ready::NONE, |sum, (_, one)| sum.and(one));
            if ready != Ready::NONE {
                events.push(wanted.token, ready);
            }
        }
        Ok(())
    }
}
