//! What the loop asks of its owner: when to accept, and what becomes of new connections.

use std::time::{Duration, Instant};

use crate::{Handle, ListenerKey};

/// The owner of a loop. Called on the loop's thread, never while a task runs.
pub trait Driver {
    /// About to wait: arms and disarms listeners; answers the longest sleep it allows.
    fn before_wait(&mut self, h: &Handle, now: Instant) -> Option<Duration>;

    /// The loop is awake; `now` is the turn's time.
    fn after_wait(&mut self, h: &Handle, now: Instant) {
        let _ = (h, now);
    }

    /// `listener` has a connection to accept, or had one: see [`Handle::accept`]. A panic here
    /// costs the connection only: see [`Handle::on_panic`].
    fn acceptable(&mut self, h: &Handle, listener: ListenerKey);

    /// The loop has nothing to do: may it take over a connection of another one?
    fn has_room(&mut self) -> bool {
        true
    }

    /// The turn's accepts are done, its other work is to come.
    fn after_accepts(&mut self, h: &Handle, now: Instant) {
        let _ = (h, now);
    }

    /// The turn's work is done.
    fn end_of_turn(&mut self, h: &Handle, turn: &Turn) {
        let _ = (h, turn);
    }
}

/// What happened in one turn of the loop.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// When the wait returned; the clock of the whole turn.
    pub woke: Instant,
    /// Events that the wait reported, accept events included.
    pub events: usize,
    /// Connections accepted.
    pub accepts: usize,
    /// Tasks started.
    pub started: usize,
    /// Tasks ended.
    pub ended: usize,
}
