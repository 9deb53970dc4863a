//! Kills a worker's process between any two of its steps: system calls, turns, words of shared
//! memory. Only its own connections end, and another worker replaces it.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, SocketAddrAny, SocketAddrUnix, getpeername, getsockname};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use weir_engine::sim::sockets_of;

use crate::course::{Course, CourseEvent};

/// A worker is killed within this many steps.
const STEPS: [usize; 4] = [1, 30, 300, 3_000];

impl Course {
    /// Plans the next kill.
    pub fn plan_kill(&mut self) {
        if let Some(after) = self.plan.kills.pop() {
            self.after(after, CourseEvent::Kill);
        }
    }

    /// Picks a worker to be killed within a few steps.
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
        self.world.kill_after(rows, self.dice.below(most) as u64);
    }

    /// Handles a killed worker: closes its sockets, so that its clients notice.
    pub fn handle_killed(&mut self) {
        let Some(rows) = self.world.take_dead() else { return };
        weir_zone::dies(rows.start);
        close_all(&rows);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::HUP | PollFlags::RDHUP;
        for peer in self.peers.values_mut() {
            let Some(fd) = peer.client() else { continue };
            let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), gone)];
            if poll(&mut fds, Some(&now)).is_ok_and(|found| found > 0) {
                peer.worker_killed();
            }
        }
        self.quic_clients.values_mut().for_each(|quic_client| quic_client.worker_killed());
        self.killed += 1;
        let delay = self.dice.pick(&[0, 100_000, 50_000_000]);
        let delay = self.dice.below(delay + 1) as u64;
        self.after(delay, CourseEvent::NoticeKill(rows.start));
        self.plan_kill();
    }

    /// Lets the master notice a killed worker.
    pub fn notice_killed(&mut self, first: usize) {
        let Some(generations) = &mut self.generations else { return };
        if let Some(loops) = generations.successor(first) {
            self.world.expect(loops);
        }
        if !generations.bury(first) {
            return self
                .records
                .report("no worker takes the place of one that was killed".to_owned());
        }
        self.world.wait_for_start();
    }
}

/// Whether the socket was accepted at the server's address, or is connected to an upstream server.
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
