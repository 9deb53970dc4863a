//! The kernel's side of a listening socket: the accept queue and the wait list.
//!
//! After kernel/sched/wait.c and fs/eventpoll.c. Plain registrations are at the head of the list
//! and all woken. Exclusive ones are at the tail in the order of registration, and the walk ends at
//! the first that sleeps. A busy loop that the walk passes finds the socket in its ready list at
//! its next wait.

use std::collections::VecDeque;
use std::time::Duration;

/// One listening socket.
#[derive(Default)]
pub struct ModelSocket {
    waiting: VecDeque<(usize, Duration)>,
    waiters: VecDeque<Registration>,
}

/// One step of the kernel's walk along the wait list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The loop that registered.
    pub who: usize,
    /// The registration has EPOLLEXCLUSIVE.
    pub exclusive: bool,
    /// The loop sleeps and is woken. A busy loop finds the socket in its ready list later.
    pub asleep: bool,
}

impl Visit {
    /// Whether the walk ends here, since an exclusive registration took the wake-up.
    #[must_use]
    pub fn is_last(self) -> bool {
        self.exclusive && self.asleep
    }
}

struct Registration {
    who: usize,
    exclusive: bool,
    is_ready: bool,
}

impl ModelSocket {
    /// A connection is established. Walks along the list, to its end or to the first exclusive
    /// waiter that sleeps.
    pub fn arrive(
        &mut self,
        connection: usize,
        now: Duration,
        sleeps: impl Fn(usize) -> bool,
    ) -> Vec<Visit> {
        self.waiting.push_back((connection, now));
        let mut walk = Vec::new();
        for entry in &mut self.waiters {
            entry.is_ready = true;
            let (who, exclusive) = (entry.who, entry.exclusive);
            let visit = Visit { who, exclusive, asleep: sleeps(who) };
            walk.push(visit);
            if visit.is_last() {
                break;
            }
        }
        walk
    }

    /// The wait list in the order of the walk: each loop, and whether it is exclusive.
    #[must_use]
    pub fn order(&self) -> Vec<(usize, bool)> {
        self.waiters.iter().map(|w| (w.who, w.exclusive)).collect()
    }

    /// The number of waiting connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no connection waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Registers a loop. If connections wait, the socket is in its ready list at once.
    pub fn add(&mut self, who: usize, exclusive: bool) {
        let entry = Registration { who, exclusive, is_ready: !self.waiting.is_empty() };
        if exclusive {
            self.waiters.push_back(entry);
        } else {
            self.waiters.push_front(entry);
        }
    }

    /// Removes a loop's registration.
    pub fn remove(&mut self, who: usize) {
        self.waiters.retain(|w| w.who != who);
    }

    pub(super) fn is_added(&self, who: usize) -> bool {
        self.waiters.iter().any(|w| w.who == who)
    }

    /// Whether this loop's wait reports the socket: it is in the ready list, and a connection still
    /// waits. Level-triggered, so it stays in the ready list while this holds.
    pub fn reports(&mut self, who: usize) -> bool {
        let readable = !self.waiting.is_empty();
        match self.waiters.iter_mut().find(|w| w.who == who) {
            Some(entry) => {
                entry.is_ready &= readable;
                entry.is_ready
            }
            None => false,
        }
    }

    /// Whether the socket is in this loop's ready list, even if another loop has accepted the
    /// connection.
    pub(super) fn has_ready(&self, who: usize) -> bool {
        self.waiters.iter().any(|w| w.who == who && w.is_ready)
    }

    /// Takes the connection that has waited longest.
    pub fn accept(&mut self) -> Option<usize> {
        self.waiting.pop_front().map(|(connection, _)| connection)
    }

    /// The connection that has waited longest, and since when.
    #[must_use]
    pub fn oldest(&self) -> Option<(usize, Duration)> {
        self.waiting.front().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn woken(walk: &[Visit]) -> Vec<usize> {
        walk.iter().filter(|visit| visit.asleep).map(|visit| visit.who).collect()
    }

    #[test]
    fn exclusive_wakes_the_first_sleeper_in_the_order_of_registration() {
        let mut socket = ModelSocket::default();
        for who in 0..3 {
            socket.add(who, true);
        }
        assert_eq!(woken(&socket.arrive(0, NOW, |_| true)), [0]);
        assert_eq!(woken(&socket.arrive(1, NOW, |who| who > 0)), [1]);
        assert!(socket.reports(0) && socket.reports(1));
        assert!(!socket.reports(2), "telling stopped before it");
        socket.remove(0);
        socket.add(0, true);
        assert_eq!(woken(&socket.arrive(2, NOW, |_| true)), [1]);
    }

    #[test]
    fn plain_registrations_are_all_told_and_come_first() {
        let mut socket = ModelSocket::default();
        socket.add(0, true);
        socket.add(1, false);
        socket.add(2, false);
        assert_eq!(socket.order(), [(2, false), (1, false), (0, true)]);
        assert_eq!(woken(&socket.arrive(0, NOW, |_| true)), [2, 1, 0]);
        assert_eq!(socket.accept(), Some(0));
        assert!(!socket.reports(1), "another one took it");
    }

    #[test]
    fn adding_a_readable_socket_is_ready_at_once() {
        let mut socket = ModelSocket::default();
        assert!(socket.arrive(0, NOW, |_| true).is_empty());
        socket.add(5, true);
        assert!(socket.reports(5));
    }
}
