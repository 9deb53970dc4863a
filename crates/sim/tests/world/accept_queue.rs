//! Listening sockets: which loops wait in them, which ones the kernel wakes, and how long
//! connections wait beside sleeping loops.

use std::time::Duration;

use weir_balance::model::ModelSocket;

use crate::looping::{Looping, Loops, State};

/// One queue for all loops, or one for each, in their order.
#[derive(Default)]
pub struct AcceptQueues {
    list: Vec<AcceptQueue>,
    /// Each queue belongs to one loop, in their order.
    one_each: bool,
    /// The number of connections that each loop took.
    pub accepted: Vec<u64>,
}

#[derive(Default)]
struct AcceptQueue {
    socket: ModelSocket,
    /// The number of connections so far.
    came: usize,
    /// The connection that waits longest, and how long each loop has slept meanwhile, in
    /// nanoseconds.
    beside: Option<(usize, Vec<u64>)>,
    unarmed: u64,
    seen: Seen,
}

/// What was measured from outside, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The longest sleep of one loop beside one waiting connection that it could have taken, all
    /// its naps together. A loop that wakes up for its own work could have taken the connection.
    pub beside_sleeper: u64,
    /// The longest time in which all loops slept and none was armed.
    pub nobody_armed: u64,
}

impl AcceptQueues {
    pub fn new(loops: usize, one_each: bool) -> AcceptQueues {
        let list = (0..loops).map(|_| AcceptQueue::default()).collect();
        AcceptQueues { list, one_each, accepted: vec![0; loops] }
    }

    /// More loops begin.
    pub fn expect(&mut self, loops: usize) {
        self.accepted.resize(self.accepted.len() + loops, 0);
    }

    pub fn add(&mut self, accept_queue: usize, who: usize, exclusive: bool) {
        self.list[accept_queue].socket.add(who, exclusive);
    }

    pub fn remove(&mut self, accept_queue: usize, who: usize) {
        self.list[accept_queue].socket.remove(who);
    }

    /// The loop waits for no socket any more.
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

    /// A connection is established. Returns the loops that are woken.
    pub fn arrive(
        &mut self,
        accept_queue: usize,
        now: u64,
        sleeps: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let accept_queue = &mut self.list[accept_queue];
        accept_queue.came += 1;
        let walk = accept_queue.socket.arrive(accept_queue.came, Duration::from_nanos(now), sleeps);
        walk.into_iter().filter(|visit| visit.asleep).map(|visit| visit.who).collect()
    }

    /// Notes the time from `now` to `to`.
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
    /// Notes this time for one queue. `whose`: the only loop that may take from it, if there is
    /// one.
    fn observe(&mut self, now: u64, to: u64, loops: &Loops, whose: Option<usize>) {
        let mine = |row: usize| whose.is_none_or(|whose| whose == row);
        let sleeps = |l: &Looping| l.is_asleep(now) && l.unable <= now;
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
        let idle = |l: &Looping| matches!(l.state, State::Rests { .. }) && l.unable <= now;
        let all = living().all(|(row, l)| idle(l) && !armed(row));
        let unarmed = living().next().is_some() && all;
        self.unarmed = if unarmed { self.unarmed + (to - now) } else { 0 };
        self.seen.nobody_armed = self.seen.nobody_armed.max(self.unarmed);
    }
}
