//! `select(2)`, for descriptors below 1024. Unlike poll, it does not report that the peer has
//! closed its side while data wait. The loop looks for that itself (see `Inner::deliver`).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use weir_sys::select::SelectSet;

use super::Events;
use super::table::{Table, TableBackend, TableCall};
use crate::ready::Ready;

pub(crate) type Select = TableBackend<SelectCall>;

#[derive(Default)]
pub(crate) struct SelectCall {
    set: SelectSet,
}

impl SelectCall {
    fn fill(&mut self, table: &Table) {
        self.set.clear();
        for wanted in table.wanted() {
            if wanted.read {
                self.set.want_read(wanted.fd);
            }
            if wanted.write {
                self.set.want_write(wanted.fd);
            }
        }
    }
}

impl TableCall for SelectCall {
    fn fits(fd: BorrowedFd<'_>) -> io::Result<()> {
        SelectSet::fits(fd)
    }

    fn wait(
        &mut self,
        table: &Table,
        timeout: Option<Duration>,
        events: &mut Events,
    ) -> io::Result<()> {
        self.fill(table);
        if self.set.wait(timeout)? == 0 {
            return Ok(());
        }
        for wanted in table.wanted() {
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
