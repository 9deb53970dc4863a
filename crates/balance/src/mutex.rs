//! `mutex`: nginx's accept_mutex. One loop at a time listens: the one that holds the lock while it
//! sleeps.
//!
//! A loop that does not get the lock tries again after `accept_mutex_delay`. A loop with less than
//! an eighth of its connections free skips as many turns as connections are missing to that eighth
//! (src/event/ngx_event_accept.c). If the holder is stopped, the server accepts nothing. If it
//! dies, its row is cleared and the lock with it.

use std::time::{Duration, Instant};

use crate::{AfterAccept, LoadTable, LoopSetup, Policy, Wait};

pub(crate) struct Mutex {
    me: usize,
    connections: u64,
    delay: Duration,
    /// The turns for which the loop leaves the lock to others.
    refrain: u64,
}

impl Mutex {
    pub(crate) fn new(setup: LoopSetup) -> Mutex {
        let LoopSetup { me, connections, mutex_delay, .. } = setup;
        Mutex { me, connections, delay: mutex_delay, refrain: 0 }
    }
}

impl Policy for Mutex {
    fn before_wait(&mut self, _now: Instant, loops: &LoadTable<'_>) -> Wait {
        if self.refrain > 0 {
            self.refrain -= 1;
        } else if loops.try_lock(self.me) {
            return Wait::ARMED;
        }
        Wait { at_most: Some(self.delay), ..Wait::DISARMED }
    }

    /// A loop holds the lock only while it sleeps.
    fn after_wait(&mut self, _now: Instant, loops: &LoadTable<'_>) {
        loops.unlock(self.me);
    }

    fn on_accepted(&mut self, _now: Instant, loops: &LoadTable<'_>, _n: u32) -> AfterAccept {
        let free = self.connections.saturating_sub(loops.row(self.me).load().open);
        self.refrain = (self.connections / 8).saturating_sub(free);
        AfterAccept::Keep
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::Load;

    #[test]
    fn one_holds_the_lock_and_a_nearly_full_one_refrains() {
        let words: Vec<_> = (0..LoadTable::words(2)).map(|_| AtomicU64::new(0)).collect();
        let now = Instant::now();
        let table = LoadTable::over(&words, now);
        let setup = |me| LoopSetup {
            me,
            sockets: 1,
            connections: 80,
            mutex_delay: Duration::from_millis(500),
        };
        let (mut a, mut b) = (Mutex::new(setup(0)), Mutex::new(setup(1)));
        let refused = Wait { at_most: Some(Duration::from_millis(500)), ..Wait::DISARMED };
        assert_eq!(a.before_wait(now, &table), Wait::ARMED);
        assert_eq!(a.before_wait(now, &table), Wait::ARMED, "its own lock");
        assert_eq!(b.before_wait(now, &table), refused);
        a.after_wait(now, &table);
        table.row(0).set_load(Load { inflight: 0, open: 72 });
        let _ = a.on_accepted(now, &table, 1);
        assert_eq!(a.before_wait(now, &table), refused, "two beyond the eighth");
        assert_eq!(b.before_wait(now, &table), Wait::ARMED);
        b.after_wait(now, &table);
        assert_eq!(a.before_wait(now, &table), refused);
        assert_eq!(a.before_wait(now, &table), Wait::ARMED);
    }
}
