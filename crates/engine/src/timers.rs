//! A hierarchical timer wheel with a resolution of one millisecond. Insert and cancel take constant
//! time.
//!
//! There are six levels of 64 slots. Level 0 holds the timers of the current block of 64 ms, one
//! slot for each millisecond. A slot of a higher level covers 64 slots of the level below. A timer
//! is at the level of the highest 6-bit group in which its tick differs from the present one, and
//! moves down when its block begins. A timer beyond the top level (two years) waits in the farthest
//! slot.

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 6;
const NIL: u32 = u32::MAX;
/// The `place` of an unused entry.
const UNUSED: u16 = u16::MAX;

/// Names a pending timer. Once the timer has fired or was cancelled, it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerId {
    index: u32,
    generation: u32,
}

pub(crate) struct Wheel<T> {
    tick: u64,
    heads: [u32; LEVELS * SLOTS],
    occupied: [u64; LEVELS],
    entries: Vec<Entry<T>>,
    free: u32,
    len: usize,
    /// The generation of new entries. It exceeds those of all entries that `shrink` removed.
    first: u32,
}

struct Entry<T> {
    at: u64,
    prev: u32,
    next: u32,
    generation: u32,
    place: u16,
    payload: T,
}

impl<T: Copy> Wheel<T> {
    pub(crate) fn new() -> Self {
        Wheel {
            tick: 0,
            heads: [NIL; LEVELS * SLOTS],
            occupied: [0; LEVELS],
            entries: Vec::new(),
            free: NIL,
            len: 0,
            first: 0,
        }
    }

    /// The number of pending timers.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, at: u64, payload: T) -> TimerId {
        let index = self.allocate(at, payload);
        self.link(index);
        self.len += 1;
        let generation = self.entries[index as usize].generation;
        TimerId { index, generation }
    }

    /// Cancels a pending timer and returns its payload. None if it has fired.
    pub(crate) fn cancel(&mut self, id: TimerId) -> Option<T> {
        self.pending(id)?;
        self.unlink(id.index);
        self.release(id.index);
        self.entries.get(id.index as usize).map(|e| e.payload)
    }

    /// The payload of a pending timer.
    pub(crate) fn payload_mut(&mut self, id: TimerId) -> Option<&mut T> {
        self.pending(id)?;
        self.entries.get_mut(id.index as usize).map(|e| &mut e.payload)
    }

    /// A tick before which no timer fires; none without timers. It may be earlier than the first
    /// timer, which then first moves down a level.
    pub(crate) fn next(&self) -> Option<u64> {
        self.next_slot().map(|(_, at)| at)
    }

    /// Advances the wheel to `now` and appends the payloads of expired timers in the order of their
    /// ticks. Timers of one tick expire in the order in which they were set.
    pub(crate) fn advance(&mut self, now: u64, fired: &mut Vec<T>) {
        while let Some((place, at)) = self.next_slot() {
            if at > now {
                break;
            }
            self.tick = at;
            let newest = std::mem::replace(&mut self.heads[place], NIL);
            self.occupied[place / SLOTS] &= !(1 << (place % SLOTS));
            let mut index = self.oldest(newest);
            while index != NIL {
                let newer = self.entries[index as usize].prev;
                if self.entries[index as usize].at <= at {
                    fired.push(self.entries[index as usize].payload);
                    self.release(index);
                } else {
                    self.link(index);
                }
                index = newer;
            }
        }
        self.tick = self.tick.max(now);
    }

    /// Frees the memory of unused entries at the end, if they are at least half of all.
    pub(crate) fn shrink(&mut self) {
        let used = self.entries.iter().rposition(|e| e.place != UNUSED).map_or(0, |last| last + 1);
        if used > self.entries.len() / 2 {
            return;
        }
        let left = self.entries.drain(used..).map(|e| e.generation).max();
        self.first = self.first.max(left.unwrap_or(0)).wrapping_add(1);
        self.entries.shrink_to_fit();
        self.free = NIL;
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.place == UNUSED {
                entry.next = self.free;
                self.free = index as u32;
            }
        }
    }

    fn pending(&self, id: TimerId) -> Option<&Entry<T>> {
        let entry = self.entries.get(id.index as usize)?;
        (entry.generation == id.generation && entry.place != UNUSED).then_some(entry)
    }

    fn allocate(&mut self, at: u64, payload: T) -> u32 {
        if self.free == NIL {
            let index = self.entries.len() as u32;
            let fresh =
                Entry { at, prev: NIL, next: NIL, generation: self.first, place: UNUSED, payload };
            self.entries.push(fresh);
            return index;
        }
        let index = self.free;
        let entry = &mut self.entries[index as usize];
        self.free = entry.next;
        entry.at = at;
        entry.payload = payload;
        index
    }

    fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.place = UNUSED;
        entry.next = self.free;
        self.free = index;
        self.len -= 1;
    }

    /// The last entry of a slot's list, which is its oldest.
    fn oldest(&self, newest: u32) -> u32 {
        let mut index = newest;
        while index != NIL && self.entries[index as usize].next != NIL {
            index = self.entries[index as usize].next;
        }
        index
    }

    fn link(&mut self, index: u32) {
        let place = self.place(self.entries[index as usize].at);
        let head = self.heads[place];
        if head != NIL {
            self.entries[head as usize].prev = index;
        }
        let entry = &mut self.entries[index as usize];
        entry.prev = NIL;
        entry.next = head;
        entry.place = place as u16;
        self.heads[place] = index;
        self.occupied[place / SLOTS] |= 1 << (place % SLOTS);
    }

    fn unlink(&mut self, index: u32) {
        let Entry { prev, next, place, .. } = self.entries[index as usize];
        if next != NIL {
            self.entries[next as usize].prev = prev;
        }
        if prev != NIL {
            self.entries[prev as usize].next = next;
            return;
        }
        let place = place as usize;
        self.heads[place] = next;
        if next == NIL {
            self.occupied[place / SLOTS] &= !(1 << (place % SLOTS));
        }
    }

    /// The slot of a timer at `at`, counted over all levels.
    fn place(&self, at: u64) -> usize {
        let at = at.max(self.tick);
        let differs = (at ^ self.tick) | (SLOTS as u64 - 1);
        let level = ((63 - differs.leading_zeros()) / BITS) as usize;
        if level < LEVELS {
            return level * SLOTS + ((at >> (BITS * level as u32)) as usize) % SLOTS;
        }
        let top = LEVELS - 1;
        let (here, there) = (self.tick >> (BITS * top as u32), at >> (BITS * top as u32));
        top * SLOTS + (there.min(here + SLOTS as u64 - 1) as usize) % SLOTS
    }

    /// The next slot with timers, and the tick at which it begins. It is on the lowest level that
    /// has timers: timers of higher levels differ from the present tick in a higher group.
    fn next_slot(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|&bits| bits != 0)?;
        let shift = BITS * level as u32;
        let here = self.tick >> shift;
        let ahead = u64::from(
            self.occupied[level].rotate_right((here % SLOTS as u64) as u32).trailing_zeros(),
        );
        let slot = ((here + ahead) as usize) % SLOTS;
        Some((level * SLOTS + slot, ((here + ahead) << shift).max(self.tick)))
    }
}

#[cfg(test)]
mod tests;
