//! The index of a cache: a table in shared memory, so that all workers, and those of the next
//! configuration, know it.

use std::time::Duration;

use weir_zone::{Locked, LockedEntry, ZoneRef};

use crate::key::CacheKey;

/// Words of value that the zone must give to each entry.
pub const VALUES: usize = 5;

const STATE: usize = 0;
const SIZE: usize = 1;
const VALID: usize = 2;
const LOCK: usize = 3;
const SEEN: usize = 4;

const EXISTS: u64 = 1;
const UPDATING: u64 = 2;
/// A process has the whole of a new answer and writes it into its file.
const ARRIVING: u64 = 4;

/// The bits of [`VALID`]: below, until when an error stands for the answer, in seconds since 1970; above, the number of the
/// last removal.
const REMOVAL: u64 = 0xffff_ffff << 32;

/// The entry of the cache as a whole: what all files take on the disk, whether they are known, the last generation, the file system's
/// free and all bytes.
const WHOLE: &[u8] = b"";
const LAST: usize = VALID;
const DISK_FREE: usize = LOCK;
const DISK_SIZE: usize = SEEN;

/// The index of one cache.
#[derive(Debug)]
pub struct Index {
    zone: ZoneRef,
}

/// What is known of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// It should be in its file, of this generation: the number changes whenever the file does, and no other file of
    /// the cache has it or had it lately. 0 is no number.
    Stored(u32),
    /// It is not there.
    Absent,
    /// The answer was an error, which is kept for a while.
    Error(u16),
    /// It was not asked for often enough to be kept.
    Scarce,
    /// There is no room to remember it.
    NoRoom,
}

/// The right to update a key, until it is given back or has grown too old.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    key: CacheKey,
    lock: u64,
}

/// The process that updates an entry, and until when in milliseconds.
#[derive(Clone, Copy)]
struct Lock(u64);

/// The kernel gives no process a number that needs more.
const PID_BITS: u32 = 22;

impl Lock {
    fn new(until: u64) -> Lock {
        Lock(until << PID_BITS | u64::from(weir_zone::process()) & ((1 << PID_BITS) - 1))
    }

    /// It is not over, and its holder lives.
    fn holds(self, now: u64) -> bool {
        let pid = self.0 & ((1 << PID_BITS) - 1);
        self.0 >> PID_BITS > now && weir_zone::runs(pid as u32)
    }
}

/// The state of an entry: flags, 4 bits; an error's status, 12; how often it was asked for, 16; its generation, 32.
#[derive(Clone, Copy)]
struct EntryState(u64);

/// Statuses that may stand for an answer.
const ERRORS: std::ops::RangeInclusive<u16> = 300..=999;

/// The largest number of uses that is counted.
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

    /// The status of an error; 0: none.
    fn error(self) -> u16 {
        let status = (self.0 >> 4) as u16 & 0xfff;
        // A word in shared memory may have any value.
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

    /// The zone's name.
    pub fn name(&self) -> &str {
        self.zone.name()
    }

    /// The zone's time.
    pub fn msec(&self, at: std::time::Instant) -> u64 {
        self.zone.get().map_or(0, |zone| zone.msec(at))
    }

    fn lock(&self) -> Option<Locked<'_>> {
        self.zone.get().map(weir_zone::Zone::lock)
    }

    /// A request asks for a key: `uses` says how often it must be asked for, `wall` is the time of
    /// day. An entry that has to make room is added to `gone`: its file is to be removed.
    pub fn look(
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

    /// Whether all files are known: before that, one may be there that the index does not know.
    pub fn is_warm(&self) -> bool {
        self.lock().is_some_and(|table| warm(&table))
    }

    /// Whether a key has a file; `None` as long as not all files are known.
    pub fn has(&self, key: &CacheKey) -> Option<bool> {
        let table = self.lock().filter(warm)?;
        let entry = table.find(&key.0);
        Some(entry.is_some_and(|entry| EntryState(table.value(entry, STATE)).has(EXISTS)))
    }

    /// All files are known from now on.
    pub fn set_warm(&self) {
        self.change(WHOLE, |values| values[STATE] = 1);
    }

    /// Takes the right to update a key for `age`, unless another request has it.
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

    /// Whether a request has the right to update a key.
    #[cfg(test)]
    fn is_updating(&self, key: &CacheKey, now: u64) -> bool {
        self.holds(UPDATING, key, now)
    }

    /// Whether a key has this flag, and the process that has set it still counts.
    fn holds(&self, flag: u64, key: &CacheKey, now: u64) -> bool {
        let Some(table) = self.lock() else { return false };
        table.find(&key.0).is_some_and(|entry| {
            let state = EntryState(table.value(entry, STATE));
            state.has(flag) && Lock(table.value(entry, LOCK)).holds(now)
        })
    }

    /// This process has a whole answer for a key: its file will be there soon. It counts for `age`, or as long as the right to
    /// update the key that a request has, and until [`Index::arrived`].
    pub fn arrives(&self, key: &CacheKey, now: u64, age: Duration) {
        self.change(&key.0, |values| {
            let state = EntryState(values[STATE]);
            if !state.has(UPDATING) || !Lock(values[LOCK]).holds(now) {
                values[LOCK] = Lock::new(now.saturating_add(age.as_millis() as u64)).0;
            }
            values[STATE] = state.with(ARRIVING).0;
        });
    }

    /// The file of a key's new answer is there, or will not come.
    pub fn arrived(&self, key: &CacheKey) {
        let Some(mut table) = self.lock() else { return };
        let Some(entry) = table.find(&key.0) else { return };
        let state = EntryState(table.value(entry, STATE)).without(ARRIVING);
        table.set_value(entry, STATE, state.0);
    }

    /// Whether the file of a key's new answer will be there soon.
    pub fn is_arriving(&self, key: &CacheKey, now: u64) -> bool {
        self.holds(ARRIVING, key, now)
    }

    /// Gives the right to update back. What was taken out meanwhile does not come back by that.
    pub fn release(&self, ticket: Ticket) {
        let Some(mut table) = self.lock() else { return };
        let Some(entry) = table.find(&ticket.key.0) else { return };
        if table.value(entry, LOCK) == ticket.lock {
            let state = EntryState(table.value(entry, STATE)).without(UPDATING);
            table.set_value(entry, STATE, state.0);
        }
    }

    /// An error stands for the answer of a key until then.
    pub fn set_error(&self, key: &CacheKey, status: u16, until: i64) {
        self.change(&key.0, |values| {
            values[STATE] = EntryState(values[STATE]).with_error(status).0;
            values[VALID] &= REMOVAL;
            values[VALID] |= u64::from(u32::try_from(until.max(0)).unwrap_or(u32::MAX));
        });
    }

    /// A key has a file now that takes this size on the disk. The file's generation.
    pub fn stored(&self, key: &CacheKey, size: u64, now: u64, gone: &mut Vec<CacheKey>) -> u32 {
        let Some(mut table) = self.lock() else { return 0 };
        let Some(entry) = table.find(&key.0).or_else(|| add(&mut table, key, gone)) else {
            // Without an entry the file is neither found nor counted.
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

    /// The loader, or a request before it, has found a file that takes this size on the disk.
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

    /// What a key's file says is another thing now. The file's generation.
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

    /// The file of a key is gone, or of no use.
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

    /// Takes the entry that was not used for longest out of the index, if that is at least `idle`, or whatever it is
    /// where that is `None`. Says whether it has a file to be removed.
    pub fn expire(&self, now: u64, idle: Option<Duration>) -> Option<(CacheKey, bool)> {
        let mut table = self.lock()?;
        let mut text = Vec::with_capacity(16);
        // Entries that are being updated stay: a few may stand at the end.
        for _ in 0..20 {
            let entry = table.oldest()?;
            text.clear();
            table.key(entry, &mut text);
            let state = EntryState(table.value(entry, STATE));
            let Ok(key) = <[u8; 16]>::try_from(text.as_slice()) else {
                if table.len() <= 1 {
                    // Without files there are no bytes, whatever was written there.
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

    /// How long until the entry that was not used for longest has been idle for `idle`.
    pub fn next_expiry(&self, now: u64, idle: Duration) -> Option<Duration> {
        let mut table = self.lock()?;
        if let Some(whole) = table.find(WHOLE) {
            // It has no use of its own, so it never is the oldest.
            table.touch(whole);
        }
        let entry = table.oldest()?;
        let due = table.value(entry, SEEN).saturating_add(idle.as_millis() as u64);
        Some(Duration::from_millis(due.saturating_sub(now)))
    }

    /// Takes a key out of the index. True if it has a file.
    pub fn forget(&self, key: &CacheKey) -> bool {
        let Some(mut table) = self.lock() else { return false };
        let Some(entry) = table.find(&key.0) else { return false };
        let (exists, size) =
            (EntryState(table.value(entry, STATE)).has(EXISTS), table.value(entry, SIZE));
        table.remove(entry);
        count(&mut table, 0, size);
        exists
    }

    /// Takes out what a key has, and takes back the right to update it: what a request asks for now is not stored any more (see
    /// [`Index::is_removed`]). A key without an entry has no request on its way, and needs no mark. True if it has a file.
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

    /// The number that a request takes along when it asks a server: what is removed later has a higher one.
    pub fn last(&self) -> u32 {
        let Some(table) = self.lock() else { return 0 };
        table.find(WHOLE).map_or(0, |whole| table.value(whole, LAST) as u32)
    }

    /// Whether a key was removed since a server was asked with this number, or since a file got this generation.
    pub fn is_removed(&self, key: &CacheKey, since: u32) -> bool {
        let Some(table) = self.lock() else { return false };
        let Some(entry) = table.find(&key.0) else { return false };
        let removal = (table.value(entry, VALID) >> 32) as u32;
        // Numbers begin anew after the last one.
        removal != 0 && removal.wrapping_sub(since) as i32 > 0
    }

    /// What all files take on the disk, in bytes.
    pub fn size(&self) -> u64 {
        let Some(table) = self.lock() else { return 0 };
        table.find(WHOLE).map_or(0, |whole| table.value(whole, SIZE))
    }

    /// What all files take on the disk, and how many keys there are.
    pub fn fill(&self) -> (u64, u64) {
        let Some(table) = self.lock() else { return (0, 0) };
        let whole = table.find(WHOLE);
        let size = whole.map_or(0, |whole| table.value(whole, SIZE));
        (size, table.len().saturating_sub(u64::from(whole.is_some())))
    }

    /// Notes how many bytes of the file system are free, and how many it has.
    pub fn note_disk(&self, free: u64, size: u64) {
        let Some(mut table) = self.lock() else { return };
        let Some(whole) = table.find(WHOLE).or_else(|| table.add(WHOLE)) else { return };
        table.set_value(whole, DISK_FREE, free);
        table.set_value(whole, DISK_SIZE, size);
    }

    /// What was noted last of the file system: its free bytes, and all of them.
    pub fn disk(&self) -> Option<(u64, u64)> {
        let table = self.lock()?;
        let whole = table.find(WHOLE)?;
        let size = table.value(whole, DISK_SIZE);
        (size > 0).then(|| (table.value(whole, DISK_FREE), size))
    }

    /// Changes an entry, or a new one if the key has none.
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

/// A number that no file of the cache has. All keys share them, since what is known of a key may be forgotten while
/// others still have its answer at hand. 0 where there is no room to count.
fn next_generation(table: &mut Locked<'_>) -> u32 {
    let Some(whole) = table.find(WHOLE).or_else(|| table.add(WHOLE)) else { return 0 };
    let next = (table.value(whole, LAST) as u32).wrapping_add(1).max(1);
    table.set_value(whole, LAST, u64::from(next));
    next
}

/// What [`VALID`] says of the last removal of a key.
fn removal(table: &Locked<'_>, entry: LockedEntry) -> u64 {
    table.value(entry, VALID) & REMOVAL
}

/// Changes the size of the whole.
fn count(table: &mut Locked<'_>, more: u64, less: u64) {
    let Some(whole) = table.find(WHOLE).or_else(|| table.add(WHOLE)) else { return };
    let size = table.value(whole, SIZE).checked_add(more).and_then(|size| size.checked_sub(less));
    // A size that cannot be was spoilt.
    let size = size.unwrap_or_else(|| sum(table, whole));
    table.set_values(whole, [table.value(whole, STATE), size]);
}

/// Bytes of all files, added up anew.
#[cold]
fn sum(table: &Locked<'_>, whole: LockedEntry) -> u64 {
    let files = table
        .entries()
        .filter(|entry| *entry != whole && EntryState(table.value(*entry, STATE)).has(EXISTS));
    files.fold(0, |sum, entry| sum.saturating_add(table.value(entry, SIZE)))
}

/// A new entry; those that were not used for longest make room.
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
