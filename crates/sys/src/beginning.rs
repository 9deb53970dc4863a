//! The instant from which this process and its children count time.

use std::sync::OnceLock;
use std::time::Instant;

static BEGINNING: OnceLock<Instant> = OnceLock::new();

/// The instant of the first call in this process, or in a parent before it forked. It is the common
/// origin of all times that processes share as numbers.
pub fn beginning() -> Instant {
    *BEGINNING.get_or_init(Instant::now)
}
