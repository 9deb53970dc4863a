//! The lists of sockets for eBPF programs.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use weir_log::{Cause, Log, log};
use weir_sys::steering::SocketArray;

use super::{ListenSockets, Sockets};

impl Sockets {
    /// Makes the kernel choose by the loops' load. Without the privilege, the sockets work as with
    /// `reuseport`.
    pub fn enlist(&mut self, log: &Log) {
        let each = self.list.iter_mut().filter(|socket| socket.is_each_loops_own());
        for socket in each.filter(|socket| !socket.listen.udp) {
            match enlist(socket) {
                Ok(()) => socket.steered = true,
                Err(e) => {
                    let text = "\"accept_balance reuseport_load\" is plain reuseport";
                    log!(log, Warn, None, "{text} for {} {}", socket.listen.address, Cause(&e));
                }
            }
        }
    }
}

/// Adds sockets to the list of their address that are not in it yet.
fn enlist(socket: &mut ListenSockets) -> io::Result<()> {
    let copies = socket.copies.iter().map(AsFd::as_fd);
    let (list, listed) = match &mut socket.list {
        Some(list) => list,
        list => list.insert((Arc::new(SocketArray::new(&[])?), 0)),
    };
    let mut numbered = (0u32..).zip(copies).skip(*listed);
    numbered.try_for_each(|(number, copy)| {
        list.put(number, copy)?;
        *listed += 1;
        Ok(())
    })
}
