//! Connections between two requests: how long they keep their tasks, and how they are parked.

use std::time::{Duration, Instant};

use weir_engine::{Idle, Stream};

use crate::event_loop::LoopState;

/// How long an idle connection keeps its task.
pub const GRACE: Duration = Duration::from_secs(1);
/// The most idle connections of a loop that keep their tasks, which bounds the memory of tasks.
pub const PAUSING: usize = 1024;

/// Parks a waiting connection until it is readable, or until `deadline`.
pub fn rest(
    event_loop: &LoopState,
    stream: Stream,
    parked: impl Idle + 'static,
    deadline: Instant,
) {
    event_loop.handle.park(stream, Box::new(parked), Some(deadline));
}
