//! Shared dictionaries: values by key in a zone, for all loops of all workers.
//!
//! An entry is a record of the zone. Its name is made of the key; its contents are the key itself and, of
//! strings and lists, the value. Three words go with it: kind and flags, when it expires, and the value of a
//! number or boolean.

use sha1::{Digest, Sha1};
use weir_zone::{Locked, LockedEntry, RecordName};

mod list;

/// Words of value that an entry has.
pub const WORDS: usize = 3;
/// What the zones are used for.
pub const TAG: &str = "lua_shared_dict";
/// The same in `stream`: dictionaries of requests and of sessions are not the same ones.
pub const OF_SESSIONS: &str = "stream_lua_shared_dict";
/// The longest key.
const LONGEST: usize = 65535;

/// A value on its way into a dictionary.
#[derive(Debug, Clone, Copy)]
pub enum NewValue<'v> {
    /// A boolean.
    Boolean(bool),
    /// A number.
    Number(f64),
    /// A string.
    Text(&'v [u8]),
}

/// What stands at a key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadValue {
    /// Its kind, with what is no text.
    pub kind: Kind,
    /// Flags that were stored with it.
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

/// How a value is to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Whatever is there.
    Set,
    /// Only where nothing is.
    Add,
    /// Only where something is.
    Replace,
}

/// Why nothing was stored, in the words that scripts get.
pub type DictError = &'static str;

/// A dictionary, held by this thread until dropped.
pub struct Dict<'z> {
    table: Locked<'z>,
    now: u64,
}

impl<'z> Dict<'z> {
    /// A zone's table at a time.
    pub fn new(table: Locked<'z>, now: u64) -> Dict<'z> {
        Dict { table, now }
    }

    /// What is still valid at a key; a text is appended to `out`.
    pub fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<ReadValue> {
        let entry = self.find(key)?;
        self.table.touch(entry);
        (!self.is_stale(entry)).then(|| self.value(entry, key, out))
    }

    /// The same, even if its time is over, and whether it is.
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

    /// Stores a value for `ttl` milliseconds, 0 is for ever. True if others that were still valid had to
    /// make room, which they only do if `force` says so.
    pub fn store(
        &mut self,
        key: &[u8],
        (value, flags): (NewValue<'_>, u32),
        ttl: u64,
        (how, force): (How, bool),
    ) -> Result<bool, DictError> {
        let entry = self.find(key);
        let valid = entry.is_some_and(|entry| !self.is_stale(entry));
        match how {
            How::Add if valid => return Err("exists"),
            How::Replace if !valid => return Err("not found"),
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
        self.add(&name_of(key), (&contents, words), force)
    }

    /// Takes a value out.
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.find(key) {
            self.table.remove(entry);
        }
    }

    /// Adds to a number; `init` is where it begins if there is none, with its time to live.
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
            let forcible = self.store(key, (NewValue::Number(sum), 0), ttl, (How::Set, true))?;
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

    /// Milliseconds that a value has left: 0 for ever, and below 0 if its time is over but its place is not taken yet.
    /// `None` without such a key.
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

    /// Gives a value another time to live. False without such a key.
    pub fn expire(&mut self, key: &[u8], ttl: u64) -> bool {
        let Some(entry) = self.find(key).filter(|entry| !self.is_stale(*entry)) else {
            return false;
        };
        let expires = if ttl == 0 { 0 } else { self.now.saturating_add(ttl) };
        let (head, last) = (self.table.value(entry, 0), self.table.value(entry, 2));
        self.table.set_values(entry, [head, expires, last]);
        true
    }

    /// Keys of valid values, the least recently used first, so many at the most; 0 is all.
    pub fn keys(&self, most: usize) -> Vec<Vec<u8>> {
        let mut entries = self.entries();
        entries.retain(|entry| !self.is_stale(*entry));
        entries.truncate(if most == 0 { usize::MAX } else { most });
        entries.into_iter().map(|entry| self.key_and_rest(entry).0).collect()
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        while let Some(entry) = self.table.oldest() {
            self.table.remove(entry);
        }
    }

    /// Takes out what is no longer valid, so much at the most (0 is all), and says how much.
    pub fn clear_stale(&mut self, most: usize) -> usize {
        let mut stale: Vec<LockedEntry> = self.entries();
        stale.retain(|entry| self.is_stale(*entry));
        stale.truncate(if most == 0 { usize::MAX } else { most });
        for entry in &stale {
            self.table.remove(*entry);
        }
        stale.len()
    }

    /// Bytes that are free.
    pub fn free(&self) -> u64 {
        self.table.free()
    }

    fn entries(&self) -> Vec<LockedEntry> {
        self.table.entries().collect()
    }

    fn is_stale(&self, entry: LockedEntry) -> bool {
        let expires = self.table.value(entry, 1);
        // Kind 0: its writer was killed before it had a value.
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

    /// A new entry. Without room the least recently used go: expired ones, others if `force`.
    fn add(
        &mut self,
        name: &RecordName,
        (contents, words): (&[u8], [u64; WORDS]),
        force: bool,
    ) -> Result<bool, DictError> {
        if !self.table.could_hold(contents.len()) {
            return Err("no memory");
        }
        let mut forced = false;
        loop {
            if let Some(entry) = self.table.add_record(name, contents) {
                self.table.set_values(entry, words);
                return Ok(forced);
            }
            let Some(oldest) = self.table.oldest() else { return Err("no memory") };
            if !self.is_stale(oldest) {
                if !force {
                    return Err("no memory");
                }
                forced = true;
            }
            self.table.remove(oldest);
        }
    }
}

/// What a record of a value holds, and its words.
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

/// The key with its length, and these parts behind it.
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

/// Shorter keys are their own names.
const EXACT: usize = 32;

/// Before the key, in the contents of a record, stands its length.
const PREFIX: usize = 2;

/// Whether this can be a key; the error is the text that scripts get.
pub fn check(key: &[u8]) -> Result<(), DictError> {
    match key.len() {
        0 => Err("empty key"),
        1..=LONGEST => Ok(()),
        _ => Err("key too long"),
    }
}

/// A key of up to 31 bytes is its name with its length behind it; a longer one is hashed, and compared.
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
