//! A table that programs of the kernel read, and a program for each address: `accept_balance reuseport_load`.

use std::io;
use std::os::fd::AsFd;

use weir_balance::{LoadTable, layout};
use weir_log::{Cause, Log, log};
use weir_sys::beginning::beginning;
use weir_sys::shared::SharedWords;
use weir_sys::steering::{Choice, Layout, table};

use crate::sockets::Sockets;

/// The programs, by the numbers of their addresses.
#[derive(Debug, Default)]
pub(super) struct Steered(Vec<(usize, Choice)>);

impl Steered {
    /// The words of a table for so many loops, of which programs know if the sockets are in lists.
    pub(super) fn table(loops: usize, sockets: &Sockets) -> io::Result<(SharedWords, Steered)> {
        let lists = sockets.iter().enumerate();
        let mut lists = lists.filter_map(|(n, s)| Some((n, s.choices()?))).peekable();
        let words = LoadTable::words(loops);
        if lists.peek().is_none() {
            return Ok((SharedWords::new(words)?, Steered::default()));
        }
        let (layout, rows) = (for_programs(), u32::try_from(loops).unwrap_or(u32::MAX));
        let (words, array) = table(words, &layout, beginning().elapsed())?;
        let choice = |list| Choice::new(array.as_fd(), &layout, rows, list);
        let choices = lists.map(|(number, list)| Ok((number, choice(list)?)));
        Ok((words, Steered(choices.collect::<io::Result<_>>()?)))
    }

    /// The kernel goes by this table from now on.
    pub(super) fn attach(&self, sockets: &Sockets, log: &Log) {
        for (number, choice) in &self.0 {
            let Some(socket) = sockets.iter().nth(*number) else { continue };
            let Some(first) = socket.copies.first() else { continue };
            if let Err(e) = choice.attach(first.as_fd()) {
                let (address, cause) = (&socket.listen.address, Cause(&e));
                let what = "setsockopt(SO_ATTACH_REUSEPORT_EBPF)";
                log!(log, Alert, None, "{what} {address} failed, ignored {cause}");
            }
        }
    }
}

/// The same, for the room that knows no policies.
fn for_programs() -> Layout {
    let of = layout();
    Layout {
        base: of.base,
        rows: of.rows,
        row: of.row,
        state: of.state,
        state_bits: of.state_bits,
        asleep: of.asleep,
        awake: of.awake,
        woken: of.woken,
        open: of.open,
        inflight: of.inflight,
        handed: of.handed,
        taken: of.taken,
    }
}
