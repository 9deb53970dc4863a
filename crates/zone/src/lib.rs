//! Shared-memory zones: named regions of a fixed size that all loops and workers share, and that
//! pass from one configuration to the next.
//!
//! A configuration [declares](Declarations::declare) zones. The master [opens](Declarations::open)
//! them before it forks, and takes over those of the previous configuration. A zone has one of two
//! forms. A `table` has keys of any length with a few words of value each, in the order of their
//! last use. [Rows](Zone::rows) are a few wide records. Code [locks](Zone::lock) a zone to use it.
//! If the holder of a lock is killed, the next one undoes its unfinished change.
//!
//! - In: names and sizes from the configuration; keys and words from the modules.
//! - Out: memory that all workers and the next configuration share.
//! - Callers: every crate with state for all workers. The master opens zones, workers lock them.

mod declare;
mod journal;
mod lock;
mod owner;
#[cfg(test)]
mod processes;
mod rows;
mod seam;
mod spoilt;
mod table;

/// Simulated processes, for tests.
#[cfg(any(test, feature = "processes"))]
pub use weir_testkit::processes::seam::{Holding, dies, live_as, on_step};

pub use declare::{Declarations, Use, ZoneError, ZoneRef, Zones};
pub use lock::on_stall;
pub use owner::{process, runs};
pub use rows::{Claimed, Row, Rows, capacity};
pub use spoilt::on_spoilt;
pub use table::{End, Locked, LockedEntry, RecordName};

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use weir_sys::beginning::beginning;
use weir_sys::shared::SharedWords;

/// A zone's clock starts with this value, so that times before the process began can be
/// represented.
const CLOCK_START: Duration = Duration::from_secs(24 * 60 * 60);

/// A named region of shared memory.
#[derive(Debug)]
pub struct Zone {
    name: String,
    size: u64,
    purpose: Use,
    shape: table::Shape,
    words: SharedWords,
    /// The process that last used the rows, as this process remembers it. A forked process differs
    /// from it at first.
    entered: AtomicU64,
}

impl Zone {
    /// An empty zone of `size` bytes.
    ///
    /// # Errors
    ///
    /// The error of mmap(2), or `InvalidInput` if the size is too small for an entry.
    pub fn new(name: &str, size: u64, purpose: Use) -> std::io::Result<Zone> {
        let words = usize::try_from(size / 8).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        let shape = table::Shape::new(words, purpose.values);
        let shape = shape.ok_or(std::io::ErrorKind::InvalidInput)?;
        let words = SharedWords::new(words)?;
        Ok(Zone { name: name.to_owned(), size, purpose, shape, words, entered: AtomicU64::new(0) })
    }

    /// The name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The module that the zone belongs to.
    pub fn tag(&self) -> &'static str {
        self.purpose.tag
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// An instant in milliseconds, the same in all processes that share the zone. The clock starts
    /// at one day.
    pub fn msec(&self, at: Instant) -> u64 {
        (at.saturating_duration_since(beginning()) + CLOCK_START).as_millis() as u64
    }

    /// The inverse of [`Zone::msec`].
    pub fn instant(&self, msec: u64) -> Instant {
        let since = Duration::from_millis(msec).saturating_sub(CLOCK_START);
        beginning().checked_add(since).unwrap_or_else(beginning)
    }

    /// Locks the zone as rows of `values` words each, until the guard is dropped. A zone is used
    /// either as rows or as a table, depending on its [`Use::tag`].
    pub fn rows(&self, values: usize) -> Rows<'_> {
        let mut rows = Rows::new(&self.words, values, &self.name);
        if seam::enters(&self.entered, owner::this()) {
            rows.enter();
        }
        rows
    }

    /// Whether a thread holds its rows now.
    pub fn is_held(&self) -> bool {
        rows::is_held(&self.words)
    }

    /// Writes a word of its memory, as a compromised process could.
    #[cfg(any(test, feature = "processes"))]
    pub fn spoil(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            word.store(value, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Locks the zone as a table, until the guard is dropped. Waits while another thread holds it.
    pub fn lock(&self) -> Locked<'_> {
        Locked::new(&self.words, &self.shape, &self.name)
    }
}
