//! The kernel's side of a listening socket: the queue of connections and the list of waiters.
//!
//! From kernel/sched/wait.c and fs/eventpoll.c. Plain registrations stand at the head and are all
//! told. Exclusive ones stand at the tail in the order of registration, and telling stops at the
//! first that sleeps. A loop that is told finds the socket in its ready list at its next wait.

use std::collections::VecDeque;
use std::time::Duration;

/// One listening socket.
#[derive(Default)]
pub struct ModelSocket {
    waiting: VecDeque<(usize, Duration)>,
    waiters: VecDeque<Registration>,
}

/// One step of the kernel's walk along the list of waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visit {
    /// The loop that registered.
    pub who: usize,
    /// It was made with EPOLLEXCLUSIVE.
    pub exclusive: bool,
    /// Its owner sleeps in its wait, and is woken. A busy one finds the socket in its ready list
    /// later.
    pub asleep: bool,
}

impl Visit {
    /// The walk ends here: an exclusive registration took the wake-up.
    #[must_use]
    pub fn is_last(self) -> bool {
        self.exclusive && self.asleep
    }
}

struct Registration {
    who: usize,
    exclusive: bool,
    told: bool,
}

impl ModelSocket {
    /// A connection is established: the walk along the list, to its end or to the first exclusive
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
            entry.told = true;
            let (who, exclusive) = (entry.who, entry.exclusive);
            let visit = Visit { who, exclusive, asleep: sleeps(who) };
            walk.push(visit);
            if visit.is_last() {
                break;
            }
        }
        walk
    }

    /// The list of waiters, in the order in which it is walked: the loop, and whether exclusive.
    #[must_use]
    pub fn order(&self) -> Vec<(usize, bool)> {
        self.waiters.iter().map(|w| (w.who, w.exclusive)).collect()
    }

    /// How many connections wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// No connection waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Registers a loop. A socket that is readable is ready at once.
    pub fn add(&mut self, who: usize, exclusive: bool) {
        let entry = Registration { who, exclusive, told: !self.waiting.is_empty() };
        if exclusive {
            self.waiters.push_back(entry);
        } else {
            self.waiters.push_front(entry);
        }
    }

    /// Takes a loop's registration away.
    pub fn remove(&mut self, who: usize) {
        self.waiters.retain(|w| w.who != who);
    }

    pub(super) fn is_added(&self, who: usize) -> bool {
        self.waiters.iter().any(|w| w.who == who)
    }

    /// Whether this loop's wait reports the socket: it was told, and there still is a connection.
    /// Level-triggered: what is reported stays in the ready list.
    pub fn reports(&mut self, who: usize) -> bool {
        let readable = !self.waiting.is_empty();
        match self.waiters.iter_mut().find(|w| w.who == who) {
            Some(entry) => {
                entry.told &= readable;
                entry.told
            }
            None => false,
        }
    }

    /// Whether this loop was told of a connection, taken or not.
    pub(super) fn was_told(&self, who: usize) -> bool {
        self.waiters.iter().any(|w| w.who == who && w.told)
    }

    /// Takes the connection that waits longest.
    pub fn accept(&mut self) -> Option<usize> {
        self.waiting.pop_front().map(|(connection, _)| connection)
    }

    /// The connection that waits longest, and since when.
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
