//! The sessions of a loop: found by their clients, limited in number, and ordered by which one makes room for another.
//!
//! A datagram may carry any sender's address, so a session costs its client nothing. There are at
//! most so many. When another one begins then, the oldest session ends that has no second datagram
//! after an answer. A client that has sent one is there and hears what it is told. It does not lose
//! its session to strangers. The kernel's connection tracking does the same (`nf_conntrack`:
//! ASSURED, early drop).

use std::collections::HashMap;
use std::hash::Hash;

/// The end of the list of sessions that may have to go.
const NONE: u32 = u32::MAX;

/// A session's place, as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
struct FlowSlot<K, V> {
    generation: u32,
    /// The key of the datagrams that belong to it, as long as they do.
    key: Option<K>,
    value: Option<V>,
    /// Its client has not come back after an answer.
    young: bool,
    /// Neighbours among the young ones; of a free slot, the next free one.
    older: u32,
    newer: u32,
}

/// All sessions.
#[derive(Debug)]
pub struct FlowTable<K, V> {
    most: usize,
    slots: Vec<FlowSlot<K, V>>,
    free: u32,
    by_client: HashMap<K, u32>,
    oldest: u32,
    newest: u32,
    len: usize,
}

/// What became of a session that was to begin.
#[derive(Debug, PartialEq, Eq)]
pub enum FlowStart<V> {
    /// It has.
    Yes,
    /// It has, and this one had to make room.
    Instead(V),
    /// There is no room, and no session that may make it.
    No,
}

impl<K: Clone + Eq + Hash, V> FlowTable<K, V> {
    /// For at most so many sessions.
    pub fn new(most: usize) -> FlowTable<K, V> {
        let (slots, by_client) = (Vec::new(), HashMap::new());
        let most = most.clamp(1, NONE as usize - 1);
        FlowTable { most, slots, free: NONE, by_client, oldest: NONE, newest: NONE, len: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The session that a client's datagram belongs to.
    pub fn find(&self, key: &K) -> Option<&V> {
        let slot = *self.by_client.get(key)?;
        self.slots.get(slot as usize)?.value.as_ref()
    }

    /// All sessions.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// A session begins; the client's datagrams are its from now on.
    pub fn begin(&mut self, key: K, make: impl FnOnce(Id) -> V) -> FlowStart<V> {
        let gone = match self.len < self.most {
            true => None,
            false if self.oldest == NONE => return FlowStart::No,
            false => self.take(self.oldest),
        };
        self.place(key, make);
        gone.map_or(FlowStart::Yes, FlowStart::Instead)
    }

    /// Its client came back after an answer: it stays until it ends by itself.
    pub fn assure(&mut self, id: Id) {
        if self.is(id) {
            self.unlink(id.slot);
        }
    }

    /// Its client's next datagram begins another session.
    pub fn let_go(&mut self, id: Id) {
        if self.is(id)
            && let Some(key) = self.slot(id.slot).and_then(|slot| slot.key.take())
        {
            self.by_client.remove(&key);
        }
    }

    /// It is over.
    pub fn end(&mut self, id: Id) {
        if self.is(id) {
            self.take(id.slot);
        }
    }

    fn slot(&mut self, slot: u32) -> Option<&mut FlowSlot<K, V>> {
        self.slots.get_mut(slot as usize)
    }

    fn is(&self, id: Id) -> bool {
        let slot = self.slots.get(id.slot as usize);
        slot.is_some_and(|slot| slot.generation == id.generation && slot.value.is_some())
    }

    fn place(&mut self, key: K, make: impl FnOnce(Id) -> V) {
        let at = match self.free {
            NONE => {
                self.slots.push(FlowSlot {
                    generation: 0,
                    key: None,
                    value: None,
                    young: false,
                    older: NONE,
                    newer: NONE,
                });
                self.slots.len() as u32 - 1
            }
            free => free,
        };
        // The session that had the key keeps its slot, but gets no more of its client's datagrams.
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
            (slot.key, slot.value, slot.young) = (Some(key), Some(make(id)), true);
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

    /// Takes a session out, and its slot is free.
    fn take(&mut self, at: u32) -> Option<V> {
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

    /// Takes it off the list of sessions that may have to go.
    fn unlink(&mut self, at: u32) {
        let Some(slot) = self.slot(at).filter(|slot| slot.young) else { return };
        slot.young = false;
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
        /// Of the session that began as this one, as long as it lasts.
        Assure(usize),
        LetGo(usize),
        End(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => (0u8..12).prop_map(Act::Begin),
            1 => (0usize..60).prop_map(Act::Assure),
            1 => (0usize..60).prop_map(Act::LetGo),
            1 => (0usize..60).prop_map(Act::End),
        ]
    }

    /// One session as plain as can be: its key while datagrams are its, and whether it may have to go.
    #[derive(Debug)]
    struct Plain {
        number: usize,
        key: Option<u8>,
        young: bool,
    }

    proptest! {
        /// The table is a list of sessions in the order in which they began.
        #[test]
        fn it_is_a_list(acts in prop::collection::vec(act(), 0..120), most in 1usize..6) {
            let mut table = FlowTable::new(most);
            let mut list: Vec<Plain> = Vec::new();
            let mut ids = Vec::new();
            for act in acts {
                match act {
                    Act::Begin(key) => {
                        let number = ids.len();
                        let goes = list.iter().position(|plain| plain.young);
                        let goes = (list.len() == most).then_some(goes);
                        let make = |id| {
                            ids.push(id);
                            number
                        };
                        match table.begin(key, make) {
                            FlowStart::No => {
                                prop_assert_eq!(goes, Some(None));
                                continue;
                            }
                            FlowStart::Yes => prop_assert_eq!(goes, None),
                            FlowStart::Instead(gone) => {
                                let at = goes.flatten().unwrap();
                                prop_assert_eq!(list.remove(at).number, gone);
                            }
                        }
                        for plain in list.iter_mut().filter(|plain| plain.key == Some(key)) {
                            plain.key = None;
                        }
                        list.push(Plain { number, key: Some(key), young: true });
                    }
                    Act::Assure(n) | Act::LetGo(n) | Act::End(n) if n >= ids.len() => {}
                    Act::Assure(n) => {
                        table.assure(ids[n]);
                        list.iter_mut().filter(|p| p.number == n).for_each(|p| p.young = false);
                    }
                    Act::LetGo(n) => {
                        table.let_go(ids[n]);
                        list.iter_mut().filter(|p| p.number == n).for_each(|p| p.key = None);
                    }
                    Act::End(n) => {
                        table.end(ids[n]);
                        list.retain(|plain| plain.number != n);
                    }
                }
                prop_assert_eq!(table.len(), list.len());
                prop_assert!(table.slots.len() <= most);
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
