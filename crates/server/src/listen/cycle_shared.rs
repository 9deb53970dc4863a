//! The memory and descriptors by which the loops of a cycle spread connections. The master makes
//! them before it forks.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use weir_balance::{LoadTable, SocketLayout};
use weir_log::Log;
use weir_sys::beginning::beginning;
use weir_sys::shared::SharedWords;

use super::handover::Handover;
use super::steered::Steered;
use crate::sockets::Sockets;

/// The load table of a cycle, and the descriptors that connect its loops.
#[derive(Debug)]
pub struct CycleShared {
    words: SharedWords,
    base: Instant,
    /// The eBPF programs that read the table, if the policy has any.
    steered: Steered,
    /// An eventfd for each loop. A write to it wakes the loop from any process.
    notifiers: Vec<Arc<OwnedFd>>,
    /// By address: the number of sockets that the next cycle keeps, plus 1. 0 while it keeps all.
    left: SharedWords,
    /// The number of declines, then by address: 1 if loops decline to accept from it.
    declined: SharedWords,
    /// The shared epoll instance, if the policy has one.
    pool: Option<Arc<OwnedFd>>,
    /// A handover socket for each loop, if the policy has an acceptor.
    handovers: Vec<Handover>,
}

impl CycleShared {
    /// For `loops` loops that accept from `sockets`.
    pub fn new(loops: usize, shape: SocketLayout, sockets: &Sockets) -> io::Result<CycleShared> {
        let notifier = || {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            io::Result::Ok(Arc::new(eventfd(0, flags)?))
        };
        let pool = (shape == SocketLayout::SharedEpoll).then(|| pool(sockets)).transpose()?;
        let handovers = if shape == SocketLayout::AcceptorOne { loops } else { 0 };
        let (words, steered) = Steered::table(loops, sockets)?;
        Ok(CycleShared {
            words,
            steered,
            base: beginning(),
            notifiers: (0..loops).map(|_| notifier()).collect::<io::Result<_>>()?,
            left: SharedWords::new(sockets.iter().count().max(1))?,
            declined: SharedWords::new(sockets.iter().count().max(1) + 1)?,
            pool,
            handovers: (0..handovers).map(|_| Handover::new()).collect::<io::Result<_>>()?,
        })
    }

    /// The load table, which is the same for all workers of the cycle.
    pub fn table(&self) -> LoadTable<'_> {
        LoadTable::over(&self.words, self.base)
    }

    /// Makes the kernel assign new connections by this table from now on.
    pub fn steer(&self, sockets: &Sockets, log: &Log) {
        self.steered.attach(sockets, log);
    }

    /// Wakes loop `i`.
    pub fn notify(&self, i: usize) {
        if let Some(notifier) = self.notifiers.get(i) {
            // A write fails only if the counter is full. The loop wakes up then, too.
            let _ = rustix::io::write(notifier, &1u64.to_ne_bytes());
        }
    }

    /// The kernel may have woken only these loops for a connection that they will not accept. Gives
    /// recheck tokens to all others.
    pub fn pass_recheck(&self, from: std::ops::Range<usize>) {
        let (now, table) = (Instant::now(), self.table());
        table.suspect(now, from.clone());
        table.pass_recheck_to_all(now, from.clone()).chain(from).for_each(|i| self.notify(i));
    }

    /// The notifier of loop `i`, which only that loop reads.
    pub fn notifier(&self, i: usize) -> Option<&Arc<OwnedFd>> {
        self.notifiers.get(i)
    }

    /// The shared epoll instance, if the policy has one.
    pub(super) fn pool(&self) -> Option<&Arc<OwnedFd>> {
        self.pool.as_ref()
    }

    /// The handover socket of loop `i`, if the policy has an acceptor.
    pub(super) fn handover(&self, i: usize) -> Option<&Handover> {
        self.handovers.get(i)
    }

    /// Notes that the next cycle keeps only the first `kept` sockets of an address.
    pub fn leave(&self, number: usize, kept: usize) {
        if let Some(word) = self.left.get(number) {
            word.store(kept as u64 + 1, SeqCst);
        }
    }

    /// Notes that a loop declines to accept from this socket, and leaves it to the others.
    pub(super) fn decline(&self, number: usize) {
        if let (Some(word), Some(count)) = (self.declined.get(number + 1), self.declined.first()) {
            word.store(1, SeqCst);
            count.fetch_add(1, SeqCst);
        }
    }

    /// How often loops have declined a socket.
    pub(super) fn declines(&self) -> u64 {
        self.declined.first().map_or(0, |count| count.load(SeqCst))
    }

    /// Whether loops decline this socket. Policies do not decide about it then.
    pub(super) fn is_declined(&self, number: usize) -> bool {
        self.declined.get(number + 1).is_some_and(|word| word.load(SeqCst) != 0)
    }

    /// Whether the next cycle does not keep this socket, and whether it keeps others of its
    /// address.
    pub fn is_left(&self, number: usize, copy: usize) -> (bool, bool) {
        match self.left.get(number).map_or(0, |word| word.load(SeqCst)) {
            0 => (false, true),
            kept => (copy as u64 + 1 >= kept, kept > 1),
        }
    }
}

/// An epoll instance with all shared sockets, under the numbers of their addresses.
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
        let cycle_shared = CycleShared::new(2, SocketLayout::SocketEach, &sockets).unwrap();
        assert_eq!(cycle_shared.is_left(0, 1), (false, true));
        cycle_shared.leave(0, 1);
        assert_eq!(cycle_shared.is_left(0, 0), (false, true));
        assert_eq!(cycle_shared.is_left(0, 1), (true, true));
        cycle_shared.leave(0, 0);
        assert_eq!(cycle_shared.is_left(0, 0), (true, false));
    }

    #[test]
    fn a_notified_loop_has_a_readable_notifier() {
        let cycle_shared =
            CycleShared::new(1, SocketLayout::SocketEach, &Sockets::default()).unwrap();
        let notifier = cycle_shared.notifier(0).unwrap();
        let rings = || {
            let mut fds = [rustix::event::PollFd::new(notifier, rustix::event::PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
        };
        assert!(!rings());
        cycle_shared.notify(0);
        cycle_shared.notify(0);
        assert!(rings());
        cycle_shared.notify(7);
    }
}
