//! `open_file_cache`: files that stay open between requests. nginx: ngx_open_file_cache.c.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::opened::{FileError, Opened};

/// `open_file_cache` and the directives that tune it.
#[derive(Debug, Clone)]
pub struct OpenFiles {
    /// The cache, or `None` if it is off.
    pub cache: Option<FileCache>,
    /// `open_file_cache_valid`
    pub valid: Duration,
    /// `open_file_cache_min_uses`
    pub min_uses: u64,
    /// `open_file_cache_errors`
    pub errors: bool,
}

impl Default for OpenFiles {
    fn default() -> Self {
        OpenFiles { cache: None, valid: Duration::from_secs(60), min_uses: 1, errors: false }
    }
}

/// An `open_file_cache` line. Blocks that inherit it share the cache.
#[derive(Debug, Clone, Copy)]
pub struct FileCache {
    /// The number of the cache within the site.
    pub id: u32,
    /// The most files in the cache.
    pub max: u64,
    /// Files that were not used for this long are dropped.
    pub inactive: Duration,
}

/// The caches of a loop, by number.
#[derive(Debug, Default)]
pub struct Caches(Vec<Cache>);

/// A cache: a table of paths, and their order of use.
#[derive(Debug, Default)]
struct Cache {
    index: HashMap<Box<[u8]>, usize>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The most and the least recently used slot.
    ends: Option<(usize, usize)>,
}

#[derive(Debug)]
struct Slot {
    path: Box<[u8]>,
    file: CachedFile,
    checked: Instant,
    used: Instant,
    uses: u64,
    /// The next more recently used slot.
    newer: Option<usize>,
    older: Option<usize>,
}

#[derive(Debug)]
enum CachedFile {
    /// A file that was not used often enough to stay open.
    Counted,
    Open(Opened),
    Failed(FileError),
}

impl Caches {
    /// The cached result for a path, if it is still valid. Counts as a use.
    pub fn get(
        &mut self,
        conf: &OpenFiles,
        path: &[u8],
        now: Instant,
    ) -> Option<Result<Opened, FileError>> {
        let limits = conf.cache?;
        self.cache(limits).get(conf, path, now)
    }

    /// Caches the result of opening a path.
    pub fn put(
        &mut self,
        conf: &OpenFiles,
        path: &[u8],
        opened: &Result<Opened, FileError>,
        now: Instant,
    ) {
        let Some(limits) = conf.cache else { return };
        let cache = self.cache(limits);
        match opened {
            Err(_) if !conf.errors => cache.remove(path),
            Err(error) => cache.put(conf, limits, path, CachedFile::Failed(*error), now),
            Ok(opened) => cache.put(conf, limits, path, CachedFile::Open(opened.clone()), now),
        }
    }

    fn cache(&mut self, limits: FileCache) -> &mut Cache {
        let at = limits.id as usize;
        while self.0.len() <= at {
            self.0.push(Cache::default());
        }
        &mut self.0[at]
    }
}

impl Cache {
    fn get(
        &mut self,
        conf: &OpenFiles,
        path: &[u8],
        now: Instant,
    ) -> Option<Result<Opened, FileError>> {
        let &at = self.index.get(path)?;
        self.touch(at);
        let slot = &mut self.slots[at];
        slot.uses += 1;
        slot.used = now;
        if now.saturating_duration_since(slot.checked) >= conf.valid {
            return None;
        }
        match &slot.file {
            CachedFile::Counted => None,
            CachedFile::Open(opened) => Some(Ok(opened.clone())),
            CachedFile::Failed(error) => Some(Err(*error)),
        }
    }

    fn put(
        &mut self,
        conf: &OpenFiles,
        limits: FileCache,
        path: &[u8],
        file: CachedFile,
        now: Instant,
    ) {
        self.expire(limits, now);
        let at = match self.index.get(path) {
            Some(&at) => at,
            None => self.add(path, now),
        };
        let slot = &mut self.slots[at];
        let often = slot.uses >= conf.min_uses || matches!(file, CachedFile::Failed(_));
        slot.file = if often { file } else { CachedFile::Counted };
        (slot.checked, slot.used) = (now, now);
        while self.index.len() as u64 > limits.max {
            self.drop_oldest();
        }
    }

    fn add(&mut self, path: &[u8], now: Instant) -> usize {
        let slot = Slot {
            path: path.into(),
            file: CachedFile::Counted,
            checked: now,
            used: now,
            uses: 1,
            newer: None,
            older: None,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.index.insert(path.into(), at);
        self.link_first(at);
        at
    }

    /// Drops up to two files that were unused for `inactive`, as nginx does with each call.
    fn expire(&mut self, limits: FileCache, now: Instant) {
        for _ in 0..2 {
            let Some((_, oldest)) = self.ends else { return };
            if now.saturating_duration_since(self.slots[oldest].used) < limits.inactive {
                return;
            }
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some((_, oldest)) = self.ends {
            let path = std::mem::take(&mut self.slots[oldest].path);
            self.remove(&path);
        }
    }

    fn remove(&mut self, path: &[u8]) {
        let Some(at) = self.index.remove(path) else { return };
        self.unlink(at);
        let slot = &mut self.slots[at];
        (slot.file, slot.path) = (CachedFile::Counted, Box::default());
        self.free.push(at);
    }

    fn touch(&mut self, at: usize) {
        if self.ends.is_some_and(|(newest, _)| newest != at) {
            self.unlink(at);
            self.link_first(at);
        }
    }

    fn link_first(&mut self, at: usize) {
        let newest = self.ends.map(|(newest, _)| newest);
        (self.slots[at].newer, self.slots[at].older) = (None, newest);
        if let Some(newest) = newest {
            self.slots[newest].newer = Some(at);
        }
        self.ends = Some((at, self.ends.map_or(at, |(_, oldest)| oldest)));
    }

    fn unlink(&mut self, at: usize) {
        let (newer, older) = (self.slots[at].newer, self.slots[at].older);
        if let Some(newer) = newer {
            self.slots[newer].older = older;
        }
        if let Some(older) = older {
            self.slots[older].newer = newer;
        }
        self.ends = match (self.ends, newer, older) {
            (_, None, None) | (None, ..) => None,
            (Some((_, oldest)), None, Some(older)) => Some((older, oldest)),
            (Some((newest, _)), Some(newer), None) => Some((newest, newer)),
            (ends, Some(_), Some(_)) => ends,
        };
    }
}

#[cfg(test)]
mod tests;
