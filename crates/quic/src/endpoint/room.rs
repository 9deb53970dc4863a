//! Closes idle connections before the endpoint reaches its limit of connections.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Endpoint;
use crate::connection::Connection;

/// Idle connections are closed once fewer than one in so many places is free. A closed connection keeps its place until it is drained.
const RESERVE: usize = 8;
/// One in so many of the idle connections is closed at a time, but at most `MOST_AT_ONCE`.
const PART: usize = 8;
const MOST_AT_ONCE: usize = 32;
/// If no connection was idle, the next look for idle ones is after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl Endpoint {
    /// Closes the connections that were idle for longest if few places are left. Called after a connection has begun.
    pub(super) fn make_room(&self) {
        let counted = self.connections().saturating_sub(self.making_room.get());
        if counted <= self.most_connections.saturating_sub((self.most_connections / RESERVE).max(1))
        {
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

    /// The idle connections that do not make room yet, and since when they are idle.
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
