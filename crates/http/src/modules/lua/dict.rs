//! Shared dictionaries: values by key in a zone, for all loops of all workers.
//!
//! An entry is a record of the zone. Its name is derived from the key. Its contents are the key
//! and, for strings, the value. The values of a list are the entry's items. Three words belong to an
//! entry: kind and flags, the expiry time, and the value of a number or boolean.

use sha1::{Digest, Sha1};
use weir_zone::{Locked, LockedEntry, RecordName};

mod list;

/// The number of words of an entry.
pub const WORDS: usize = 3;
/// The tag of the zones of `http`.
pub const TAG: &str = "lua_shared_dict";
/// The tag of the zones of `stream`, whose dictionaries are separate.
pub const STREAM_TAG: &str = "stream_lua_shared_dict";
/// The longest key.
const LONGEST: usize = 65535;

/// A value to store.
#[derive(Debug, Clone, Copy)]
pub enum NewValue<'v> {
    /// A boolean.
    Boolean(bool),
    /// A number.
    Number(f64),
    /// A string.
    Text(&'v [u8]),
}

/// A value that was read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadValue {
    /// The kind, with the value of a number or boolean.
    pub kind: Kind,
    /// The flags that were stored with it.
    pub flags: u32,
}

/// Kinds of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A boolean.
    Boolean(bool),
    /// A number.
    Number(f64),
    /// A string.
    Text,
    /// A list.
    List,
}

/// When a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMode {
    /// Always.
    Set,
    /// Only if the key has no valid value.
    Add,
    /// Only if the key has a valid value.
    Replace,
}

/// Why an operation failed, in the words for scripts.
pub type DictError = &'static str;

/// A dictionary, locked by this thread until it is dropped.
pub struct Dict<'z> {
    table: Locked<'z>,
    now: u64,
}

impl<'z> Dict<'z> {
    /// A zone's table at this time.
    pub fn new(table: Locked<'z>, now: u64) -> Dict<'z> {
        Dict { table, now }
    }

    /// The valid value of a key. A string is appended to `out`.
    pub fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<ReadValue> {
        let entry = self.find(key)?;
        self.table.touch(entry);
        (!self.is_stale(entry)).then(|| self.value(entry, key, out))
    }

    /// The value of a key, even if it has expired, and whether it has.
    pub fn read_stale(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<(ReadValue, bool)> {
        let entry = self.find(key)?;
        self.table.touch(entry);
        Some((self.value(entry, key, out), self.is_stale(entry)))
    }

    fn value(&self, entry: LockedEntry, key: &[u8], out: &mut Vec<u8>) -> ReadValue {
        let (head, word) = (self.table.value(entry, 0), self.table.value(entry, 2));
        let kind = match head >> 32 {
            BOOLEAN => Kind::Boolean(word != 0),
            NUMBER => Kind::Number(f64::from_bits(word)),
            LIST => Kind::List,
            _ => {
                self.table.part(entry, (PREFIX + key.len(), usize::MAX), out);
                Kind::Text
            }
        };
        ReadValue { kind, flags: head as u32 }
    }

    /// Stores a value for `ttl` milliseconds; 0 is forever. With `force`, valid values are evicted
    /// if there is no room; returns whether any were.
    pub fn store(
        &mut self,
        key: &[u8],
        (value, flags): (NewValue<'_>, u32),
        ttl: u64,
        (how, force): (StoreMode, bool),
    ) -> Result<bool, DictError> {
        let entry = self.find(key);
        let valid = entry.is_some_and(|entry| !self.is_stale(entry));
        match how {
            StoreMode::Add if valid => return Err("exists"),
            StoreMode::Replace if !valid => return Err("not found"),
            _ => {}
        }
        let expires = if ttl == 0 { 0 } else { self.now.saturating_add(ttl) };
        let (contents, words) = record(key, value, flags, expires)?;
        if let Some(entry) = entry {
            if self.table.rewrite(entry, &contents, words) {
                return Ok(false);
            }
            self.table.remove(entry);
        }
        self.add(&name_of(key), (&contents, words), force).map(|(_, forced)| forced)
    }

    /// Removes a value.
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.find(key) {
            self.table.remove(entry);
        }
    }

    /// Adds to a number. Without a valid one, `init` has the first number and its time to live.
    pub fn increase(
        &mut self,
        key: &[u8],
        by: f64,
        init: Option<(f64, u64)>,
    ) -> Result<(f64, bool), DictError> {
        let valid = self.find(key).filter(|entry| !self.is_stale(*entry));
        let Some(entry) = valid else {
            let (first, ttl) = init.ok_or("not found")?;
            let sum = first + by;
            let forcible =
                self.store(key, (NewValue::Number(sum), 0), ttl, (StoreMode::Set, true))?;
            return Ok((sum, forcible));
        };
        let head = self.table.value(entry, 0);
        if head >> 32 != NUMBER {
            return Err("not a number");
        }
        let sum = f64::from_bits(self.table.value(entry, 2)) + by;
        let expires = self.table.value(entry, 1);
        self.table.touch(entry);
        self.table.set_values(entry, [head, expires, sum.to_bits()]);
        Ok((sum, false))
    }

    /// The milliseconds until a value expires: 0 for never, below 0 if it has expired but is still
    /// stored. `None` without such a key.
    pub fn left(&mut self, key: &[u8]) -> Option<i64> {
        let entry = self.find(key)?;
        let expires = self.table.value(entry, 1);
        if expires == 0 {
            return Some(0);
        }
        Some(match expires.wrapping_sub(self.now) as i64 {
            0 => -1,
            left => left,
        })
    }

    /// Sets the time to live of a value, even if it has expired. False without such a key.
    pub fn expire(&mut self, key: &[u8], ttl: u64) -> bool {
        let Some(entry) = self.find(key) else { return false };
        let expires = if ttl == 0 { 0 } else { self.now.saturating_add(ttl) };
        let (head, last) = (self.table.value(entry, 0), self.table.value(entry, 2));
        self.table.set_values(entry, [head, expires, last]);
        true
    }

    /// The keys of valid values, the least recently used first, at most `most`; 0 is all.
    pub fn keys(&self, most: usize) -> Vec<Vec<u8>> {
        let mut entries = self.entries();
        entries.retain(|entry| !self.is_stale(*entry));
        entries.truncate(if most == 0 { usize::MAX } else { most });
        entries.into_iter().map(|entry| self.key_and_rest(entry).0).collect()
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        while let Some(entry) = self.table.oldest() {
            self.table.remove(entry);
        }
    }

    /// Removes expired values, at most `most` (0 is all), and returns their number.
    pub fn clear_stale(&mut self, most: usize) -> usize {
        let mut stale: Vec<LockedEntry> = self.entries();
        stale.retain(|entry| self.is_stale(*entry));
        stale.truncate(if most == 0 { usize::MAX } else { most });
        for entry in &stale {
            self.table.remove(*entry);
        }
        stale.len()
    }

    /// The free bytes.
    pub fn free(&self) -> u64 {
        self.table.free()
    }

    fn entries(&self) -> Vec<LockedEntry> {
        self.table.entries().collect()
    }

    fn is_stale(&self, entry: LockedEntry) -> bool {
        let expires = self.table.value(entry, 1);
        // Kind 0: the writer was killed before it stored a value.
        (expires != 0 && expires <= self.now) || self.table.value(entry, 0) == 0
    }

    fn find(&self, key: &[u8]) -> Option<LockedEntry> {
        let entry = self.table.find_record(&name_of(key))?;
        if key.len() < EXACT {
            return Some(entry);
        }
        let mut own = Vec::new();
        self.table.part(entry, (PREFIX, key.len()), &mut own);
        (own == key).then_some(entry)
    }

    fn key_and_rest(&self, entry: LockedEntry) -> (Vec<u8>, Vec<u8>) {
        let mut contents = self.table.contents(entry);
        let length = contents.first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes));
        let rest = contents.split_off((2 + usize::from(length)).min(contents.len()));
        contents.drain(..2.min(contents.len()));
        (contents, rest)
    }

    /// Adds an entry, and says whether valid ones were removed for it. See [`Dict::make_room`].
    fn add(
        &mut self,
        name: &RecordName,
        (contents, words): (&[u8], [u64; WORDS]),
        force: bool,
    ) -> Result<(LockedEntry, bool), DictError> {
        if !self.table.could_hold(contents.len()) {
            return Err("no memory");
        }
        let mut forced = false;
        loop {
            if let Some(entry) = self.table.add_record(name, contents) {
                self.table.set_values(entry, words);
                return Ok((entry, forced));
            }
            forced |= self.make_room(force)?;
        }
    }

    /// Removes the least recently used entry if it has expired, or if `force`. Returns whether it
    /// was valid.
    fn make_room(&mut self, force: bool) -> Result<bool, DictError> {
        let oldest = self.table.oldest().ok_or("no memory")?;
        let valid = !self.is_stale(oldest);
        if valid && !force {
            return Err("no memory");
        }
        self.table.remove(oldest);
        Ok(valid)
    }
}

/// The contents and words of a value's record.
fn record(
    key: &[u8],
    value: NewValue<'_>,
    flags: u32,
    expires: u64,
) -> Result<(Vec<u8>, [u64; WORDS]), DictError> {
    let text = if let NewValue::Text(text) = value { text } else { &[] };
    let contents = contents_of(key, [text])?;
    let (kind, word) = match value {
        NewValue::Boolean(value) => (BOOLEAN, u64::from(value)),
        NewValue::Number(value) => (NUMBER, value.to_bits()),
        NewValue::Text(_) => (TEXT, 0),
    };
    Ok((contents, [kind << 32 | u64::from(flags), expires, word]))
}

/// The contents of a record: the key with its length, followed by these parts.
fn contents_of<const N: usize>(key: &[u8], parts: [&[u8]; N]) -> Result<Vec<u8>, DictError> {
    let length = u16::try_from(key.len()).map_err(|_| "key too long")?;
    let behind = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut contents = Vec::with_capacity(PREFIX + key.len() + behind);
    contents.extend_from_slice(&length.to_le_bytes());
    contents.extend_from_slice(key);
    parts.into_iter().for_each(|part| contents.extend_from_slice(part));
    Ok(contents)
}

const BOOLEAN: u64 = 1;
const NUMBER: u64 = 2;
const TEXT: u64 = 3;
const LIST: u64 = 4;

/// Keys below this length are the names of their records.
const EXACT: usize = 32;

/// The length of the prefix of a record's contents, which is the key's length.
const PREFIX: usize = 2;

/// Checks a key. The error is the text for scripts.
pub fn check(key: &[u8]) -> Result<(), DictError> {
    match key.len() {
        0 => Err("empty key"),
        1..=LONGEST => Ok(()),
        _ => Err("key too long"),
    }
}

/// The record's name. A key of up to 31 bytes is the name itself, with its length at the end. A
/// longer key is hashed, and compared when it is found.
fn name_of(key: &[u8]) -> RecordName {
    let mut name = [0; 32];
    match name.get_mut(..key.len()) {
        Some(place) if key.len() < EXACT => {
            place.copy_from_slice(key);
            name[31] = key.len() as u8;
        }
        _ => {
            name[..20].copy_from_slice(&Sha1::digest(key));
            name[20..28].copy_from_slice(&(key.len() as u64).to_le_bytes());
            name[31] = u8::MAX;
        }
    }
    name
}

#[cfg(test)]
mod tests;
