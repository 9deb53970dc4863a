//! What the loops of one cycle share to spread connections: made by the master before it forks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use weir_balance::{LoadTable, Shape};
use weir_log::Log;
use weir_sys::beginning::beginning;
use weir_sys::shared::SharedWords;

use super::line::Line;
use super::steered::Steered;
use crate::sockets::Sockets;

/// The load table of a cycle, with the ways in which its loops reach each other.
#[derive(Debug)]
pub struct Commons {
    words: SharedWords,
    base: Instant,
    /// The programs of the kernel that read the table, if the policy has any.
    steered: Steered,
    /// A bell per loop: it wakes its loop from any process.
    bells: Vec<Arc<OwnedFd>>,
    /// For each address, how many of its sockets later cycles do without; all is none.
    left: SharedWords,
    /// The epoll instance of the policy that has one for all.
    pool: Option<Arc<OwnedFd>>,
    /// A line per loop, for the policy whose acceptor hands over.
    lines: Vec<Line>,
}

impl Commons {
    /// For `loops` loops that accept from `sockets`.
    pub fn new(loops: usize, shape: Shape, sockets: &Sockets) -> io::Result<Commons> {
        let bell = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            io::Result::Ok(Arc::new(eventfd(0, flags)?))
        };
        let pool = (shape == Shape::SharedEpoll).then(|| pool(sockets)).transpose()?;
        let lines = if shape == Shape::AcceptorOne { loops } else { 0 };
        let (words, steered) = Steered::table(loops, sockets)?;
        Ok(Commons {
            words,
            steered,
            base: beginning(),
            bells: (0..loops).map(|_| bell()).collect::<io::Result<_>>()?,
            left: SharedWords::new(sockets.iter().count().max(1))?,
            pool,
            lines: (0..lines).map(|_| Line::new()).collect::<io::Result<_>>()?,
        })
    }

    /// The table; every worker of the cycle sees the same.
    pub fn table(&self) -> LoadTable<'_> {
        LoadTable::over(&self.words, self.base)
    }

    /// The loops of this table are those that connections come to.
    pub fn steer(&self, sockets: &Sockets, log: &Log) {
        self.steered.attach(sockets, log);
    }

    /// Wakes loop `i`.
    pub fn ring(&self, i: usize) {
        if let Some(bell) = self.bells.get(i) {
            // It fails only when the counter is full, and then the bell rings already.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// The others look for connections that the loops of these rows were told of and may not take.
    pub fn pass_baton(&self, from: std::ops::Range<usize>) {
        let (now, table) = (Instant::now(), self.table());
        table.suspect(now, from.clone());
        table.pass_baton_to_all(now, from.clone()).chain(from).for_each(|i| self.ring(i));
    }

    /// The bell of loop `i`, which its loop silences.
    pub fn bell(&self, i: usize) -> Option<&Arc<OwnedFd>> {
        self.bells.get(i)
    }

    /// The epoll instance for all, if the policy has one.
    pub(super) fn pool(&self) -> Option<&Arc<OwnedFd>> {
        self.pool.as_ref()
    }

    /// The line to loop `i`, if the policy has an acceptor that hands over.
    pub(super) fn line(&self, i: usize) -> Option<&Line> {
        self.lines.get(i)
    }

    /// Notes that only the first `kept` sockets of an address go on in the next cycle.
    pub fn leave(&self, number: usize, kept: usize) {
        if let Some(word) = self.left.get(number) {
            word.store(kept as u64 + 1, SeqCst);
        }
    }

    /// Whether nobody accepts from this socket any more when the cycle's loops have ended, and
    /// whether others of its address go on.
    pub(super) fn is_left(&self, number: usize, copy: usize) -> (bool, bool) {
        match self.left.get(number).map_or(0, |word| word.load(SeqCst)) {
            0 => (false, true),
            kept => (copy as u64 + 1 >= kept, kept > 1),
        }
    }
}

/// One epoll instance with every shared socket in it, under the number of its address.
fn pool(sockets: &Sockets) -> io::Result<Arc<OwnedFd>> {
    let pool = epoll::create(CreateFlags::CLOEXEC)?;
    for (number, socket) in sockets.iter().enumerate().filter(|(_, s)| s.is_shared()) {
        for fd in &socket.copies {
            let data = EventData::new_u64(number as u64);
            epoll::add(&pool, fd.as_fd(), data, EventFlags::IN)?;
        }
    }
    Ok(Arc::new(pool))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_left_from_the_end() {
        let sockets = Sockets::default();
        let commons = Commons::new(2, Shape::SocketEach, &sockets).unwrap();
        assert_eq!(commons.is_left(0, 1), (false, true));
        commons.leave(0, 1);
        assert_eq!(commons.is_left(0, 0), (false, true));
        assert_eq!(commons.is_left(0, 1), (true, true));
        commons.leave(0, 0);
        assert_eq!(commons.is_left(0, 0), (true, false));
    }

    #[test]
    fn who_is_rung_has_a_bell_that_rings() {
        let commons = Commons::new(1, Shape::SocketEach, &Sockets::default()).unwrap();
        let bell = commons.bell(0).unwrap();
        let rings = || {
            let mut fds = [rustix::event::PollFd::new(bell, rustix::event::PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
        };
        assert!(!rings());
        commons.ring(0);
        commons.ring(0);
        assert!(rings());
        commons.ring(7);
    }
}
