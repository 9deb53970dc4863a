//! A table of reused slots with a generation in each key, so that a stale key finds nothing.

/// Names a value of a [`Slots`] table. It never names a later value in the same slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Generations wrap here. A key and the kind of event share the 64 bits of an event's user data.
pub(crate) const GENERATIONS: u32 = 1 << 30;

pub(crate) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    /// The generation of new slots. It exceeds those of all slots that [`Slots::shrink`] removed.
    first: u32,
}

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Slots { entries: Vec::new(), free: Vec::new(), first: 0 }
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// The key of the next value to be inserted.
    fn vacant(&mut self) -> Key {
        let index = self.free.last().copied().unwrap_or_else(|| {
            let index = self.entries.len() as u32;
            self.entries.push(Entry { generation: self.first, value: None });
            self.free.push(index);
            index
        });
        let generation = self.entries.get(index as usize).map_or(0, |e| e.generation);
        Key { index, generation }
    }

    /// Inserts the value that `make` builds from its key.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(Key) -> T) -> Key {
        let key = self.vacant();
        self.free.pop();
        if let Some(entry) = self.entries.get_mut(key.index as usize) {
            entry.value = Some(make(key));
        }
        key
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        self.insert_with(|_| value)
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation == key.generation { entry.value.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation == key.generation { entry.value.as_mut() } else { None }
    }

    /// The value in slot `index`, of any generation.
    pub(crate) fn at(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_ref()
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = (entry.generation + 1) % GENERATIONS;
        self.free.push(key.index);
        Some(value)
    }

    /// Frees the memory of unused slots at the end of the table, if they are at least half of it.
    /// Keys stay valid.
    pub(crate) fn shrink(&mut self) {
        let used = self.entries.iter().rposition(|e| e.value.is_some()).map_or(0, |last| last + 1);
        if used > self.entries.len() / 2 {
            return;
        }
        let left = self.entries.drain(used..).map(|e| e.generation).max();
        self.first = (self.first.max(left.unwrap_or(0)) + 1) % GENERATIONS;
        self.entries.shrink_to_fit();
        self.free.retain(|&index| (index as usize) < used);
        self.free.shrink_to_fit();
    }

    /// Removes and returns all values. Called when the loop ends.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let mut all = Vec::new();
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if let Some(value) = entry.value.take() {
                entry.generation = (entry.generation + 1) % GENERATIONS;
                self.free.push(index as u32);
                all.push(value);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing_after_the_slot_is_reused() {
        let mut slots = Slots::new();
        let first = slots.insert("a");
        assert_eq!(slots.remove(first), Some("a"));
        let second = slots.insert("b");
        assert_eq!(second.index, first.index);
        assert_eq!(slots.get(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.get(second), Some(&"b"));
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn a_table_that_has_shrunk_keeps_keys_and_forgets_stale_ones() {
        let mut slots = Slots::new();
        let keys: Vec<Key> = (0..100).map(|n| slots.insert(n)).collect();
        for key in keys.iter().skip(3) {
            slots.remove(*key);
        }
        slots.remove(keys[1]);
        slots.shrink();
        assert!(slots.entries.capacity() < 10 && slots.free.capacity() < 10);
        assert_eq!((slots.get(keys[0]), slots.get(keys[2]), slots.len()), (Some(&0), Some(&2), 2));
        for n in 0..200 {
            slots.insert(n);
        }
        assert!(keys.iter().skip(3).all(|key| slots.get(*key).is_none()));
        assert_eq!(slots.len(), 202);
    }
}
