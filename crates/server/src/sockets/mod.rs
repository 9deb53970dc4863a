//! The listening sockets. The master opens them and keeps them across reloads.
//!
//! A socket belongs to its address. A new configuration that listens on the same address keeps the
//! socket and its accept queue. Options that have changed are set again. For `multipath`, which is
//! another protocol, a new socket is opened.
//!
//! A UDP port has a socket for each loop, with or without `reuseport`. The kernel delivers all
//! datagrams of a client to the same socket. So a session belongs to its loop, and loops need not
//! communicate.
//!
//! A QUIC port may have one more socket before these. New connections arrive there, and all loops
//! receive from it as they accept from a TCP socket. A BPF program delivers the datagrams of a
//! connection to the socket of its loop.

mod holder;
mod lists;
mod open;
mod options;
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files of a test")]
mod tests;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::Timespec;
use weir_log::{Cause, Log, log};
use weir_sys::sockopt::{IdSteering, steer_by_id, unsteer};
use weir_sys::steering::SocketArray;
use weir_values::Address;
use weir_values::listen::Listen;

use self::open::{open, unlink};
use self::options::{configure, share_ports, steer_no_more, steer_to, widen};
use crate::listen::CycleShared;

/// How often a bind to a busy address is tried, and the pause in between.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// A listening address with its open sockets.
#[derive(Clone, Debug)]
pub struct ListenSockets {
    /// The settings of the address in the configuration.
    pub listen: Listen,
    /// One socket for all loops, or one for each loop in their order.
    pub copies: Vec<Arc<OwnedFd>>,
    /// The loop that the first socket is for, if each loop has its own.
    first: Option<usize>,
    /// The first socket is for new QUIC connections, which any loop may take.
    pub shares_first: bool,
    /// An eBPF program chooses among the sockets.
    pub steered: bool,
    /// The list of the program, and how many of the sockets are in it. A socket can be in one list
    /// only, so the list is kept.
    list: Option<(Arc<SocketArray>, usize)>,
    /// The sockets are opened while others of another protocol are open at the address.
    replaces: bool,
}

/// All listening addresses of a configuration, in the order of the sites' lists.
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    list: Vec<ListenSockets>,
}

/// Some socket could not be opened. The log has the reason.
#[derive(Debug)]
pub struct SocketsFailed;

/// Why sockets are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To serve.
    Serve,
    /// `-t`: to test the configuration. A busy address is no error, and no files remain.
    Test,
}

impl ListenSockets {
    fn new(listen: Listen, copies: Vec<Arc<OwnedFd>>, wanted: usize) -> ListenSockets {
        ListenSockets {
            listen,
            copies,
            first: (wanted > 1).then_some(0),
            shares_first: false,
            steered: false,
            list: None,
            replaces: false,
        }
    }

    /// Whether each loop has its own socket here.
    pub fn is_each_loops_own(&self) -> bool {
        self.first.is_some()
    }

    /// Whether any loop may accept the connections that arrive here.
    pub fn is_shared(&self) -> bool {
        self.first.is_none() && !self.listen.udp
    }

    /// The sockets among which an eBPF program chooses, if there is one.
    pub fn choices(&self) -> Option<&SocketArray> {
        self.list.as_ref().filter(|_| self.steered).map(|(list, _)| &**list)
    }

    /// The socket for new QUIC connections, if all loops share one.
    pub fn shared_quic(&self) -> Option<&Arc<OwnedFd>> {
        self.copies.first().filter(|_| self.shares_first)
    }

    /// The index of a loop's own socket.
    pub fn index(&self, row: usize) -> Option<usize> {
        Some(row.checked_sub(self.first.unwrap_or(0))? + usize::from(self.shares_first))
    }

    /// The socket from which a loop accepts or receives. A single datagram socket belongs to the
    /// first loop.
    pub fn copy(&self, row: usize) -> Option<&Arc<OwnedFd>> {
        match self.first {
            Some(_) => self.copies.get(self.index(row)?),
            None if self.listen.udp && row > 0 => None,
            None => self.copies.first(),
        }
    }
}

impl Sockets {
    /// Opens the sockets for `listens`; `copies` is how many an address needs. Takes over open
    /// sockets of `old`.
    pub fn open(
        listens: &[Listen],
        copies: impl Fn(&Listen) -> usize,
        old: &Sockets,
        purpose: Purpose,
        log: &Log,
    ) -> Result<Sockets, SocketsFailed> {
        let mut list: Vec<ListenSockets> = Vec::with_capacity(listens.len());
        for listen in listens {
            let wanted = copies(listen).max(1);
            // A socket keeps its protocol. For another one, new sockets are opened beside it.
            let (before, replaced) = match old.find(listen) {
                Some(other) if other.listen.multipath != listen.multipath => (None, Some(other)),
                before => (before, None),
            };
            if let Some(replaced) = replaced {
                share_ports(&replaced.listen, &replaced.copies, log);
            }
            let mut kept = before.map(|socket| socket.copies.clone()).unwrap_or_default();
            if wanted > 1 && kept.len() < wanted {
                share_ports(listen, &kept, log);
            }
            kept.truncate(wanted);
            let in_list = before.and_then(|socket| socket.list.clone());
            let in_list = in_list.map(|(list, n)| (list, n.min(kept.len())));
            list.push(ListenSockets {
                list: in_list,
                replaces: replaced.is_some(),
                ..ListenSockets::new(listen.clone(), kept, wanted)
            });
        }
        let mut sockets = Sockets { list };
        sockets.complete(&copies, purpose, log)?;
        if purpose == Purpose::Serve {
            sockets.configure(old, log);
        }
        Ok(sockets)
    }

    /// If `shares` holds for a QUIC port, makes its first socket the one for new connections.
    pub fn share_first_sockets(&mut self, shares: impl Fn(&Listen) -> bool) {
        for socket in self.list.iter_mut().filter(|socket| socket.listen.quic) {
            socket.shares_first = shares(&socket.listen) && socket.copies.len() > 2;
        }
    }

    /// Makes the kernel deliver datagrams of QUIC connections to the sockets of their loops.
    /// `steering` says how it finds the loop of a connection id, by the port's number.
    pub fn steer_by_ids(&self, steering: impl Fn(usize) -> io::Result<IdSteering>, log: &Log) {
        for (number, socket) in self.list.iter().enumerate().filter(|(_, s)| s.listen.quic) {
            let Some(first) = socket.copies.first() else { continue };
            let done = match socket.shares_first {
                true => {
                    widen(first.as_fd(), &socket.listen);
                    steering(number).and_then(|by| steer_by_id(first.as_fd(), by))
                }
                false => {
                    // An error means that the sockets were not steered.
                    let _ = unsteer(first.as_fd());
                    Ok(())
                }
            };
            if let Err(e) = done {
                let address = &socket.listen.address;
                let what = "setsockopt(SO_ATTACH_REUSEPORT_CBPF)";
                log!(log, Alert, None, "{what} {address} failed, ignored {}", Cause(&e));
            }
        }
    }

    /// The open sockets at the address of `listen`.
    fn find(&self, listen: &Listen) -> Option<&ListenSockets> {
        self.list.iter().find(|socket| socket.listen.place() == listen.place())
    }

    /// Sockets that another program left, by their addresses.
    pub fn inherited(left: Vec<OwnedFd>, log: &Log) -> Sockets {
        let mut sockets = Sockets::default();
        for fd in left {
            match open::settings(&fd) {
                Ok(listen) => sockets.add(listen, fd),
                Err(e) => {
                    let cause = Cause(&e.into()).to_string();
                    log!(
                        log,
                        Crit,
                        None,
                        "getsockname() of the inherited socket #{} failed {cause}",
                        fd.as_raw_fd()
                    );
                }
            }
        }
        sockets
    }

    fn add(&mut self, listen: Listen, fd: OwnedFd) {
        match self.list.iter_mut().find(|socket| socket.listen.place() == listen.place()) {
            Some(socket) => socket.copies.push(Arc::new(fd)),
            None => self.list.push(ListenSockets::new(listen, vec![Arc::new(fd)], 1)),
        }
    }

    /// All addresses, in the order of the sites' lists.
    pub fn iter(&self) -> impl Iterator<Item = &ListenSockets> {
        self.list.iter()
    }

    /// Closes the sockets that belong to loops of other processes. A queue must not outlive the
    /// loops that accept from it.
    pub fn keep_own(&mut self, rows: Range<usize>) {
        for socket in self.list.iter_mut().filter(|socket| socket.first == Some(0)) {
            let others = usize::from(socket.shares_first);
            socket.copies.truncate(others + rows.end);
            socket.copies.drain(others..(others + rows.start).min(socket.copies.len()));
            socket.first = Some(rows.start);
        }
    }

    /// These sockets, and those of older configurations at other addresses. The first of `older`
    /// that has an address counts.
    pub fn and<'a>(&self, older: impl Iterator<Item = &'a Sockets>) -> Sockets {
        let mut all = self.clone();
        for socket in older.flat_map(Sockets::iter) {
            if all.find(&socket.listen).is_none() {
                all.list.push(socket.clone());
            }
        }
        all
    }

    /// Leaves the sockets to configurations that are used from now on, the newest first. Removes
    /// the files of Unix-domain sockets that none of them listens on. Their descriptors close when
    /// this value is dropped. If the newest has fewer sockets for an address, nothing more arrives
    /// at the others. `CycleShared` tells their loops to accept what is there.
    pub fn leave_to(&self, used: &[&Sockets], cycle_shared: &CycleShared, log: &Log) {
        for (number, socket) in self.list.iter().enumerate() {
            let next: Vec<_> = used.iter().filter_map(|all| all.find(&socket.listen)).collect();
            let is_used = |own: &&Arc<OwnedFd>| {
                next.iter().any(|next| next.copies.iter().any(|copy| Arc::ptr_eq(copy, own)))
            };
            let kept = socket.copies.iter().take_while(is_used).count();
            cycle_shared.leave(number, kept);
            match (used.first().and_then(|all| all.find(&socket.listen)), &socket.listen.address) {
                (_, Address::Unix(path)) if next.is_empty() => {
                    log!(log, Warn, None, "deleting socket {}", path.display());
                    unlink(path, log);
                }
                // Datagrams of one client belong together, and a random choice would separate them.
                // Loops that leave a UDP port close their sockets soon.
                (Some(_), _) if socket.listen.udp => {}
                // The eBPF program chooses among the present loops.
                (Some(newest), _) if newest.steered => {}
                (Some(newest), _) if kept < socket.copies.len() && newest.copies.len() == kept => {
                    steer_to(newest, kept, log);
                }
                (Some(newest), _) if socket.steered => steer_no_more(newest),
                _ => {}
            }
        }
    }

    /// Closes the descriptors and keeps the addresses.
    pub fn close(&mut self) {
        self.list.iter_mut().for_each(|socket| socket.copies.clear());
    }

    /// Removes the files of all Unix-domain sockets, since the server ends.
    pub fn unlink(&self, log: &Log) {
        for socket in &self.list {
            if let Address::Unix(path) = &socket.listen.address {
                unlink(path, log);
            }
        }
    }

    /// Opens missing sockets. Tries several times, since a predecessor may still be closing its
    /// own.
    fn complete(
        &mut self,
        copies: &impl Fn(&Listen) -> usize,
        purpose: Purpose,
        log: &Log,
    ) -> Result<(), SocketsFailed> {
        for round in 0..TRIES {
            let mut busy = false;
            for socket in &mut self.list {
                let wanted = copies(&socket.listen).max(1);
                while socket.copies.len() < wanted {
                    let (listen, number) = (&socket.listen, socket.copies.len());
                    let first = number == 0;
                    // If another server has the port, an error is reported, as with TCP. Not if the
                    // configuration allows sharing.
                    let alone = listen.udp && !listen.reuseport && first;
                    let share = if listen.udp { !alone } else { wanted > 1 || socket.replaces };
                    let attempt = (purpose, round > 0);
                    let mut opened = open((listen, number), share, attempt, log)?;
                    // No other server has the port. Linux shares a port that was bound alone if it
                    // is told to later, gVisor does not. A reload may want more sockets.
                    if alone && purpose == Purpose::Serve && opened.take().is_some() {
                        opened = open((listen, number), true, attempt, log)?;
                    }
                    match opened {
                        Some(fd) => socket.copies.push(Arc::new(fd)),
                        None => {
                            busy |= purpose == Purpose::Serve;
                            break;
                        }
                    }
                }
            }
            if !busy {
                return Ok(());
            }
            log!(log, Notice, None, "try again to bind() after 500ms");
            pause();
        }
        log!(log, Emerg, None, "still could not bind()");
        Err(SocketsFailed)
    }

    /// Sets the options that may have changed. A failure is logged, and the socket serves without
    /// the option.
    fn configure(&self, old: &Sockets, log: &Log) {
        for socket in &self.list {
            let before = old.find(&socket.listen);
            for fd in &socket.copies {
                let before =
                    before.filter(|old| old.copies.iter().any(|copy| Arc::ptr_eq(copy, fd)));
                configure(fd.as_fd(), &socket.listen, before.map(|old| &old.listen), log);
            }
        }
    }
}

/// The master serves no requests, so it may sleep.
fn pause() {
    let time = Timespec { tv_sec: 0, tv_nsec: PAUSE.as_nanos() as i64 };
    let _ = rustix::thread::nanosleep(&time);
}
