//! `rotate`: EPOLLEXCLUSIVE, registered again after every N-th accept.
//!
//! nginx does this since 1.21.6 with N = 16: the first accept, the 17th and so on move the loop to
//! the end of the wait list. While a loop uses more than seven eighths of its connections, each
//! accept moves it (src/event/ngx_event_accept.c, ngx_reorder_accept_events).

use std::time::Instant;

use crate::{AfterAccept, LoadTable, LoopSetup, Policy, Wait};

pub(crate) struct Rotate {
    me: usize,
    connections: u64,
    every: u32,
    /// Accepts since the loop last moved to the end.
    since: u32,
}

impl Rotate {
    /// The number of accepts after which nginx registers a socket again.
    pub(crate) const NGINX: u32 = 16;

    pub(crate) fn new(setup: LoopSetup, every: u32) -> Rotate {
        Rotate { me: setup.me, connections: setup.connections, every: every.max(1), since: 0 }
    }
}

impl Policy for Rotate {
    fn before_wait(&mut self, _now: Instant, _loops: &LoadTable<'_>) -> Wait {
        Wait::ARMED
    }

    fn on_accepted(&mut self, _now: Instant, loops: &LoadTable<'_>, _n: u32) -> AfterAccept {
        let turn = self.since == 0;
        self.since = (self.since + 1) % self.every;
        let free = self.connections.saturating_sub(loops.row(self.me).load().open);
        if turn || free < self.connections / 8 { AfterAccept::Readd } else { AfterAccept::Keep }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;
    use crate::Load;

    #[test]
    fn the_first_and_every_nth_accept_and_each_when_nearly_full() {
        let words: Vec<_> = (0..LoadTable::words(1)).map(|_| AtomicU64::new(0)).collect();
        let now = Instant::now();
        let table = LoadTable::over(&words, now);
        let setup = LoopSetup {
            me: 0,
            sockets: 1,
            connections: 80,
            mutex_delay: Duration::from_millis(500),
        };
        let mut rotate = Rotate::new(setup, 4);
        let mut readds = |n: usize| -> Vec<bool> {
            (0..n).map(|_| rotate.on_accepted(now, &table, 1) == AfterAccept::Readd).collect()
        };
        assert_eq!(readds(6), [true, false, false, false, true, false]);
        table.row(0).set_load(Load { inflight: 0, open: 71 });
        assert_eq!(readds(3), [true, true, true]);
    }
}
