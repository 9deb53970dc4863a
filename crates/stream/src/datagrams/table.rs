//! The datagram sessions of a loop: found by client, limited in number, and evicted in order of
//! age.
//!
//! A datagram may carry any source address, so a session costs its client nothing, and their number
//! is limited. When the table is full, a new session evicts the oldest one whose client has sent
//! nothing after an answer. A client that has sent something then most likely received the answer,
//! so its address is real, and it does not lose its session to forged ones. The kernel's connection
//! tracking does the same (`nf_conntrack`: ASSURED, early drop).

use std::collections::HashMap;
use std::hash::Hash;

/// The end of a linked list of slots.
const NONE: u32 = u32::MAX;

/// A session's slot. The generation tells it from later sessions in the same slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
struct FlowSlot<K, V> {
    generation: u32,
    /// The key of its datagrams, while the session receives them.
    key: Option<K>,
    value: Option<V>,
    /// Whether it may be evicted: its client has not sent a datagram after an answer.
    evictable: bool,
    /// Neighbours in the list of evictable slots.
    older: u32,
    /// In a free slot, the next free one.
    newer: u32,
}

/// A table of sessions.
#[derive(Debug)]
pub struct FlowTable<K, V> {
    max: usize,
    slots: Vec<FlowSlot<K, V>>,
    free: u32,
    by_client: HashMap<K, u32>,
    oldest: u32,
    newest: u32,
    len: usize,
}

/// The result of adding a session.
#[derive(Debug, PartialEq, Eq)]
pub enum FlowStart<V> {
    /// It was added.
    Added,
    /// It was added, and this one was evicted for it.
    Evicted(V),
    /// The table is full, and no session may be evicted.
    Full,
}

impl<K: Clone + Eq + Hash, V> FlowTable<K, V> {
    /// A table of at most so many sessions.
    pub fn new(max: usize) -> FlowTable<K, V> {
        let (slots, by_client) = (Vec::new(), HashMap::new());
        let max = max.clamp(1, NONE as usize - 1);
        FlowTable { max, slots, free: NONE, by_client, oldest: NONE, newest: NONE, len: 0 }
    }

    /// The number of sessions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The session that receives datagrams with this key.
    pub fn find(&self, key: &K) -> Option<&V> {
        let slot = *self.by_client.get(key)?;
        self.slots.get(slot as usize)?.value.as_ref()
    }

    /// All sessions.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// Adds a session. Datagrams with this key go to it from now on.
    pub fn insert(&mut self, key: K, make: impl FnOnce(Id) -> V) -> FlowStart<V> {
        let gone = match self.len < self.max {
            true => None,
            false if self.oldest == NONE => return FlowStart::Full,
            false => self.remove_slot(self.oldest),
        };
        self.insert_slot(key, make);
        gone.map_or(FlowStart::Added, FlowStart::Evicted)
    }

    /// Makes a session safe from eviction: its client has sent a datagram after an answer.
    pub fn assure(&mut self, id: Id) {
        if self.is_current(id) {
            self.unlink(id.slot);
        }
    }

    /// Takes the key from a session: the client's next datagram begins another one.
    pub fn release_key(&mut self, id: Id) {
        if self.is_current(id)
            && let Some(key) = self.slot(id.slot).and_then(|slot| slot.key.take())
        {
            self.by_client.remove(&key);
        }
    }

    /// Removes a session.
    pub fn remove(&mut self, id: Id) {
        if self.is_current(id) {
            self.remove_slot(id.slot);
        }
    }

    fn slot(&mut self, slot: u32) -> Option<&mut FlowSlot<K, V>> {
        self.slots.get_mut(slot as usize)
    }

    fn is_current(&self, id: Id) -> bool {
        let slot = self.slots.get(id.slot as usize);
        slot.is_some_and(|slot| slot.generation == id.generation && slot.value.is_some())
    }

    fn insert_slot(&mut self, key: K, make: impl FnOnce(Id) -> V) {
        let at = match self.free {
            NONE => {
                self.slots.push(FlowSlot {
                    generation: 0,
                    key: None,
                    value: None,
                    evictable: false,
                    older: NONE,
                    newer: NONE,
                });
                self.slots.len() as u32 - 1
            }
            free => free,
        };
        // The previous session of this key keeps its slot, but receives no more datagrams.
        if let Some(before) = self.by_client.insert(key.clone(), at)
            && let Some(before) = self.slot(before)
        {
            before.key = None;
        }
        let newest = std::mem::replace(&mut self.newest, at);
        let mut id = Id { slot: at, generation: 0 };
        let mut next_free = NONE;
        if let Some(slot) = self.slots.get_mut(at as usize) {
            next_free = slot.newer;
            id.generation = slot.generation;
            (slot.key, slot.value, slot.evictable) = (Some(key), Some(make(id)), true);
            (slot.older, slot.newer) = (newest, NONE);
        }
        if self.free == at {
            self.free = next_free;
        }
        match self.slot(newest) {
            Some(newest) => newest.newer = at,
            None => self.oldest = at,
        }
        self.len += 1;
    }

    /// Removes the session of a slot, and frees the slot.
    fn remove_slot(&mut self, at: u32) -> Option<V> {
        self.unlink(at);
        let free = self.free;
        let slot = self.slot(at)?;
        let (key, value) = (slot.key.take(), slot.value.take());
        slot.generation = slot.generation.wrapping_add(1);
        slot.newer = free;
        if let Some(key) = key {
            self.by_client.remove(&key);
        }
        self.free = at;
        self.len -= 1;
        value
    }

    /// Removes a slot from the list of evictable ones.
    fn unlink(&mut self, at: u32) {
        let Some(slot) = self.slot(at).filter(|slot| slot.evictable) else { return };
        slot.evictable = false;
        let (older, newer) = (slot.older, slot.newer);
        (slot.older, slot.newer) = (NONE, NONE);
        match self.slot(older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.slot(newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Act {
        Begin(u8),
        /// For the session of this `Begin`, if it still exists. So do the others.
        Assure(usize),
        ReleaseKey(usize),
        End(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0u8..12).prop_map(Act::Begin),
            1 => (0usize..60).prop_map(Act::Assure),
            1 => (0usize..60).prop_map(Act::ReleaseKey),
            1 => (0usize..60).prop_map(Act::End),
        ]
    }

    /// A session of the model.
    #[derive(Debug)]
    struct Plain {
        number: usize,
        key: Option<u8>,
        evictable: bool,
    }

    proptest! {
        /// The table behaves like a plain list of sessions in the order in which they began.
        #[test]
        fn it_is_a_list(acts in prop::collection::vec(act(), 0..120), max in 1usize..6) {
            let mut table = FlowTable::new(max);
            let mut list: Vec<Plain> = Vec::new();
            let mut ids = Vec::new();
            for act in acts {
                match act {
                    Act::Begin(key) => {
                        let number = ids.len();
                        let goes = list.iter().position(|plain| plain.evictable);
                        let goes = (list.len() == max).then_some(goes);
                        let make = |id| {
                            ids.push(id);
                            number
                        };
                        match table.insert(key, make) {
                            FlowStart::Full => {
                                prop_assert_eq!(goes, Some(None));
                                continue;
                            }
                            FlowStart::Added => prop_assert_eq!(goes, None),
                            FlowStart::Evicted(gone) => {
                                let at = goes.flatten().unwrap();
                                prop_assert_eq!(list.remove(at).number, gone);
                            }
                        }
                        for plain in list.iter_mut().filter(|plain| plain.key == Some(key)) {
                            plain.key = None;
                        }
                        list.push(Plain { number, key: Some(key), evictable: true });
                    }
                    Act::Assure(n) | Act::ReleaseKey(n) | Act::End(n) if n >= ids.len() => {}
                    Act::Assure(n) => {
                        table.assure(ids[n]);
                        list.iter_mut().filter(|p| p.number == n).for_each(|p| p.evictable = false);
                    }
                    Act::ReleaseKey(n) => {
                        table.release_key(ids[n]);
                        list.iter_mut().filter(|p| p.number == n).for_each(|p| p.key = None);
                    }
                    Act::End(n) => {
                        table.remove(ids[n]);
                        list.retain(|plain| plain.number != n);
                    }
                }
                prop_assert_eq!(table.len(), list.len());
                prop_assert!(table.slots.len() <= max);
                for key in 0..12 {
                    let expected = list.iter().find(|plain| plain.key == Some(key));
                    prop_assert_eq!(table.find(&key), expected.map(|plain| &plain.number));
                }
                let mut there: Vec<usize> = table.iter().copied().collect();
                there.sort_unstable();
                prop_assert_eq!(there, list.iter().map(|plain| plain.number).collect::<Vec<_>>());
            }
        }
    }
}
