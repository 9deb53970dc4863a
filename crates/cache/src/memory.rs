//! The memory tiers: popular answers in memory, or with their files open. Each belongs to one
//! version of its cache file.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::body::{self, StoredBody};
use crate::entry::CacheEntry;
use crate::key::CacheKey;

/// An answer that needs more than this share of the memory is not kept.
const SHARE: u64 = 16;
/// About the bytes that an answer takes beside its head and body, with values parsed from its head.
const OVERHEAD: u64 = 896;
/// Bytes for the metadata of files that are kept open.
const OPEN_LIMIT: u64 = 1 << 20;
/// The most files that are kept open. Few, since an open file that was removed still takes room on
/// the disk.
const OPEN_FILES: usize = 128;
/// There is one counter of uses for this many bytes of the limit.
const PER_COUNTER: u64 = 128;
/// The most answers that are examined to find one to evict.
const CHANCES: usize = 16;
/// How many answers a purge examines each time that it holds the lock.
const AT_ONCE: usize = 256;

/// A memory tier of a cache. Its limit is 0 until [`Memory::provide`].
#[derive(Debug)]
pub struct Memory {
    limit: AtomicU64,
    /// The most descriptors that bodies may take.
    files: usize,
    kept: Mutex<MemoryObjects>,
}

#[derive(Debug, Default)]
struct MemoryObjects {
    /// Each with its number in `order`.
    by_key: HashMap<CacheKey, (u64, Arc<Object>)>,
    /// In the order of insertion. An answer that was used gets a second chance (CLOCK).
    order: BTreeMap<u64, CacheKey>,
    /// The next number.
    next: u64,
    size: u64,
    files: usize,
    uses: Uses,
}

/// Estimates how often keys were requested recently (a count-min sketch, as in TinyLFU). A key has
/// four counters, shared with other keys, and its count is the smallest of them. Only the smallest
/// are incremented. From time to time all are halved.
#[derive(Debug, Default)]
struct Uses {
    counters: Vec<u8>,
    /// Increments since the counters were halved.
    added: usize,
}

impl Uses {
    fn places(&self, key: &CacheKey) -> [usize; 4] {
        let (words, _) = key.0.as_chunks::<4>();
        let place = |i: usize| words.get(i).map_or(0, |word| u32::from_le_bytes(*word) as usize);
        [0, 1, 2, 3].map(|i| place(i) % self.counters.len().max(1))
    }

    fn of(&self, key: &CacheKey) -> u8 {
        let counters = self.places(key).map(|at| self.counters.get(at).copied());
        counters.into_iter().flatten().min().unwrap_or_default()
    }

    fn add(&mut self, key: &CacheKey, room: usize) {
        if self.counters.len() != room {
            self.counters = vec![0; room];
        }
        let least = self.of(key);
        for at in self.places(key) {
            if let Some(counter) = self.counters.get_mut(at).filter(|counter| **counter == least) {
                *counter = counter.saturating_add(1);
            }
        }
        self.added += 1;
        if self.added >= room {
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
            self.added = 0;
        }
    }
}

/// An answer in a memory tier.
#[derive(Debug)]
pub struct Object {
    /// Its metadata and head.
    pub entry: Arc<CacheEntry>,
    /// Its body.
    pub body: StoredBody,
    /// The generation in the index. With `inode`, it identifies the version of the file.
    pub generation: u32,
    /// The file's inode number.
    pub inode: u64,
    /// When the file was last found to exist, in milliseconds.
    checked: AtomicU64,
    /// A request is checking whether the file exists.
    checking: AtomicBool,
    used: AtomicBool,
    derived: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Object {
    /// An answer whose file exists now.
    pub fn new(
        entry: Arc<CacheEntry>,
        body: StoredBody,
        generation: u32,
        inode: u64,
        now: u64,
    ) -> Object {
        let (checked, checking, used) = (AtomicU64::new(now), <_>::default(), <_>::default());
        let derived = OnceLock::new();
        Object { entry, body, generation, inode, checked, checking, used, derived }
    }

    /// A value that readers derive from the head and share. The first reader finds it empty. `None`
    /// if the first reader used another type.
    pub fn derived<T: Default + Send + Sync + 'static>(&self) -> Option<&T> {
        self.derived.get_or_init(|| Box::<T>::default()).downcast_ref()
    }

    fn size(&self) -> u64 {
        self.body.memory() + self.entry.size() as u64 + OVERHEAD
    }

    /// Whether the existence of the file must be checked again. It must have been checked within
    /// `period`. In the second half of that, one caller is asked to check.
    pub fn check_due(&self, now: u64, period: u64) -> FileCheck {
        let age = now.saturating_sub(self.checked.load(Ordering::Relaxed));
        if age >= period {
            FileCheck::Due
        } else if age >= period / 2 && !self.checking.swap(true, Ordering::Relaxed) {
            FileCheck::Soon
        } else {
            FileCheck::Fresh
        }
    }

    /// Notes that the file exists.
    pub fn seen(&self, now: u64) {
        self.checked.store(now, Ordering::Relaxed);
        self.checking.store(false, Ordering::Relaxed);
    }
}

/// Whether the file of an answer in memory must be checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileCheck {
    /// It was checked recently, or another request is checking.
    Fresh,
    /// The caller is to check it. The answer may be used meanwhile.
    Soon,
    /// It must be checked before the answer is used.
    Due,
}

impl Default for Memory {
    fn default() -> Self {
        Memory { limit: AtomicU64::new(0), files: body::shared_files(), kept: Mutex::default() }
    }
}

impl Memory {
    /// The tier for files that are kept open.
    pub fn of_open_files() -> Memory {
        Memory { limit: AtomicU64::new(OPEN_LIMIT), files: OPEN_FILES, kept: Mutex::default() }
    }

    /// Raises the limit to at least this many bytes.
    pub fn provide(&self, bytes: u64) {
        if self.limit() < bytes {
            self.limit.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, MemoryObjects> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an answer of this length may be kept. If there is no room, it must have been
    /// requested more often recently than the answer that it would evict. So a long scan of answers
    /// does not evict those that are used as often.
    pub fn admits(&self, key: &CacheKey, length: u64) -> bool {
        let (size, limit) = (length.saturating_add(OVERHEAD), self.limit());
        if size > limit / SHARE {
            return false;
        }
        let mut kept = self.lock();
        let has_room = kept.size + size <= limit && kept.files < self.files;
        has_room || kept.by_key.contains_key(key) || {
            let uses = kept.uses.of(key);
            kept.next_evicted_uses().is_none_or(|next| uses > next)
        }
    }

    /// The answer of a key, if it has this text and this generation.
    pub fn get(&self, key: &CacheKey, text: &[u8], generation: u32) -> Option<Arc<Object>> {
        if self.limit() == 0 {
            return None;
        }
        let mut kept = self.lock();
        kept.uses.add(key, (self.limit() / PER_COUNTER) as usize);
        let object = kept.get(key).cloned()?;
        drop(kept);
        object.used.store(true, Ordering::Relaxed);
        (object.generation == generation && object.entry.key == text).then_some(object)
    }

    /// Adds an answer. One without a generation is not kept, since it could not be distinguished
    /// from another version.
    pub fn put(&self, key: CacheKey, object: Object) {
        if object.generation == 0 || object.size() > self.limit() / SHARE {
            return self.remove(&key);
        }
        let mut kept = self.lock();
        kept.insert(key, Arc::new(object));
        kept.shrink(self.limit(), self.files);
    }

    /// Updates the times of an answer that was revalidated, if it is the same answer. `generation`
    /// is its new one, if it has one.
    pub fn renew(&self, key: &CacheKey, entry: &CacheEntry, generation: Option<u32>) {
        let mut kept = self.lock();
        let Some(old) = kept.get(key).cloned() else { return };
        let same = (&old.entry.head, &old.entry.key, old.entry.variant)
            == (&entry.head, &entry.key, entry.variant);
        if !same {
            return kept.remove(key);
        }
        let checked = old.checked.load(Ordering::Relaxed);
        let (entry, generation) = (Arc::new(entry.clone()), generation.unwrap_or(old.generation));
        let new = Object::new(entry, old.body.clone(), generation, old.inode, checked);
        new.used.store(true, Ordering::Relaxed);
        kept.insert(*key, Arc::new(new));
    }

    /// Removes an answer.
    pub fn remove(&self, key: &CacheKey) {
        self.lock().remove(key);
    }

    /// Removes all `wanted` answers and returns their keys. The lock is released from time to time,
    /// for other threads.
    pub(crate) fn purge(&self, wanted: impl Fn(&CacheEntry) -> bool) -> Vec<CacheKey> {
        let (mut purged, mut from) = (Vec::new(), 0);
        loop {
            let mut kept = self.lock();
            let some: Vec<(u64, CacheKey)> =
                kept.order.range(from..).take(AT_ONCE).map(|(n, key)| (*n, *key)).collect();
            let Some((last, _)) = some.last() else { return purged };
            from = last + 1;
            for (_, key) in some {
                if kept.get(&key).is_some_and(|object| wanted(&object.entry)) {
                    kept.remove(&key);
                    purged.push(key);
                }
            }
            drop(kept);
            std::thread::yield_now();
        }
    }

    /// Removes this answer, unless another one has replaced it.
    pub fn remove_this(&self, key: &CacheKey, object: &Arc<Object>) {
        let mut kept = self.lock();
        if kept.get(key).is_some_and(|known| Arc::ptr_eq(known, object)) {
            kept.remove(key);
        }
    }
}

impl MemoryObjects {
    fn count(&mut self, object: &Object) {
        self.size += object.size();
        self.files += object.body.files();
    }

    fn discount(&mut self, object: &Object) {
        self.size -= object.size();
        self.files -= object.body.files();
    }

    fn get(&self, key: &CacheKey) -> Option<&Arc<Object>> {
        self.by_key.get(key).map(|(_, object)| object)
    }

    /// Inserts at the end of the order, or replaces the answer of the same key in its place.
    fn insert(&mut self, key: CacheKey, object: Arc<Object>) {
        self.count(&object);
        match self.by_key.get_mut(&key) {
            Some((_, known)) => {
                let old = std::mem::replace(known, object);
                self.discount(&old);
            }
            None => {
                let number = self.queue(key);
                self.by_key.insert(key, (number, object));
            }
        }
    }

    fn queue(&mut self, key: CacheKey) -> u64 {
        let number = self.next;
        self.next += 1;
        self.order.insert(number, key);
        number
    }

    fn remove(&mut self, key: &CacheKey) {
        if let Some((number, old)) = self.by_key.remove(key) {
            self.discount(&old);
            self.order.remove(&number);
        }
    }

    /// The count of the answer that is evicted next. Answers that were used are moved to the end of
    /// the order.
    fn next_evicted_uses(&mut self) -> Option<u8> {
        for _ in 0..CHANCES {
            let (_, key) = self.order.first_key_value()?;
            let (key, object) = (*key, self.get(key)?);
            if !object.used.swap(false, Ordering::Relaxed) {
                return Some(self.uses.of(&key));
            }
            self.order.pop_first();
            let number = self.queue(key);
            self.by_key.get_mut(&key).into_iter().for_each(|known| known.0 = number);
        }
        self.order.first_key_value().map(|(_, key)| self.uses.of(key))
    }

    fn shrink(&mut self, limit: u64, files: usize) {
        while self.size > limit || self.files > files {
            let Some((_, key)) = self.order.pop_first() else { return };
            let Some((_, object)) = self.by_key.remove(&key) else { continue };
            if object.used.swap(false, Ordering::Relaxed) {
                let number = self.queue(key);
                self.by_key.insert(key, (number, object));
            } else {
                self.discount(&object);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use weir_engine::FilePool;

    fn memory(bytes: u64) -> Memory {
        let memory = Memory::default();
        memory.provide(bytes);
        memory
    }

    fn object(len: usize, generation: u32) -> Object {
        let body = StoredBody::Bytes(Bytes::from(vec![0; len]));
        Object::new(Arc::default(), body, generation, 0, 1000)
    }

    #[test]
    fn a_version_is_found_and_another_is_not() {
        let memory = memory(1 << 20);
        let key = CacheKey::of(b"a");
        memory.put(key, object(10, 1));
        assert!(memory.get(&key, b"", 1).is_some());
        assert!(memory.get(&key, b"", 2).is_none());
        memory.put(key, object(10, 2));
        assert!(memory.get(&key, b"", 2).is_some());
        memory.remove(&key);
        assert!(memory.get(&key, b"", 2).is_none());
        assert_eq!(memory.lock().size, 0);
    }

    #[test]
    fn two_keys_with_one_hash_are_told_apart() {
        let memory = memory(1 << 20);
        memory.put(CacheKey::of(b"a"), object(10, 1));
        assert!(memory.get(&CacheKey::of(b"a"), b"another", 1).is_none());
    }

    #[test]
    fn what_has_no_number_is_not_kept() {
        let memory = memory(1 << 20);
        memory.put(CacheKey::of(b"a"), object(10, 0));
        assert!(memory.get(&CacheKey::of(b"a"), b"", 0).is_none());
    }

    #[test]
    fn what_is_used_stays() {
        let memory = memory(16 * 1500);
        let key = |n: u32| CacheKey::of(&n.to_le_bytes());
        memory.put(key(0), object(300, 1));
        for n in 1..100 {
            memory.put(key(n), object(300, 1));
            assert!(memory.get(&key(0), b"", 1).is_some(), "{n}");
        }
        assert!(memory.get(&key(1), b"", 1).is_none());
        assert!(memory.lock().size <= 24_000);
        memory.put(key(0), object(1500, 1));
        assert!(memory.get(&key(0), b"", 1).is_none());
        let off = Memory::default();
        off.put(key(0), object(0, 1));
        assert!(off.get(&key(0), b"", 1).is_none());
    }

    #[test]
    fn a_row_of_answers_that_is_longer_than_the_memory_leaves_most_of_it() {
        let memory = memory(1 << 20);
        let key = |n: u32| CacheKey::of(&n.to_le_bytes());
        let (mut hits, many) = (0, (1 << 20) / (1024 + OVERHEAD) as u32 * 3 / 2);
        for _ in 0..5 {
            hits = 0;
            for n in 0..many {
                if memory.get(&key(n), b"", 1).is_some() {
                    hits += 1;
                } else if memory.admits(&key(n), 1024) {
                    memory.put(key(n), object(1024, 1));
                }
            }
        }
        // Without admission there would be no hits: each answer is evicted before it is requested
        // again.
        assert!(hits > many * 6 / 10, "{hits} of {many}");
    }

    #[test]
    fn what_is_asked_for_again_drives_out_what_is_not_used() {
        let memory = memory(1 << 20);
        let key = |n: u32| CacheKey::of(&n.to_le_bytes());
        let ask = |n: u32| {
            let is_there = memory.get(&key(n), b"", 1).is_some();
            if !is_there && memory.admits(&key(n), 1024) {
                memory.put(key(n), object(1024, 1));
            }
            is_there
        };
        (0..2000).for_each(|n| _ = ask(n));
        for _ in 0..3 {
            (5000..5300).for_each(|n| _ = ask(n));
        }
        assert!((5000..5300).filter(|n| ask(*n)).count() > 250);
    }

    #[test]
    fn what_was_made_of_a_head_is_there_for_the_next_reader() {
        let object = object(1, 1);
        let made = || object.derived::<OnceLock<u32>>().unwrap();
        assert_eq!(made().get(), None);
        made().set(1).unwrap();
        assert_eq!((made().get(), object.derived::<u64>()), (Some(&1), None));
    }

    #[test]
    fn one_looks_for_the_file_before_it_is_due() {
        let object = object(1, 1);
        assert_eq!(object.check_due(1499, 1000), FileCheck::Fresh);
        assert_eq!(object.check_due(1500, 1000), FileCheck::Soon);
        assert_eq!(object.check_due(1500, 1000), FileCheck::Fresh);
        assert_eq!(object.check_due(2000, 1000), FileCheck::Due);
        object.seen(2000);
        assert_eq!(object.check_due(2499, 1000), FileCheck::Fresh);
        assert_eq!(object.check_due(2500, 1000), FileCheck::Soon);
    }

    #[test]
    fn what_was_found_valid_is_valid_in_memory() {
        let memory = memory(1 << 20);
        let key = CacheKey::of(b"a");
        memory.put(key, object(10, 1));
        let mut entry = CacheEntry::default();
        entry.times.valid_until = 77;
        memory.renew(&key, &entry, Some(1));
        let old = memory.get(&key, b"", 1).unwrap();
        assert_eq!((old.entry.times.valid_until, old.body.memory()), (77, 10));
        entry.head = b"another".to_vec();
        memory.renew(&key, &entry, None);
        assert!(memory.get(&key, b"", 1).is_none());
        memory.put(key, object(10, 2));
        memory.remove_this(&key, &old);
        assert!(memory.get(&key, b"", 2).is_some());
        assert_eq!(memory.lock().order.len(), 1);
    }

    #[test]
    fn descriptors_are_counted() {
        let open = Memory::of_open_files();
        let pool = FilePool::default();
        let key = |n: usize| CacheKey::of(&n.to_le_bytes());
        let file = || {
            let null = std::fs::File::open("/dev/null").unwrap();
            Object::new(Arc::default(), StoredBody::Shared(pool.hold(null), 7), 1, 0, 1000)
        };
        for n in 0..2 * OPEN_FILES {
            open.put(key(n), file());
        }
        let counts = || {
            let kept = open.lock();
            (kept.files, kept.by_key.len())
        };
        assert_eq!(counts(), (OPEN_FILES, OPEN_FILES));
        open.put(key(2 * OPEN_FILES - 1), file());
        open.remove(&key(2 * OPEN_FILES - 2));
        assert_eq!(counts(), (OPEN_FILES - 1, OPEN_FILES - 1));
    }
}
