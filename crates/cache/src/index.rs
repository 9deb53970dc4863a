//! The index of a cache: a table in shared memory, for all workers and for later configurations.

use std::time::Duration;

use weir_zone::{Locked, LockedEntry, ZoneRef};

use crate::key::CacheKey;

/// Words of value of each entry in the zone.
pub const VALUES: usize = 5;

const STATE: usize = 0;
const SIZE: usize = 1;
const VALID: usize = 2;
const LOCK: usize = 3;
const SEEN: usize = 4;

const EXISTS: u64 = 1;
const UPDATING: u64 = 2;
/// A process has received a complete new answer and is writing it into its file.
const ARRIVING: u64 = 4;

/// [`VALID`] has two halves. Low: until when an error stands for the answer, in seconds since 1970.
/// High: the number of the last removal. This mask is the high half.
const REMOVAL: u64 = 0xffff_ffff << 32;

/// The key of the entry for the cache as a whole: whether the index is loaded, the size of all
/// files on the disk, the last generation, and the free and total bytes of the file system.
const WHOLE: &[u8] = b"";
const LAST: usize = VALID;
const DISK_FREE: usize = LOCK;
const DISK_SIZE: usize = SEEN;

/// The index of one cache.
#[derive(Debug)]
pub struct Index {
    zone: ZoneRef,
}

/// The result of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The answer should be in its file, which has this generation. The number changes whenever the
    /// file does. No other file of the cache has it now or had it recently. 0 is no generation.
    Stored(u32),
    /// There is no answer.
    Absent,
    /// The answer is this error status, which is cached for a while.
    Error(u16),
    /// The key was not requested often enough to be stored (`proxy_cache_min_uses`).
    Scarce,
    /// The zone has no room for the key.
    NoRoom,
}

/// The cache lock of a key: the right to update it, until it is released or expires.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    key: CacheKey,
    lock: u64,
}

/// The holder of a cache lock: its process id, and the expiry in milliseconds.
#[derive(Clone, Copy)]
struct Lock(u64);

/// The kernel's process ids need no more bits (PID_MAX_LIMIT).
const PID_BITS: u32 = 22;

impl Lock {
    fn new(until: u64) -> Lock {
        Lock(until << PID_BITS | u64::from(weir_zone::process()) & ((1 << PID_BITS) - 1))
    }

    /// Whether the lock has not expired and its holder lives.
    fn holds(self, now: u64) -> bool {
        let pid = self.0 & ((1 << PID_BITS) - 1);
        self.0 >> PID_BITS > now && weir_zone::runs(pid as u32)
    }
}

/// The state of an entry: flags, 4 bits; status of an error, 12; number of requests, 16;
/// generation, 32.
#[derive(Clone, Copy)]
struct EntryState(u64);

/// Statuses that may be cached as errors.
const ERRORS: std::ops::RangeInclusive<u16> = 300..=999;

/// The largest count of requests.
const MOST_USES: u64 = 0xffff;

impl EntryState {
    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    fn with(self, flag: u64) -> EntryState {
        EntryState(self.0 | flag)
    }

    fn without(self, flag: u64) -> EntryState {
        EntryState(self.0 & !flag)
    }

    /// The status of an error; 0 for none.
    fn error(self) -> u16 {
        let status = (self.0 >> 4) as u16 & 0xfff;
        // A compromised process may write any value.
        if ERRORS.contains(&status) { status } else { 0 }
    }

    fn with_error(self, status: u16) -> EntryState {
        EntryState(self.0 & !0xfff0 | u64::from(status & 0xfff) << 4)
    }

    fn uses(self) -> u64 {
        self.0 >> 16 & MOST_USES
    }

    fn with_uses(self, uses: u64) -> EntryState {
        EntryState(self.0 & !(MOST_USES << 16) | uses.min(MOST_USES) << 16)
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn with_generation(self, generation: u32) -> EntryState {
        EntryState(self.0 & 0xffff_ffff | u64::from(generation) << 32)
    }
}

impl Index {
    /// An index in a zone with `VALUES` words of value.
    pub fn new(zone: ZoneRef) -> Index {
        Index { zone }
    }

    /// The zone's tag.
    pub fn tag(&self) -> &'static str {
        self.zone.purpose().tag
    }

    /// The zone's name.
    pub fn name(&self) -> &str {
        self.zone.name()
    }

    /// The zone's time, in milliseconds.
    pub fn msec(&self, at: std::time::Instant) -> u64 {
        self.zone.get().map_or(0, |zone| zone.msec(at))
    }

    fn lock(&self) -> Option<Locked<'_>> {
        self.zone.get().map(weir_zone::Zone::lock)
    }

    /// Looks a key up for a request. `uses`: the number of requests before an answer is stored.
    /// `wall`: the time of day. Keys that are evicted to make room are added to `gone`; the caller
    /// must remove their files.
    pub fn look_up(
        &self,
        key: &CacheKey,
        now: u64,
        wall: i64,
        uses: u64,
        gone: &mut Vec<CacheKey>,
    ) -> Lookup {
        let Some(mut table) = self.lock() else { return Lookup::NoRoom };
        let Some(entry) = table.find(&key.0) else {
            let Some(entry) = add(&mut table, key, gone) else { return Lookup::NoRoom };
            table.set_values(entry, [EntryState(0).with_uses(1).0, 0, 0, 0, now]);
            return if uses > 1 { Lookup::Scarce } else { Lookup::Absent };
        };
        table.touch(entry);
        let mut state = EntryState(table.value(entry, STATE));
        state = state.with_uses(state.uses() + 1);
        if state.error() != 0 && i64::from(table.value(entry, VALID) as u32) < wall {
            state = state.with_error(0);
        }
        table.set_value(entry, STATE, state.0);
        if table.value(entry, SEEN) != now {
            table.set_value(entry, SEEN, now);
        }
        match state {
            s if s.error() != 0 => Lookup::Error(s.error()),
            s if s.has(EXISTS) => Lookup::Stored(s.generation()),
            s if s.uses() >= uses.min(MOST_USES) => Lookup::Absent,
            _ => Lookup::Scarce,
        }
    }

    /// Whether the loader has finished. Before that, there may be files that the index does not
    /// have.
    pub fn is_warm(&self) -> bool {
        self.lock().is_some_and(|table| warm(&table))
    }

    /// Whether a key has a file. `None` before the loader has finished.
    pub fn has(&self, key: &CacheKey) -> Option<bool> {
        let table = self.lock().filter(warm)?;
        let entry = table.find(&key.0);
        Some(entry.is_some_and(|entry| EntryState(table.value(entry, STATE)).has(EXISTS)))
    }

    /// Notes that the loader has finished.
    pub fn set_warm(&self) {
        self.change(WHOLE, |values| values[STATE] = 1);
    }

    /// Takes the cache lock of a key for `age`, unless another request has it.
    pub fn take(&self, key: &CacheKey, now: u64, age: Duration) -> Option<Ticket> {
        let lock = Lock::new(now.saturating_add(age.as_millis() as u64)).0;
        let mut ticket = None;
        self.change(&key.0, |values| {
            if !EntryState(values[STATE]).has(UPDATING) || !Lock(values[LOCK]).holds(now) {
                values[STATE] = EntryState(values[STATE]).with(UPDATING).0;
                values[LOCK] = lock;
                ticket = Some(Ticket { key: *key, lock });
            }
        });
        ticket
    }

    /// Whether a request has the cache lock of a key.
    #[cfg(test)]
    fn is_updating(&self, key: &CacheKey, now: u64) -> bool {
        self.holds(UPDATING, key, now)
    }

    /// Whether a key has this flag, set by a process that lives and whose time has not expired.
    fn holds(&self, flag: u64, key: &CacheKey, now: u64) -> bool {
        let Some(table) = self.lock() else { return false };
        table.find(&key.0).is_some_and(|entry| {
            let state = EntryState(table.value(entry, STATE));
            state.has(flag) && Lock(table.value(entry, LOCK)).holds(now)
        })
    }

    /// Notes that this process has received a complete answer for a key, so its file will exist
    /// soon. The mark holds for `age`, or as long as a cache lock that is held, but not beyond
    /// [`Index::arrived`].
    pub fn arrives(&self, key: &CacheKey, now: u64, age: Duration) {
        self.change(&key.0, |values| {
            let state = EntryState(values[STATE]);
            if !state.has(UPDATING) || !Lock(values[LOCK]).holds(now) {
                values[LOCK] = Lock::new(now.saturating_add(age.as_millis() as u64)).0;
            }
            values[STATE] = state.with(ARRIVING).0;
        });
    }

    /// Removes the mark of [`Index::arrives`]: the file is written, or will not be.
    pub fn arrived(&self, key: &CacheKey) {
        let Some(mut table) = self.lock() else { return };
        let Some(entry) = table.find(&key.0) else { return };
        let state = EntryState(table.value(entry, STATE)).without(ARRIVING);
        table.set_value(entry, STATE, state.0);
    }

    /// Whether the file of a key's new answer will exist soon.
    pub fn is_arriving(&self, key: &CacheKey, now: u64) -> bool {
        self.holds(ARRIVING, key, now)
    }

    /// Releases a cache lock. An entry that was removed meanwhile is not added again.
    pub fn release(&self, ticket: Ticket) {
        let Some(mut table) = self.lock() else { return };
        let Some(entry) = table.find(&ticket.key.0) else { return };
        if table.value(entry, LOCK) == ticket.lock {
            let state = EntryState(table.value(entry, STATE)).without(UPDATING);
            table.set_value(entry, STATE, state.0);
        }
    }

    /// Caches an error for a key, until this time.
    pub fn set_error(&self, key: &CacheKey, status: u16, until: i64) {
        self.change(&key.0, |values| {
            values[STATE] = EntryState(values[STATE]).with_error(status).0;
            values[VALID] &= REMOVAL;
            values[VALID] |= u64::from(u32::try_from(until.max(0)).unwrap_or(u32::MAX));
        });
    }

    /// Notes that a new file was stored for a key, which takes this size on the disk. Returns its
    /// generation.
    pub fn stored(&self, key: &CacheKey, size: u64, now: u64, gone: &mut Vec<CacheKey>) -> u32 {
        let Some(mut table) = self.lock() else { return 0 };
        let Some(entry) = table.find(&key.0).or_else(|| add(&mut table, key, gone)) else {
            // Without an entry the file is neither found nor counted, so it is removed.
            gone.push(*key);
            return 0;
        };
        table.touch(entry);
        let old = EntryState(table.value(entry, STATE));
        let before = if old.has(EXISTS) { table.value(entry, SIZE) } else { 0 };
        let state = old.with(EXISTS).with_error(0).with_uses(old.uses().max(1));
        let state = state.with_generation(next_generation(&mut table));
        let (removal, lock) = (removal(&table, entry), table.value(entry, LOCK));
        table.set_values(entry, [state.0, size, removal, lock, now]);
        count(&mut table, size, before);
        state.generation()
    }

    /// Adds a file that the loader has found, or a request before the loader. `size` is its size on
    /// the disk.
    pub fn known(&self, key: &CacheKey, size: u64, now: u64) {
        let Some(mut table) = self.lock() else { return };
        let found = table.find(&key.0);
        let Some(entry) = found.or_else(|| table.add(&key.0)) else { return };
        let state = EntryState(table.value(entry, STATE));
        if !state.has(EXISTS) {
            let state = state.with(EXISTS).with_uses(state.uses().max(1));
            let state = state.with_generation(next_generation(&mut table));
            let (removal, lock) = (removal(&table, entry), table.value(entry, LOCK));
            table.set_values(entry, [state.0, size, removal, lock, now]);
            count(&mut table, size, 0);
        }
    }

    /// Notes that the content of a key's file has changed. Returns its new generation.
    pub fn changed(&self, key: &CacheKey) -> Option<u32> {
        let mut table = self.lock()?;
        let entry = table.find(&key.0)?;
        let state = EntryState(table.value(entry, STATE));
        state.has(EXISTS).then(|| {
            let state = state.with_generation(next_generation(&mut table));
            table.set_value(entry, STATE, state.0);
            state.generation()
        })
    }

    /// Notes that a key's file is gone or cannot be used.
    pub fn lost(&self, key: &CacheKey) {
        let Some(mut table) = self.lock() else { return };
        let Some(entry) = table.find(&key.0) else { return };
        let state = EntryState(table.value(entry, STATE));
        if state.has(EXISTS) {
            let size = table.value(entry, SIZE);
            let state = state.without(EXISTS);
            let removal = removal(&table, entry);
            let rest = [table.value(entry, LOCK), table.value(entry, SEEN)];
            table.set_values(entry, [state.0, 0, removal, rest[0], rest[1]]);
            count(&mut table, 0, size);
        }
    }

    /// Removes the least recently used entry, if it has been unused for `idle`; if that is `None`,
    /// in any case. Returns its key, and whether it has a file to remove.
    pub fn expire(&self, now: u64, idle: Option<Duration>) -> Option<(CacheKey, bool)> {
        let mut table = self.lock()?;
        let mut text = Vec::with_capacity(16);
        // Entries with a cache lock are kept and moved to the front. A few of them are skipped.
        for _ in 0..20 {
            let entry = table.oldest()?;
            text.clear();
            table.key(entry, &mut text);
            let state = EntryState(table.value(entry, STATE));
            let Ok(key) = <[u8; 16]>::try_from(text.as_slice()) else {
                if table.len() <= 1 {
                    // Only the entry of the whole cache is left. Its size must be 0, whatever a
                    // compromised process wrote.
                    if table.value(entry, SIZE) != 0 {
                        table.set_value(entry, SIZE, 0);
                    }
                    return None;
                }
                table.touch(entry);
                continue;
            };
            let seen = table.value(entry, SEEN);
            if idle.is_some_and(|idle| now.saturating_sub(seen) < idle.as_millis() as u64) {
                return None;
            }
            if state.has(UPDATING) && Lock(table.value(entry, LOCK)).holds(now) {
                table.touch(entry);
                continue;
            }
            let size = table.value(entry, SIZE);
            table.remove(entry);
            count(&mut table, 0, size);
            return Some((CacheKey(key), state.has(EXISTS)));
        }
        None
    }

    /// The time until the least recently used entry has been unused for `idle`.
    pub fn next_expiry(&self, now: u64, idle: Duration) -> Option<Duration> {
        let mut table = self.lock()?;
        if let Some(whole) = table.find(WHOLE) {
            // The entry of the whole cache is never evicted, so it is moved to the front.
            table.touch(whole);
        }
        let entry = table.oldest()?;
        let due = table.value(entry, SEEN).saturating_add(idle.as_millis() as u64);
        Some(Duration::from_millis(due.saturating_sub(now)))
    }

    /// Removes a key from the index. True if it has a file.
    pub fn forget(&self, key: &CacheKey) -> bool {
        let Some(mut table) = self.lock() else { return false };
        let Some(entry) = table.find(&key.0) else { return false };
        let (exists, size) =
            (EntryState(table.value(entry, STATE)).has(EXISTS), table.value(entry, SIZE));
        table.remove(entry);
        count(&mut table, 0, size);
        exists
    }

    /// Purges a key: removes its answer and its cache lock, and leaves a mark. Answers to requests
    /// that were sent before are not stored (see [`Index::is_removed`]). A key without an entry
    /// needs no mark, since no request for it is on its way. True if it has a file.
    pub fn remove(&self, key: &CacheKey) -> bool {
        let Some(mut table) = self.lock() else { return false };
        let Some(entry) = table.find(&key.0) else { return false };
        let removal = u64::from(next_generation(&mut table)) << 32;
        let before = EntryState(table.value(entry, STATE));
        let state = before.without(EXISTS | UPDATING | ARRIVING).with_error(0);
        let (size, seen) = (table.value(entry, SIZE), table.value(entry, SEEN));
        table.set_values(entry, [state.0, 0, removal, 0, seen]);
        count(&mut table, 0, size);
        before.has(EXISTS)
    }

    /// The number that a request notes when it asks a server. Later removals have higher numbers.
    pub fn last(&self) -> u32 {
        let Some(table) = self.lock() else { return 0 };
        table.find(WHOLE).map_or(0, |whole| table.value(whole, LAST) as u32)
    }

    /// Whether a key was purged after a request noted this number, or after a file got this
    /// generation.
    pub fn is_removed(&self, key: &CacheKey, since: u32) -> bool {
        let Some(table) = self.lock() else { return false };
        let Some(entry) = table.find(&key.0) else { return false };
        let removal = (table.value(entry, VALID) >> 32) as u32;
        // The numbers wrap around.
        removal != 0 && removal.wrapping_sub(since) as i32 > 0
    }

    /// Bytes that all files take on the disk.
    pub fn size(&self) -> u64 {
        let Some(table) = self.lock() else { return 0 };
        table.find(WHOLE).map_or(0, |whole| table.value(whole, SIZE))
    }

    /// Bytes that all files take on the disk, and the number of keys.
    pub fn fill(&self) -> (u64, u64) {
        let Some(table) = self.lock() else { return (0, 0) };
        let whole = table.find(WHOLE);
        let size = whole.map_or(0, |whole| table.value(whole, SIZE));
        (size, table.len().saturating_sub(u64::from(whole.is_some())))
    }

    /// Stores the free and total bytes of the file system.
    pub fn note_disk(&self, free: u64, size: u64) {
        let Some(mut table) = self.lock() else { return };
        let Some(whole) = table.find(WHOLE).or_else(|| table.add(WHOLE)) else { return };
        table.set_value(whole, DISK_FREE, free);
        table.set_value(whole, DISK_SIZE, size);
    }

    /// The last known free and total bytes of the file system.
    pub fn disk(&self) -> Option<(u64, u64)> {
        let table = self.lock()?;
        let whole = table.find(WHOLE)?;
        let size = table.value(whole, DISK_SIZE);
        (size > 0).then(|| (table.value(whole, DISK_FREE), size))
    }

    /// Changes an entry. Adds one if the key has none.
    fn change(&self, key: &[u8], change: impl FnOnce(&mut [u64; VALUES])) {
        let Some(mut table) = self.lock() else { return };
        let Some(entry) = table.find(key).or_else(|| table.add(key)) else { return };
        let mut values = [0; VALUES];
        for (i, value) in values.iter_mut().enumerate() {
            *value = table.value(entry, i);
        }
        change(&mut values);
        table.set_values(entry, values);
    }
}

fn warm(table: &Locked<'_>) -> bool {
    table.find(WHOLE).is_some_and(|whole| table.value(whole, STATE) != 0)
}

/// A new generation. All keys share the sequence, since the index may forget a key while processes
/// still have its answer in memory. 0 if the zone has no room for the counter.
fn next_generation(table: &mut Locked<'_>) -> u32 {
    let Some(whole) = table.find(WHOLE).or_else(|| table.add(WHOLE)) else { return 0 };
    let next = (table.value(whole, LAST) as u32).wrapping_add(1).max(1);
    table.set_value(whole, LAST, u64::from(next));
    next
}

/// The last removal of a key, as in [`VALID`].
fn removal(table: &Locked<'_>, entry: LockedEntry) -> u64 {
    table.value(entry, VALID) & REMOVAL
}

/// Changes the size of the whole cache.
fn count(table: &mut Locked<'_>, more: u64, less: u64) {
    let Some(whole) = table.find(WHOLE).or_else(|| table.add(WHOLE)) else { return };
    let size = table.value(whole, SIZE).checked_add(more).and_then(|size| size.checked_sub(less));
    // An overflow means that the size was damaged.
    let size = size.unwrap_or_else(|| sum(table, whole));
    table.set_values(whole, [table.value(whole, STATE), size]);
}

/// Adds up the sizes of all files.
#[cold]
fn sum(table: &Locked<'_>, whole: LockedEntry) -> u64 {
    let files = table
        .entries()
        .filter(|entry| *entry != whole && EntryState(table.value(*entry, STATE)).has(EXISTS));
    files.fold(0, |sum, entry| sum.saturating_add(table.value(entry, SIZE)))
}

/// Adds an entry. The least recently used entries are evicted to make room.
fn add(table: &mut Locked<'_>, key: &CacheKey, gone: &mut Vec<CacheKey>) -> Option<LockedEntry> {
    for _ in 0..40 {
        if let Some(entry) = table.add(&key.0) {
            return Some(entry);
        }
        let oldest = table.oldest()?;
        let mut text = Vec::with_capacity(16);
        table.key(oldest, &mut text);
        let state = EntryState(table.value(oldest, STATE));
        match <[u8; 16]>::try_from(text.as_slice()) {
            Ok(old) if !state.has(UPDATING) => {
                let size = table.value(oldest, SIZE);
                table.remove(oldest);
                count(table, 0, size);
                if state.has(EXISTS) {
                    gone.push(CacheKey(old));
                }
            }
            _ => table.touch(oldest),
        }
    }
    None
}

#[cfg(test)]
#[path = "index/tests.rs"]
mod tests;
