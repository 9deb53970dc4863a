//! Answers that are stored for later requests. This crate knows files, memory and time. Of HTTP it
//! knows only names and values of headers.
//!
//! A [`Cache`] is a directory with an [`Index`] in shared memory. It stores [`CacheEntry`] values:
//! the metadata of an answer, its head as received, and its body. An answer that is being received
//! is a [`Fill`]. Any number of readers read from it, and a [`writer`] writes it into a file. A
//! file gets its name only when it is complete, so no request finds an incomplete file.
//!
//! - In: the cache key of a request; then the head and the pieces of a server's answer.
//! - Out: a stored answer from memory or its file, or a reader of an answer that is being received.
//! - Callers: `upstream/cache` in the crate `http`.

mod backlog;
mod body;
mod entry;
mod fill;
mod head;
mod index;
mod key;
pub mod loader;
pub mod manager;
mod memory;
mod overdue;
pub mod purge;
mod store;
mod tag_index;
mod tags;
pub mod writer;

pub use body::{Range, StoredBody, is_short};
pub use entry::{CacheEntry, Freshness, Stored, Unusable};
pub use fill::{Asked, Fill, FillEnd, FillPiece, FillReader, MissingRest};
pub use head::{Field, field, fields, members};
pub use index::{Index, Lookup, Ticket};
pub use key::{CacheKey, Variant, VariantMatching};
pub use memory::{FileCheck, Memory, Object};
pub use overdue::{OverdueRead, OverdueReads};
pub use store::{CacheDirectory, Opened, read_entry, whole_blocks};
pub use tags::{MOST_TAGS, Tag, Tags};

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Settings of a cache. nginx: `proxy_cache_path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// The directory of its files, and `levels`.
    pub place: CacheDirectory,
    /// `use_temp_path`: new files are written in the directory for temporary files, not in the
    /// cache's own.
    pub use_temp_path: bool,
    /// Answers that were not used for this long are removed.
    pub inactive: Duration,
    /// The most bytes that all files may take on the disk; `None` for no limit.
    pub max_size: Option<u64>,
    /// Bytes that must stay free on the file system.
    pub min_free: u64,
    /// The pace of the loader.
    pub loader: Pace,
    /// The pace of the manager.
    pub manager: Pace,
}

/// How work on many files is divided. nginx: `loader_files`, `manager_sleep` and kin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The most files of one iteration.
    pub files: usize,
    /// The pause between iterations.
    pub sleep: Duration,
    /// The longest time of one iteration.
    pub threshold: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let (sleep, threshold) = (Duration::from_millis(50), Duration::from_millis(200));
        Pace { files: 100, sleep, threshold }
    }
}

/// A directory of stored answers.
#[derive(Debug)]
pub struct Cache {
    /// Its settings.
    pub settings: CacheSettings,
    /// The stored answers.
    pub index: Index,
    /// Answers that are also in memory.
    pub memory: Memory,
    /// Answers whose files are kept open, for requests without a memory tier.
    pub open: Memory,
    /// Answers that are not in their files yet, by key.
    fills: Mutex<HashMap<CacheKey, PendingAnswers>>,
    /// Locks that are held while a file gets its name, so that the newer of two answers with one
    /// key stays. Keys share them.
    naming_locks: [Mutex<()>; NAMING_LOCKS],
    /// Answers that wait to be written.
    backlog: backlog::Backlog,
    /// Reads of files that take too long, so that no request waits for them any more.
    pub overdue: OverdueReads,
    /// Answers that this process has evicted since [`Cache::take_evicted`].
    evicted: AtomicU64,
}

const NAMING_LOCKS: usize = 16;

/// The answers of one key that are not in its file yet.
#[derive(Debug, Default)]
struct PendingAnswers {
    /// The answer that is being received; of several, the one that began last.
    newest: Option<Arc<Fill>>,
    /// The last answer that was received completely, until it is in its file. It stays known while
    /// a newer one is being received.
    whole: Option<Arc<Fill>>,
}

impl PendingAnswers {
    fn both(&mut self) -> [&mut Option<Arc<Fill>>; 2] {
        [&mut self.newest, &mut self.whole]
    }

    /// Drops the answers that `gone` accepts. True if others are left.
    fn retain(&mut self, mut gone: impl FnMut(&Arc<Fill>) -> bool) -> bool {
        for fill in self.both() {
            fill.take_if(|fill| gone(fill));
        }
        self.newest.is_some() || self.whole.is_some()
    }
}

impl Cache {
    /// A cache with its index in a zone.
    pub fn new(settings: CacheSettings, zone: weir_zone::ZoneRef) -> Cache {
        let (memory, fills, naming_locks) =
            (Memory::default(), Mutex::default(), Default::default());
        let (index, open) = (Index::new(zone), Memory::of_open_files());
        let (backlog, overdue) = (backlog::Backlog::default(), OverdueReads::default());
        let evicted = AtomicU64::new(0);
        Cache { settings, index, memory, open, fills, naming_locks, backlog, overdue, evicted }
    }

    /// Counts answers that were evicted to make room or because they were inactive.
    pub(crate) fn count_evicted(&self, n: usize) {
        self.evicted.fetch_add(n as u64, Relaxed);
    }

    /// Takes the number of answers that this process has evicted since the last call.
    pub fn take_evicted(&self) -> u64 {
        if self.evicted.load(Relaxed) == 0 { 0 } else { self.evicted.swap(0, Relaxed) }
    }

    /// The name of the zone.
    pub fn name(&self) -> &str {
        self.index.name()
    }

    /// The directive that its locations name it with, such as `proxy_cache`: the tag of the zone.
    pub fn directive(&self) -> &'static str {
        self.index.tag()
    }

    /// The memory tier that a request uses: answers in memory if `in_memory`, else open files.
    pub fn at_hand(&self, in_memory: bool) -> &Memory {
        if in_memory { &self.memory } else { &self.open }
    }

    /// Removes a key's answer from the memory tiers.
    pub fn remove_from_memory(&self, key: &CacheKey) {
        self.memory.remove(key);
        self.open.remove(key);
    }

    /// The answer of this key that is being received or written.
    pub fn fill(&self, key: &CacheKey) -> Option<Arc<Fill>> {
        let fills = self.fills();
        let pending = fills.get(key)?;
        let fill = pending.newest.as_ref().or(pending.whole.as_ref()).cloned();
        fill.filter(|fill| !self.is_removed(fill))
    }

    /// The complete answer of this key that is being written.
    pub fn whole(&self, key: &CacheKey) -> Option<Arc<Fill>> {
        let fills = self.fills();
        let pending = fills.get(key)?;
        let newest = pending.newest.as_ref().filter(|fill| fill.is_whole());
        newest.or(pending.whole.as_ref()).filter(|fill| !self.is_removed(fill)).cloned()
    }

    /// Whether the answer was purged since it was requested, perhaps by another process. Such an
    /// answer is neither stored nor shared.
    pub(crate) fn is_removed(&self, fill: &Fill) -> bool {
        let fill::Asked { key, since } = fill.asked();
        self.index.is_removed(&key, since)
    }

    /// Makes this the answer that is being received.
    pub fn begin(&self, key: CacheKey, fill: Arc<Fill>) {
        if fill.is_storable() && !self.is_removed(&fill) {
            self.fills().entry(key).or_default().newest = Some(fill);
        }
    }

    /// Notes that the answer was received completely. An older one that is being written will not
    /// be stored. `now` is the index's time.
    pub fn received_whole(&self, key: CacheKey, fill: &Arc<Fill>, now: u64) {
        if !fill.is_storable() || self.is_removed(fill) {
            return;
        }
        self.index.arrives(&key, now, writer::PATIENCE);
        let mut fills = self.fills();
        let pending = fills.entry(key).or_default();
        pending.newest.take_if(|newest| Arc::ptr_eq(newest, fill));
        if let Some(before) = pending.whole.replace(fill.clone())
            && !Arc::ptr_eq(&before, fill)
        {
            before.supersede();
        }
    }

    /// Removes `wanted` answers that are being received or written, so that they are not stored.
    /// Returns their keys. An answer without a head is removed only if its key is `main`.
    pub fn purge_fills(
        &self,
        main: Option<CacheKey>,
        wanted: impl Fn(&CacheEntry) -> bool,
    ) -> Vec<CacheKey> {
        let mut purged = Vec::new();
        self.fills().retain(|key, pending| {
            pending.retain(|fill| {
                let taken =
                    fill.known().map_or(main == Some(fill.asked().key), |entry| wanted(&entry));
                if taken {
                    fill.supersede();
                    purged.push(*key);
                }
                taken
            })
        });
        purged
    }

    /// Takes the lock for giving a key's file its name.
    pub(crate) fn lock_naming(&self, key: &CacheKey) -> Option<std::sync::MutexGuard<'_, ()>> {
        let lock = self.naming_locks.get(usize::from(key.0[0]) % NAMING_LOCKS)?;
        Some(lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes an answer that was stored or will not be.
    pub fn end(&self, key: &CacheKey, fill: &Arc<Fill>) {
        let mut fills = self.fills();
        let Some(pending) = fills.get_mut(key) else { return };
        if !pending.retain(|known| Arc::ptr_eq(known, fill)) {
            fills.remove(key);
        }
    }

    fn fills(&self) -> std::sync::MutexGuard<'_, HashMap<CacheKey, PendingAnswers>> {
        self.fills.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
