//! The instant from which this process and its children count time.

use std::sync::OnceLock;
use std::time::Instant;

static BEGINNING: OnceLock<Instant> = OnceLock::new();

/// The moment at which this was first asked for, here or before the process was forked: one origin for all times that
/// processes share as numbers.
pub fn beginning() -> Instant {
    *BEGINNING.get_or_init(Instant::now)
}
