//! Small answers that are asked for often, in memory. Each belongs to one version of its file.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::entry::Entry;
use crate::key::Key;

/// Answers longer than this share of the memory are not kept.
const SHARE: u64 = 16;
/// What an answer costs beside its bytes, about.
const OVERHEAD: u64 = 256;

/// The memory of a cache. It has none until somebody asks for some.
#[derive(Debug, Default)]
pub struct Memory {
    limit: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_key: HashMap<Key, Arc<Object>>,
    /// In the order in which they came; who was used since gets another round.
    order: VecDeque<Key>,
    size: u64,
}

/// An answer in memory.
#[derive(Debug)]
pub struct Object {
    /// What is known of it.
    pub entry: Arc<Entry>,
    /// Its body.
    pub body: Bytes,
    /// Which version of the file it is: the index's number and the file's.
    pub generation: u32,
    /// The file's number in its file system.
    pub inode: u64,
    /// When the file was last seen to be there, in milliseconds.
    checked: AtomicU64,
    used: AtomicBool,
}

impl Object {
    /// An answer whose file was seen now.
    pub fn new(entry: Arc<Entry>, body: Bytes, generation: u32, inode: u64, now: u64) -> Object {
        let (checked, used) = (AtomicU64::new(now), AtomicBool::new(false));
        Object { entry, body, generation, inode, checked, used }
    }

    fn size(&self) -> u64 {
        self.body.len() as u64 + self.entry.size() as u64 + OVERHEAD
    }

    /// Whether it is time to look for the file again; true to one who asks, who then does it.
    pub fn is_due(&self, now: u64, period: u64) -> bool {
        let checked = self.checked.load(Ordering::Relaxed);
        let due = now.saturating_sub(checked) >= period;
        let turn = || {
            let order = Ordering::Relaxed;
            self.checked.compare_exchange(checked, now, order, order).is_ok()
        };
        due && turn()
    }
}

impl Memory {
    /// Room for at least so many bytes.
    pub fn provide(&self, bytes: u64) {
        if self.limit() < bytes {
            self.limit.fetch_max(bytes, Ordering::Relaxed);
        }
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an answer of this length may be kept.
    pub fn fits(&self, length: u64) -> bool {
        length.saturating_add(OVERHEAD) <= self.limit() / SHARE
    }

    /// The answer of a key, in this version.
    pub fn get(&self, key: &Key, generation: u32) -> Option<Arc<Object>> {
        if self.limit() == 0 {
            return None;
        }
        let object = self.lock().by_key.get(key).cloned()?;
        object.used.store(true, Ordering::Relaxed);
        (object.generation == generation).then_some(object)
    }

    /// Keeps an answer.
    pub fn put(&self, key: Key, object: Object) {
        if object.size() > self.limit() / SHARE {
            return self.remove(&key);
        }
        let mut kept = self.lock();
        kept.size += object.size();
        match kept.by_key.insert(key, Arc::new(object)) {
            Some(old) => kept.size -= old.size(),
            None => kept.order.push_back(key),
        }
        kept.shrink(self.limit());
    }

    /// Forgets an answer.
    pub fn remove(&self, key: &Key) {
        let mut kept = self.lock();
        if let Some(old) = kept.by_key.remove(key) {
            kept.size -= old.size();
            kept.order.retain(|k| k != key);
        }
    }
}

impl Kept {
    fn shrink(&mut self, limit: u64) {
        while self.size > limit {
            let Some(key) = self.order.pop_front() else { return };
            let Some(object) = self.by_key.get(&key) else { continue };
            if object.used.swap(false, Ordering::Relaxed) {
                self.order.push_back(key);
                continue;
            }
            self.size -= object.size();
            self.by_key.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(bytes: u64) -> Memory {
        let memory = Memory::default();
        memory.provide(bytes);
        memory
    }

    fn object(len: usize, generation: u32) -> Object {
        Object::new(Arc::default(), Bytes::from(vec![0; len]), generation, 0, 1000)
    }

    #[test]
    fn a_version_is_found_and_another_is_not() {
        let memory = memory(1 << 20);
        let key = Key::of(b"a");
        memory.put(key, object(10, 1));
        assert!(memory.get(&key, 1).is_some());
        assert!(memory.get(&key, 2).is_none());
        memory.put(key, object(10, 2));
        assert!(memory.get(&key, 2).is_some());
        memory.remove(&key);
        assert!(memory.get(&key, 2).is_none());
        assert_eq!(memory.lock().size, 0);
    }

    #[test]
    fn what_is_used_stays() {
        let memory = memory(16 * 1000);
        let key = |n: u32| Key::of(&n.to_le_bytes());
        memory.put(key(0), object(600, 0));
        for n in 1..100 {
            memory.put(key(n), object(600, 0));
            assert!(memory.get(&key(0), 0).is_some(), "{n}");
        }
        assert!(memory.get(&key(1), 0).is_none());
        assert!(memory.lock().size <= 16_000);
        memory.put(key(0), object(1000, 0));
        assert!(memory.get(&key(0), 0).is_none());
        let off = Memory::default();
        off.put(key(0), object(0, 0));
        assert!(off.get(&key(0), 0).is_none());
    }

    #[test]
    fn one_looks_for_the_file() {
        let object = object(1, 1);
        assert!(!object.is_due(1999, 1000));
        assert!(object.is_due(2000, 1000));
        assert!(!object.is_due(2000, 1000));
    }
}
