//! Answers that are kept for later requests. This crate knows files, memory and time. Of HTTP it
//! knows only names and values of headers.
//!
//! A [`Cache`] is a directory with an [`Index`] in shared memory. It stores [`CacheEntry`] values:
//! what is known of an answer, its head as it was received, and its body. While an answer comes in,
//! it is a [`Fill`], from which any number of readers take it, and a [`writer`] writes it into a
//! file. A file gets its name only when it is complete, so that no incomplete file is ever found.
//!
//! - In: the key of a request; then the head and the pieces of a server's answer.
//! - Out: a stored answer from memory or its file, or a reader of the answer that still comes in.
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
pub use key::{CacheKey, Sameness, Variant};
pub use memory::{FileFacts, Memory, Object};
pub use overdue::{Late, Overdue};
pub use store::{CacheDirectory, Opened, read_entry, whole_blocks};
pub use tags::{MOST_TAGS, Tag, Tags};

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How a cache is kept. nginx: `proxy_cache_path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// Where its files are, and how they are spread over directories.
    pub place: CacheDirectory,
    /// New files grow where temporary files are, not in the cache's own directory.
    pub use_temp_path: bool,
    /// What was not used for so long is removed.
    pub inactive: Duration,
    /// Bytes that all files may take on the disk; `None`: any number.
    pub max_size: Option<u64>,
    /// Bytes that stay free on the file system.
    pub min_free: u64,
    /// How the loader paces itself.
    pub loader: Pace,
    /// How the manager paces itself.
    pub manager: Pace,
}

/// How work on many files is cut up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Files at once.
    pub files: usize,
    /// A pause after them.
    pub sleep: Duration,
    /// The longest time at once.
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
    /// How it is kept.
    pub settings: CacheSettings,
    /// What is in it.
    pub index: Index,
    /// What of it is in memory.
    pub memory: Memory,
    /// Its open files, for requests that may not keep answers in memory.
    pub open: Memory,
    /// Answers that are not in their files yet, by key.
    fills: Mutex<HashMap<CacheKey, Coming>>,
    /// Held while a file gets its name, so that of two answers of one key the newer one stays.
    turns: [Mutex<()>; TURNS],
    /// Answers that wait for the disk.
    backlog: backlog::Backlog,
    /// Files that no request waits for any more.
    pub overdue: Overdue,
    /// Answers that this process has removed and that are not counted yet.
    evicted: AtomicU64,
}

const TURNS: usize = 16;

/// Answers of one key that are not in its file yet.
#[derive(Debug, Default)]
struct Coming {
    /// The one that began to come in last.
    newest: Option<Arc<Fill>>,
    /// The one that came whole last, on its way into the file: it stays known while another one comes in, and until
    /// that one is whole, too.
    whole: Option<Arc<Fill>>,
}

impl Coming {
    fn both(&mut self) -> [&mut Option<Arc<Fill>>; 2] {
        [&mut self.newest, &mut self.whole]
    }

    /// Forgets those that `gone` names. True if others are left.
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
        let (memory, fills, turns) = (Memory::default(), Mutex::default(), Default::default());
        let (index, open) = (Index::new(zone), Memory::of_open_files());
        let (backlog, overdue) = (backlog::Backlog::default(), Overdue::default());
        let evicted = AtomicU64::new(0);
        Cache { settings, index, memory, open, fills, turns, backlog, overdue, evicted }
    }

    /// So many answers were removed to make room, or because they were not asked for.
    pub(crate) fn evicts(&self, n: usize) {
        self.evicted.fetch_add(n as u64, Relaxed);
    }

    /// How many this process has removed since this was asked.
    pub fn take_evicted(&self) -> u64 {
        if self.evicted.load(Relaxed) == 0 { 0 } else { self.evicted.swap(0, Relaxed) }
    }

    /// Its zone's name.
    pub fn name(&self) -> &str {
        self.index.name()
    }

    /// The answers at hand: in memory for requests that may keep some there, open files for the
    /// others.
    pub fn at_hand(&self, in_memory: bool) -> &Memory {
        if in_memory { &self.memory } else { &self.open }
    }

    /// A key's answer is at hand no more.
    pub fn let_go(&self, key: &CacheKey) {
        self.memory.remove(key);
        self.open.remove(key);
    }

    /// The answer of this key that is coming in, or that is on its way into its file.
    pub fn fill(&self, key: &CacheKey) -> Option<Arc<Fill>> {
        let fills = self.fills();
        let coming = fills.get(key)?;
        let fill = coming.newest.as_ref().or(coming.whole.as_ref()).cloned();
        fill.filter(|fill| !self.is_removed(fill))
    }

    /// The answer of this key that is whole, and on its way into its file.
    pub fn whole(&self, key: &CacheKey) -> Option<Arc<Fill>> {
        let fills = self.fills();
        let coming = fills.get(key)?;
        let newest = coming.newest.as_ref().filter(|fill| fill.is_whole());
        newest.or(coming.whole.as_ref()).filter(|fill| !self.is_removed(fill)).cloned()
    }

    /// What it answers was removed since it was asked for, perhaps by another process: it is neither stored nor shared.
    pub(crate) fn is_removed(&self, fill: &Fill) -> bool {
        let fill::Asked { key, since } = fill.asked();
        self.index.is_removed(&key, since)
    }

    /// From now on this is the one that comes in.
    pub fn begin(&self, key: CacheKey, fill: Arc<Fill>) {
        if fill.is_storable() && !self.is_removed(&fill) {
            self.fills().entry(key).or_default().newest = Some(fill);
        }
    }

    /// It has come whole: an older one need not be stored any more, however far that is on its way into its file. `now` is the
    /// index's time.
    pub fn came(&self, key: CacheKey, fill: &Arc<Fill>, now: u64) {
        if !fill.is_storable() || self.is_removed(fill) {
            return;
        }
        self.index.arrives(&key, now, writer::PATIENCE);
        let mut fills = self.fills();
        let coming = fills.entry(key).or_default();
        coming.newest.take_if(|newest| Arc::ptr_eq(newest, fill));
        if let Some(before) = coming.whole.replace(fill.clone())
            && !Arc::ptr_eq(&before, fill)
        {
            before.supersede();
        }
    }

    /// Takes out `wanted` answers that are coming in, and prevents that they are stored. Returns their keys. Answers without a
    /// known head stay, unless their key is `main`.
    pub fn purge_fills(
        &self,
        main: Option<CacheKey>,
        wanted: impl Fn(&CacheEntry) -> bool,
    ) -> Vec<CacheKey> {
        let mut purged = Vec::new();
        self.fills().retain(|key, coming| {
            coming.retain(|fill| {
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

    /// The turn to give a key's file its name.
    pub(crate) fn turn(&self, key: &CacheKey) -> Option<std::sync::MutexGuard<'_, ()>> {
        let turn = self.turns.get(usize::from(key.0[0]) % TURNS)?;
        Some(turn.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// It is over, or will not come.
    pub fn end(&self, key: &CacheKey, fill: &Arc<Fill>) {
        let mut fills = self.fills();
        let Some(coming) = fills.get_mut(key) else { return };
        if !coming.retain(|known| Arc::ptr_eq(known, fill)) {
            fills.remove(key);
        }
    }

    fn fills(&self) -> std::sync::MutexGuard<'_, HashMap<CacheKey, Coming>> {
        self.fills.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
