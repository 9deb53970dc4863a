//! The kernel's side of a listening socket: the queue of connections and the list of waiters.
//!
//! From kernel/sched/wait.c and fs/eventpoll.c: plain registrations stand at the head and are all
//! told; exclusive ones stand at the tail in the order of registration, and telling stops at the
//! first that sleeps. Who is told finds the socket in its ready list at its next wait.

use std::collections::VecDeque;
use std::time::Duration;

/// One listening socket.
#[derive(Default)]
pub(super) struct Socket {
    waiting: VecDeque<(usize, Duration)>,
    waiters: VecDeque<Waiter>,
}

struct Waiter {
    who: usize,
    exclusive: bool,
    told: bool,
}

impl Socket {
    /// A connection is established; returns the sleeping loops that it wakes.
    pub(super) fn arrive(
        &mut self,
        connection: usize,
        now: Duration,
        sleeps: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        self.waiting.push_back((connection, now));
        let mut woken = Vec::new();
        for waiter in &mut self.waiters {
            waiter.told = true;
            if sleeps(waiter.who) {
                woken.push(waiter.who);
                if waiter.exclusive {
                    break;
                }
            }
        }
        woken
    }

    /// Registers a loop. A socket that is readable is ready at once.
    pub(super) fn add(&mut self, who: usize, exclusive: bool) {
        let waiter = Waiter { who, exclusive, told: !self.waiting.is_empty() };
        if exclusive {
            self.waiters.push_back(waiter);
        } else {
            self.waiters.push_front(waiter);
        }
    }

    pub(super) fn remove(&mut self, who: usize) {
        self.waiters.retain(|w| w.who != who);
    }

    pub(super) fn is_added(&self, who: usize) -> bool {
        self.waiters.iter().any(|w| w.who == who)
    }

    /// Whether this loop's wait reports the socket: it was told, and there still is a connection.
    /// Level-triggered: what is reported stays in the ready list.
    pub(super) fn reports(&mut self, who: usize) -> bool {
        let readable = !self.waiting.is_empty();
        match self.waiters.iter_mut().find(|w| w.who == who) {
            Some(waiter) => {
                waiter.told &= readable;
                waiter.told
            }
            None => false,
        }
    }

    /// Whether this loop was told of a connection, taken or not.
    pub(super) fn was_told(&self, who: usize) -> bool {
        self.waiters.iter().any(|w| w.who == who && w.told)
    }

    pub(super) fn accept(&mut self) -> Option<usize> {
        self.waiting.pop_front().map(|(connection, _)| connection)
    }

    /// Since when the oldest connection waits.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.waiting.front().map(|&(_, since)| since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn exclusive_wakes_the_first_sleeper_in_the_order_of_registration() {
        let mut socket = Socket::default();
        for who in 0..3 {
            socket.add(who, true);
        }
        assert_eq!(socket.arrive(0, NOW, |_| true), [0]);
        assert_eq!(socket.arrive(1, NOW, |who| who > 0), [1]);
        assert!(socket.reports(0) && socket.reports(1));
        assert!(!socket.reports(2), "telling stopped before it");
        socket.remove(0);
        socket.add(0, true);
        assert_eq!(socket.arrive(2, NOW, |_| true), [1]);
    }

    #[test]
    fn plain_registrations_are_all_told_and_come_first() {
        let mut socket = Socket::default();
        socket.add(0, true);
        socket.add(1, false);
        socket.add(2, false);
        assert_eq!(socket.arrive(0, NOW, |_| true), [2, 1, 0]);
        assert_eq!(socket.accept(), Some(0));
        assert!(!socket.reports(1), "another one took it");
    }

    #[test]
    fn adding_a_readable_socket_is_ready_at_once() {
        let mut socket = Socket::default();
        assert!(socket.arrive(0, NOW, |_| true).is_empty());
        socket.add(5, true);
        assert!(socket.reports(5));
    }
}
