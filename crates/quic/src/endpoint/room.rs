//! Room for new connections: those that were idle for longest end in time.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Endpoint;
use crate::connection::Connection;

/// Idle connections end once no more than one place in so many is left: what ends is counted until its client knows.
const RESERVE: usize = 8;
/// Of the idle connections one in so many ends at once, and `MOST_AT_ONCE` at most.
const PART: usize = 8;
const MOST_AT_ONCE: usize = 32;
/// Where none was idle, they are not looked at again for so long.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl Endpoint {
    /// A connection has begun: if few more may, those make room that were idle for longest.
    pub(super) fn make_room(&self) {
        let counted = self.connections().saturating_sub(self.making_room.get());
        if counted <= self.most.saturating_sub((self.most / RESERVE).max(1)) {
            return;
        }
        let now = self.now();
        if self.all_busy.get().is_some_and(|at| now < at + LOOK_AGAIN) {
            return;
        }
        let mut idle = self.idle_connections();
        self.all_busy.set(idle.is_empty().then_some(now));
        idle.sort_unstable_by_key(|(since, _)| *since);
        idle.truncate((idle.len() / PART).clamp(1, MOST_AT_ONCE));
        for (_, connection) in &idle {
            connection.makes_room.set(true);
            self.making_room.update(|n| n + 1);
            let events = connection.events.borrow().clone();
            events.iter().for_each(|events| events.make_room());
        }
        if let Some(accepts) = self.accepts.get().filter(|_| !idle.is_empty()) {
            accepts.full(counted, true);
        }
    }

    /// Those that could make room, and since when they are idle.
    fn idle_connections(&self) -> Vec<(Instant, Rc<Connection>)> {
        let connections = self.connections.borrow();
        let staying = connections.values().filter(|connection| !connection.makes_room.get());
        let idle = staying.filter_map(|connection| {
            let since = connection.events.borrow().as_ref()?.idle_since()?;
            Some((since, connection.clone()))
        });
        idle.collect()
    }
}
