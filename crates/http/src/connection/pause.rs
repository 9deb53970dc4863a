//! Connections between two requests: how long they keep their tasks, and how they are parked.

use std::time::{Duration, Instant};

use weir_engine::{Idle, Stream};

use crate::event_loop::LoopState;

/// A connection that is silent for longer than this gives up its task.
pub const GRACE: Duration = Duration::from_secs(1);
/// So many connections of a loop may keep their tasks meanwhile; a rush of more must not hold the memory of
/// as many tasks.
pub const PAUSING: usize = 1024;

/// Parks a connection, which waits, until something comes of it, or until `deadline`.
pub fn rest(
    event_loop: &LoopState,
    stream: Stream,
    parked: impl Idle + 'static,
    deadline: Instant,
) {
    event_loop.handle.park(stream, Box::new(parked), Some(deadline));
}
