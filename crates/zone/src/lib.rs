//! Shared-memory zones: named regions of a fixed size that all loops and workers share, and that pass from
//! one configuration to the next.
//!
//! A configuration [declares](Declarations::declare) what it wants; the master
//! [opens](Declarations::open) the zones before it forks, taking over those of the configuration
//! before. A zone holds one `table`: keys of any length, a few words of value each, in the order of
//! their last use; or [rows](Zone::rows): a few wide records. Code that works on it
//! [locks](Zone::lock) it. A killed holder leaves the lock to the next one, which first undoes what
//! was half done.
//!
//! - In: names and sizes from the configuration; keys and words from the code that counts.
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

/// Processes that are threads, for tests.
#[cfg(any(test, feature = "processes"))]
pub use weir_testkit::processes::seam::{Holding, dies, live_as, on_step};

pub use declare::{Declarations, Use, ZoneError, ZoneRef, Zones};
pub use lock::on_stall;
pub use owner::{process, runs};
pub use rows::{Claimed, Row, Rows, capacity};
pub use spoilt::on_spoilt;
pub use table::{Locked, LockedEntry, RecordName};

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use weir_sys::beginning::beginning;
use weir_sys::shared::SharedWords;

/// A zone's clock starts here, so that times before its beginning are times, too.
const BEGIN: Duration = Duration::from_secs(24 * 60 * 60);

/// A named region of shared memory with its table.
#[derive(Debug)]
pub struct Zone {
    name: String,
    size: u64,
    purpose: Use,
    shape: table::Shape,
    words: SharedWords,
    /// The process that has used its rows, as this process remembers it: a fork has not yet.
    entered: AtomicU64,
}

impl Zone {
    /// A zone of `size` bytes, empty.
    ///
    /// # Errors
    ///
    /// What mmap(2) answers; `InvalidInput` for a size that has no room for anything.
    pub fn new(name: &str, size: u64, purpose: Use) -> std::io::Result<Zone> {
        let words = usize::try_from(size / 8).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        let shape = table::Shape::new(words, purpose.values);
        let shape = shape.ok_or(std::io::ErrorKind::InvalidInput)?;
        let words = SharedWords::new(words)?;
        Ok(Zone { name: name.to_owned(), size, purpose, shape, words, entered: AtomicU64::new(0) })
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The module that it belongs to.
    pub fn tag(&self) -> &'static str {
        self.purpose.tag
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// An instant in milliseconds, the same for all processes that share the zone. It begins with a
    /// day.
    pub fn msec(&self, at: Instant) -> u64 {
        (at.saturating_duration_since(beginning()) + BEGIN).as_millis() as u64
    }

    /// The instant of [`Zone::msec`].
    pub fn instant(&self, msec: u64) -> Instant {
        let since = Duration::from_millis(msec).saturating_sub(BEGIN);
        beginning().checked_add(since).unwrap_or_else(beginning)
    }

    /// The zone as rows of `values` words each, for this thread alone until the guard is dropped. A zone is used
    /// as rows or as a table, never as both: its [`Use::tag`] says which.
    pub fn rows(&self, values: usize) -> Rows<'_> {
        let mut rows = Rows::new(&self.words, values, &self.name);
        if seam::enters(&self.entered, owner::this()) {
            rows.enter();
        }
        rows
    }

    /// Whether a thread holds its rows right now.
    pub fn is_held(&self) -> bool {
        rows::is_held(&self.words)
    }

    /// Writes a word of its memory, as a process that an attacker has taken over may.
    #[cfg(any(test, feature = "processes"))]
    pub fn spoil(&self, at: usize, value: u64) {
        if let Some(word) = self.words.get(at) {
            word.store(value, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// The table, for this thread alone until the guard is dropped. Waits where another has it.
    pub fn lock(&self) -> Locked<'_> {
        Locked::new(&self.words, &self.shape, &self.name)
    }
}
