//! `accept_balance reuseport_load`: a load table that eBPF programs read, and a program for each address.

use std::io;
use std::os::fd::AsFd;

use weir_balance::{Fit, LoadTable, words};
use weir_log::{Cause, Log, log};
use weir_sys::beginning::beginning;
use weir_sys::shared::SharedWords;
use weir_sys::steering::{Choice, Layout, table};

use crate::sockets::Sockets;

/// The programs, with the numbers of their addresses.
#[derive(Debug, Default)]
pub(super) struct Steered(Vec<(usize, Choice)>);

impl Steered {
    /// A table for `loops` loops, and a program for each address whose sockets are in a list.
    pub(super) fn table(loops: usize, sockets: &Sockets) -> io::Result<(SharedWords, Steered)> {
        let lists = sockets.iter().enumerate();
        let mut lists = lists.filter_map(|(n, s)| Some((n, s.choices()?))).peekable();
        let size = LoadTable::words(loops);
        if lists.peek().is_none() {
            return Ok((SharedWords::new(size)?, Steered::default()));
        }
        let (layout, rows) = (layout(), u32::try_from(loops).unwrap_or(u32::MAX));
        let (words, array) = table(size, &layout, beginning().elapsed())?;
        let choice = |list| Choice::new(array.as_fd(), &layout, rows, list);
        let choices = lists.map(|(number, list)| Ok((number, choice(list)?)));
        Ok((words, Steered(choices.collect::<io::Result<_>>()?)))
    }

    /// Makes the kernel choose sockets by this table from now on.
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

/// The layout of the table for the crate `sys`, which knows no policies.
fn layout() -> Layout {
    Layout {
        base: words::BASE,
        rows: words::ROW,
        row: words::ROW,
        state: words::STATE,
        state_bits: words::STATE_BITS,
        asleep: Fit::ASLEEP,
        awake: Fit::AWAKE,
        woken: (words::WOKEN, Fit::SILENT),
        open: words::OPEN,
        inflight: words::INFLIGHT,
        handed: words::HANDED,
        taken: words::TAKEN,
    }
}
