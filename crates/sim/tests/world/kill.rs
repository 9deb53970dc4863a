//! A worker's process is killed between any two steps that it takes: system calls, turns, words of
//! shared memory. Only its own connections end with it. Another worker takes its place.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, SocketAddrAny, SocketAddrUnix, getpeername, getsockname};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use weir_engine::sim::sockets_of;

use crate::course::{Course, What};

/// The numbers of steps within which a worker dies.
const STEPS: [usize; 4] = [1, 30, 300, 3_000];

impl Course {
    /// Plans the next kill.
    pub fn plan_kill(&mut self) {
        if let Some(after) = self.fate.kills.pop() {
            self.after(after, What::Kill);
        }
    }

    /// Condemns one of the workers to die within a few steps.
    pub fn kill(&mut self) {
        let firsts = self.generations.as_ref().map(|g| g.firsts()).unwrap_or_default();
        if firsts.is_empty() {
            return;
        }
        let first = self.dice.pick(&firsts);
        let Some(rows) = self.generations.as_ref().and_then(|g| g.tallies_with(first)) else {
            return;
        };
        let most = self.dice.pick(&STEPS);
        self.world.doom(rows, self.dice.below(most) as u64);
    }

    /// A worker was killed: its sockets are closed, and its clients know.
    pub fn look_for_dead(&mut self) {
        let Some(rows) = self.world.take_dead() else { return };
        weir_zone::dies(rows.start);
        close_all(&rows);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::HUP | PollFlags::RDHUP;
        for peer in self.peers.values_mut() {
            let Some(fd) = peer.client() else { continue };
            let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), gone)];
            if poll(&mut fds, Some(&now)).is_ok_and(|found| found > 0) {
                peer.is_bereft();
            }
        }
        self.callers.values_mut().for_each(|caller| caller.is_bereft());
        self.killed += 1;
        let delay = self.dice.pick(&[0, 100_000, 50_000_000]);
        let delay = self.dice.below(delay + 1) as u64;
        self.after(delay, What::Bury(rows.start));
        self.plan_kill();
    }

    /// The master hears of a killed worker.
    pub fn bury(&mut self, first: usize) {
        let Some(generations) = &mut self.generations else { return };
        if let Some(loops) = generations.successor(first) {
            self.world.expect(loops);
        }
        if !generations.bury(first) {
            return self.book.find("no worker takes the place of one that was killed".to_owned());
        }
        self.world.gather();
    }
}

/// Whether the socket was accepted at the server's address, or leads to a server behind.
fn is_the_servers(socket: &OwnedFd) -> bool {
    let begins = |name: Option<SocketAddrAny>, with: &str| {
        let name = name.and_then(|name| SocketAddrUnix::try_from(name).ok());
        let name = name.as_ref().and_then(|name| name.path_bytes()).unwrap_or_default();
        let name = String::from_utf8_lossy(name);
        name.rsplit('/').next().is_some_and(|name| name.starts_with(with))
    };
    begins(getsockname(socket).ok(), "s") || begins(getpeername(socket).ok().flatten(), "u")
}

/// Closes the sockets of these loops, as the kernel does when a process ends.
fn close_all(rows: &Range<usize>) {
    let this = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process");
    for fd in sockets_of(rows) {
        if let Ok(socket) = pidfd_getfd(&this, fd, PidfdGetfdFlags::empty())
            && is_the_servers(&socket)
        {
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        }
    }
}
