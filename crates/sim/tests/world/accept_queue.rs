//! Listening sockets: the loops in their wait lists, the loops that the kernel wakes, and how long
//! connections wait beside sleeping loops.

use std::time::Duration;

use weir_balance::model::ModelSocket;

use crate::threads::{LoopThread, Loops, State};

/// The accept queues: one for all loops, or one per loop.
#[derive(Default)]
pub struct AcceptQueues {
    list: Vec<AcceptQueue>,
    /// Whether each loop has a queue of its own, in order.
    one_each: bool,
    /// The number of connections that each loop accepted.
    pub accepted: Vec<u64>,
}

#[derive(Default)]
struct AcceptQueue {
    socket: ModelSocket,
    /// The number of connections so far.
    arrivals: usize,
    /// The connection that waits longest, and how long each loop has slept meanwhile, in
    /// nanoseconds.
    beside: Option<(usize, Vec<u64>)>,
    unarmed: u64,
    seen: Seen,
}

/// Measurements of a listening socket, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The longest time that one loop slept while one connection waited that it could have
    /// accepted. All its sleeps count: whenever it wakes for other work, it could accept the
    /// connection.
    pub beside_sleeper: u64,
    /// The longest time in which all loops slept and none was armed.
    pub nobody_armed: u64,
}

impl AcceptQueues {
    pub fn new(loops: usize, one_each: bool) -> AcceptQueues {
        let list = (0..loops).map(|_| AcceptQueue::default()).collect();
        AcceptQueues { list, one_each, accepted: vec![0; loops] }
    }

    /// Adds loops.
    pub fn expect(&mut self, loops: usize) {
        self.accepted.resize(self.accepted.len() + loops, 0);
    }

    pub fn add(&mut self, accept_queue: usize, who: usize, exclusive: bool) {
        self.list[accept_queue].socket.add(who, exclusive);
    }

    pub fn remove(&mut self, accept_queue: usize, who: usize) {
        self.list[accept_queue].socket.remove(who);
    }

    /// Removes the loop from all wait lists.
    pub fn forget(&mut self, who: usize) {
        self.list.iter_mut().for_each(|accept_queue| accept_queue.socket.remove(who));
    }

    pub fn reports(&mut self, accept_queue: usize, who: usize) -> bool {
        self.list[accept_queue].socket.reports(who)
    }

    /// Whether the loop's wait reports one of the sockets.
    pub fn reports_any(&mut self, who: usize) -> bool {
        self.list.iter_mut().any(|accept_queue| accept_queue.socket.reports(who))
    }

    pub fn accept(&mut self, accept_queue: usize, row: usize) {
        let _ = self.list[accept_queue].socket.accept();
        self.accepted[row] += 1;
    }

    /// Adds a connection. Returns the loops that the kernel wakes.
    pub fn arrive(
        &mut self,
        accept_queue: usize,
        now: u64,
        sleeps: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let accept_queue = &mut self.list[accept_queue];
        accept_queue.arrivals += 1;
        let walk =
            accept_queue.socket.arrive(accept_queue.arrivals, Duration::from_nanos(now), sleeps);
        walk.into_iter().filter(|visit| visit.asleep).map(|visit| visit.who).collect()
    }

    /// Records the time from `now` to `to`.
    pub fn observe(&mut self, now: u64, to: u64, loops: &Loops) {
        let used = if self.one_each { self.list.len() } else { 1 };
        for (row, accept_queue) in self.list.iter_mut().enumerate().take(used) {
            accept_queue.observe(now, to, loops, self.one_each.then_some(row));
        }
    }

    pub fn seen(&self) -> Seen {
        let both = |a: Seen, b: Seen| Seen {
            beside_sleeper: a.beside_sleeper.max(b.beside_sleeper),
            nobody_armed: a.nobody_armed.max(b.nobody_armed),
        };
        self.list.iter().map(|accept_queue| accept_queue.seen).fold(Seen::default(), both)
    }
}

impl AcceptQueue {
    /// Records this time for one queue. `whose` is the only loop that may accept from it, if there
    /// is one.
    fn observe(&mut self, now: u64, to: u64, loops: &Loops, whose: Option<usize>) {
        let mine = |row: usize| whose.is_none_or(|whose| whose == row);
        let sleeps = |l: &LoopThread| l.is_asleep(now) && l.cannot_accept_until <= now;
        let oldest = self.socket.oldest().map(|(connection, _)| connection);
        let before = self.beside.take();
        self.beside = oldest.map(|oldest| match before {
            Some((same, slept)) if same == oldest => (same, slept),
            _ => (oldest, vec![0; loops.rows().count()]),
        });
        if let Some((_, slept)) = &mut self.beside {
            for (row, (slept, l)) in slept.iter_mut().zip(loops.rows()).enumerate() {
                if mine(row) && sleeps(l) {
                    *slept += to - now;
                    self.seen.beside_sleeper = self.seen.beside_sleeper.max(*slept);
                }
            }
        }
        let order = self.socket.order();
        let armed = |row: usize| order.iter().any(|(who, _)| who / 2 == row);
        let living = || loops.rows().enumerate().filter(|(_, l)| !l.gone && l.stopped <= now);
        let idle = |l: &LoopThread| {
            matches!(l.state, State::Waiting { .. }) && l.cannot_accept_until <= now
        };
        let all = living().all(|(row, l)| idle(l) && !armed(row));
        let unarmed = living().next().is_some() && all;
        self.unarmed = if unarmed { self.unarmed + (to - now) } else { 0 };
        self.seen.nobody_armed = self.seen.nobody_armed.max(self.unarmed);
    }
}
