//! The interface between a loop and its owner, which decides when to accept and serves new
//! connections.

use std::time::{Duration, Instant};

use crate::{Handle, ListenerKey};

/// The owner of a loop. Called on the loop's thread, never while a task runs.
pub trait Driver {
    /// The loop is about to wait. Arms and disarms listeners; returns the longest sleep that it
    /// allows.
    fn before_wait(&mut self, h: &Handle, now: Instant) -> Option<Duration>;

    /// The loop is awake; `now` is the turn's time.
    fn after_wait(&mut self, h: &Handle, now: Instant) {
        let _ = (h, now);
    }

    /// `listener` may have a connection to accept: see [`Handle::accept`]. A panic here costs that
    /// connection alone: see [`Handle::on_panic`].
    fn acceptable(&mut self, h: &Handle, listener: ListenerKey);

    /// Whether a loop without work may steal a connection from another one.
    fn has_room(&mut self) -> bool {
        true
    }

    /// The turn's accept events are handled; its other work follows.
    fn after_accepts(&mut self, h: &Handle, now: Instant) {
        let _ = (h, now);
    }

    /// All work of the turn is done.
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
