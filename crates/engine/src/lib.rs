//! The event loop: backends, operations, timers, executor, file pool, clock.
