//! `poll(2)`: every descriptor is handed over at each wait, for the events that tasks wait for.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_sys::poll::{PollSet, Polled};

use super::{Backend, Events, Table, Token};
use crate::Arm;
use crate::source::{Ready, Source};

#[derive(Default)]
pub(crate) struct Poll {
    table: Table,
    set: PollSet,
    tokens: Vec<Token>,
}

impl Poll {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn fill(&mut self) {
        self.set.clear();
        self.tokens.clear();
        for wanted in self.table.wanted() {
            let asked = [
                (wanted.read, Polled::READ),
                (wanted.write, Polled::WRITE),
                (wanted.close, Polled::RDHUP),
            ];
            let asked = asked.into_iter().filter(|(is, _)| *is);
            let interest = asked.fold(Polled::NONE, |sum, (_, one)| sum.and(one));
            // Not even to be told of hang-ups and errors, which come unasked.
            if interest != Polled::NONE {
                self.set.push(wanted.fd.as_raw_fd(), interest);
                self.tokens.push(wanted.token);
            }
        }
    }
}

impl Backend for Poll {
    fn add(&mut self, source: &Rc<Source>) -> io::Result<()> {
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
        self.table.watch(fd, token);
        Ok(())
    }

    fn unwatch(&mut self, _: &OwnedFd, token: Token) {
        self.table.unwatch(token);
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Events) -> io::Result<()> {
        self.fill();
        self.set.wait(timeout)?;
        for (token, polled) in self.tokens.iter().zip(self.set.results()) {
            if polled != Polled::NONE {
                events.push(*token, Ready::from_bits(polled.bits()));
            }
        }
        Ok(())
    }
}
