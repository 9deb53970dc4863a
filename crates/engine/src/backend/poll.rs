//! `poll(2)`. Each wait passes the descriptors that tasks wait for.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use weir_sys::poll::{PollSet, Polled};

use super::Events;
use super::table::{Table, TableBackend, TableCall};
use crate::ready::Ready;
use crate::token::Token;

pub(crate) type Poll = TableBackend<PollCall>;

#[derive(Default)]
pub(crate) struct PollCall {
    set: PollSet,
    tokens: Vec<Token>,
}

impl PollCall {
    fn fill(&mut self, table: &Table) {
        self.set.clear();
        self.tokens.clear();
        for wanted in table.wanted() {
            let asked = [
                (wanted.read, Polled::READ),
                (wanted.write, Polled::WRITE),
                (wanted.close, Polled::RDHUP),
            ];
            let asked = asked.into_iter().filter(|(is, _)| *is);
            let interest = asked.fold(Polled::NONE, |sum, (_, one)| sum.and(one));
            // Left out otherwise: poll reports hang-ups and errors of each descriptor in its set,
            // unasked.
            if interest != Polled::NONE {
                self.set.push(wanted.fd.as_raw_fd(), interest);
                self.tokens.push(wanted.token);
            }
        }
    }
}

impl TableCall for PollCall {
    fn wait(
        &mut self,
        table: &Table,
        timeout: Option<Duration>,
        events: &mut Events,
    ) -> io::Result<()> {
        self.fill(table);
        self.set.wait(timeout)?;
        for (token, polled) in self.tokens.iter().zip(self.set.results()) {
            if polled != Polled::NONE {
                events.push(*token, Ready::from_bits(polled.bits()));
            }
        }
        Ok(())
    }
}
