//! The listening socket: who waits in it, whom the kernel tells, and how long connections wait beside loops that sleep.

use std::time::Duration;

use weir_balance::model::Socket;

use crate::looping::{Looping, State};

#[derive(Default)]
pub struct Door {
    pub socket: Socket,
    came: usize,
    /// Connections by the loop that took them.
    pub accepted: Vec<u64>,
    /// The connection that waits longest, and for how long each loop has slept beside it, in nanoseconds.
    beside: Option<(usize, Vec<u64>)>,
    unarmed: u64,
    pub seen: Seen,
}

/// What was seen from outside, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The longest time for which one connection waited while one loop that could have taken it slept, all its naps
    /// together: one that wakes up for its own work could have taken it.
    pub beside_sleeper: u64,
    /// The longest time for which every loop slept, and none was armed.
    pub nobody_armed: u64,
}

impl Door {
    pub fn new(loops: usize) -> Door {
        Door { accepted: vec![0; loops], ..Door::default() }
    }

    /// A connection is established: those who are woken.
    pub fn arrive(&mut self, now: u64, sleeps: impl Fn(usize) -> bool) -> Vec<usize> {
        self.came += 1;
        let walk = self.socket.arrive(self.came, Duration::from_nanos(now), sleeps);
        walk.into_iter().filter(|visit| visit.asleep).map(|visit| visit.who).collect()
    }

    /// Time passes.
    pub fn observe(&mut self, now: u64, to: u64, loops: &[Looping]) {
        let sleeps = |l: &Looping| l.is_asleep(now) && l.unable <= now;
        let oldest = self.socket.oldest().map(|(connection, _)| connection);
        let before = self.beside.take();
        self.beside = oldest.map(|oldest| match before {
            Some((same, slept)) if same == oldest => (same, slept),
            _ => (oldest, vec![0; loops.len()]),
        });
        if let Some((_, slept)) = &mut self.beside {
            for (slept, _) in slept.iter_mut().zip(loops).filter(|(_, l)| sleeps(l)) {
                *slept += to - now;
                self.seen.beside_sleeper = self.seen.beside_sleeper.max(*slept);
            }
        }
        let order = self.socket.order();
        let armed = |i: usize| order.iter().any(|(who, _)| *who == i);
        let mut living = loops.iter().enumerate().filter(|(_, l)| !l.gone && l.stopped <= now);
        let any = living.clone().next().is_some();
        let all = living
            .all(|(i, l)| matches!(l.state, State::Rests { .. }) && l.unable <= now && !armed(i));
        self.unarmed = if any && all { self.unarmed + (to - now) } else { 0 };
        self.seen.nobody_armed = self.seen.nobody_armed.max(self.unarmed);
    }
}
