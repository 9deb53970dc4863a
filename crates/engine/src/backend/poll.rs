//! `poll(2)`: every descriptor is handed over at each wait, asked for what somebody waits for.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
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
        for (token, fd) in &self.table.watched {
            self.set.push(fd.as_raw_fd(), Polled::READ);
            self.tokens.push(*token);
        }
        for source in self.table.sources.iter().flatten() {
            let interest = interest(source);
            if let Some(interest) = interest {
                self.set.push(source.fd.as_fd().as_raw_fd(), interest);
                self.tokens.push(source.token);
            }
        }
    }
}

/// What to ask about `source`; nothing at all when the answer is known and nobody waits, since
/// hang-ups and errors are reported unasked, at every wait.
fn interest(source: &Source) -> Option<Polled> {
    let mut interest = Polled::NONE;
    if source.wants_read() {
        interest = interest.and(Polled::READ);
    }
    if source.wants_write() {
        interest = interest.and(Polled::WRITE);
    }
    if !source.is(Ready::GONE) {
        return Some(interest.and(Polled::RDHUP));
    }
    (interest != Polled::NONE).then_some(interest)
}

impl Backend for Poll {
    fn add(&mut self, source: &Rc<Source>) -> io::Result<()> {
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
