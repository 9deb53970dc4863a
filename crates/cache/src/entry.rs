//! The head of a cache file, and its format.
//!
//! ```text
//! 0   magic, 8 bytes            48  variant, 16
//! 8   checksum of the rest      64  times, and once more at 104:
//! 12  status, 2 bytes               0   number, 4
//! 14  length of Vary, 2             4   checksum of the number and of what follows
//! 16  length of the key, 4          8   valid until
//! 20  length of the ETag, 4         16  may be used while it is updated, seconds
//! 24  length of the head, 4         24  may be used after an error, seconds
//! 28  flags, 4: authorized, HEAD    32  when it was received
//! 32  length of the body        144 key, Vary, ETag, head
//! 40  Last-Modified, or the     ..  body
//!     least number
//! ```
//!
//! Numbers are little-endian. The head is written when the body is complete. A file without it is
//! no cache file.
//!
//! A revalidated answer gets new times in its file while requests read the old ones. So there are
//! two records of times. The one with the higher number counts, and new times go to the other one.
//! A reader that finds a record half written uses the other. Nothing else changes in a file after
//! it got its name.

use crc32fast::Hasher;

use crate::key::{CacheKey, Variant};

const MAGIC: &[u8; 8] = b"weirca03";
/// Offset of the times.
const TIMES: usize = 64;
/// Bytes of each of the two records of times.
const RECORD: usize = 40;
/// Bytes before the key.
const FIXED: usize = TIMES + 2 * RECORD;
/// The most bytes before the body. An answer with more is not stored.
pub(crate) const LONGEST_HEAD: usize = 1 << 20;
/// The longest of each part. A longer one is damage.
const LONGEST: usize = 1 << 24;
const NONE: i64 = i64::MIN;
/// Flag: see [`CacheEntry::authorized`].
const AUTHORIZED: u32 = 1;
/// Flag: see [`CacheEntry::of_head`].
const OF_HEAD: u32 = 2;

/// Times of an answer, in seconds; points in time since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Freshness {
    /// When the answer becomes stale.
    pub valid_until: i64,
    /// For how long after that it may be used while it is updated (`stale-while-revalidate`).
    pub updating: i64,
    /// For how long after that it may be used if it cannot be updated (`stale-if-error`).
    pub error: i64,
    /// When it was received or revalidated.
    pub date: i64,
}

/// The metadata of an answer, and its head.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheEntry {
    /// Its status.
    pub status: u16,
    /// Its freshness.
    pub times: Freshness,
    /// `Last-Modified`
    pub last_modified: Option<i64>,
    /// `ETag`
    pub etag: Vec<u8>,
    /// The text of the cache key, to notice two keys with one hash.
    pub key: Vec<u8>,
    /// `Vary`; empty if the answer does not depend on the request's headers.
    pub vary: Vec<u8>,
    /// The key of the variant, if there is `Vary`.
    pub variant: Option<Variant>,
    /// The request had `Authorization`, so the answer may be for one user alone (RFC 9111, section
    /// 3.5).
    pub authorized: bool,
    /// The request was HEAD, so the body is missing.
    pub of_head: bool,
    /// The head as received.
    pub head: Vec<u8>,
}

/// An entry in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Its metadata and head.
    pub entry: CacheEntry,
    /// Offset of the body.
    pub body: u64,
    /// Length of the body.
    pub length: u64,
}

/// Why the beginning of a file is no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// More bytes are needed: this many in all.
    More(usize),
    /// The file is shorter than any entry.
    TooSmall,
    /// The file is of another program or version.
    Version,
    /// The file is damaged or incomplete.
    Damaged,
}

impl CacheEntry {
    /// Offset of the body in a file.
    pub fn size(&self) -> usize {
        FIXED + self.key.len() + self.vary.len() + self.etag.len() + self.head.len()
    }

    /// Whether the entry is short enough to be stored.
    pub fn fits(&self) -> bool {
        self.size() <= LONGEST_HEAD
    }

    /// Encodes the beginning of a file, for a body of this length.
    pub fn encode(&self, length: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.status.to_le_bytes());
        out.extend_from_slice(&(self.vary.len() as u16).to_le_bytes());
        for part in [&self.key, &self.etag, &self.head] {
            out.extend_from_slice(&(part.len() as u32).to_le_bytes());
        }
        let marks = if self.authorized { AUTHORIZED } else { 0 };
        let marks = marks | if self.of_head { OF_HEAD } else { 0 };
        out.extend_from_slice(&marks.to_le_bytes());
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&self.last_modified.unwrap_or(NONE).to_le_bytes());
        out.extend_from_slice(&self.variant.map_or([0; 16], |v| v.0));
        out.extend_from_slice(&self.times.record(1));
        out.extend_from_slice(&[0; RECORD]);
        for part in [&self.key, &self.vary, &self.etag, &self.head] {
            out.extend_from_slice(part);
        }
        let sum = checksum(&[between(&out, 12, TIMES), between(&out, FIXED, out.len())]);
        if let Some(place) = out.get_mut(8..12) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        out
    }

    /// Decodes the beginning of a file.
    ///
    /// # Errors
    ///
    /// Why the file cannot be used, or how many bytes are needed.
    pub fn decode(bytes: &[u8]) -> Result<Stored, Unusable> {
        if bytes.len() < FIXED {
            return Err(Unusable::TooSmall);
        }
        if bytes.get(..8) != Some(MAGIC) {
            return Err(Unusable::Version);
        }
        let numbers = Numbers(bytes);
        let lengths =
            [numbers.u32(16), u32::from(numbers.u16(14)), numbers.u32(20), numbers.u32(24)];
        let lengths = lengths.map(|n| n as usize);
        if lengths.iter().any(|n| *n > LONGEST) {
            return Err(Unusable::Damaged);
        }
        let body = FIXED + lengths.iter().sum::<usize>();
        if bytes.len() < body {
            return Err(Unusable::More(body));
        }
        let sealed = [between(bytes, 12, TIMES), between(bytes, FIXED, body)];
        let Some((times, ..)) = Freshness::newest(bytes) else { return Err(Unusable::Damaged) };
        if checksum(&sealed) != numbers.u32(8) {
            return Err(Unusable::Damaged);
        }
        let mut at = FIXED;
        let [key, vary, etag, head] = lengths.map(|len| {
            at += len;
            bytes.get(at - len..at).unwrap_or_default().to_vec()
        });
        let variant: [u8; 16] = numbers.array(48);
        let entry = CacheEntry {
            status: numbers.u16(12),
            times,
            last_modified: Some(numbers.i64(40)).filter(|n| *n != NONE),
            etag,
            key,
            variant: (!vary.is_empty()).then_some(CacheKey(variant)),
            authorized: numbers.u32(28) & AUTHORIZED != 0,
            of_head: numbers.u32(28) & OF_HEAD != 0,
            vary,
            head,
        };
        Ok(Stored { entry, body: body as u64, length: numbers.i64(32) as u64 })
    }
}

impl Freshness {
    fn record(&self, number: u32) -> [u8; RECORD] {
        let mut out = [0; RECORD];
        let times = [self.valid_until, self.updating, self.error, self.date];
        for (place, time) in out[8..].chunks_exact_mut(8).zip(times) {
            place.copy_from_slice(&time.to_le_bytes());
        }
        out[..4].copy_from_slice(&number.to_le_bytes());
        let sum = checksum(&[&out[..4], &out[8..]]);
        out[4..8].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// The current times in the beginning of a file, their number, and the offset of the other
    /// record.
    fn newest(head: &[u8]) -> Option<(Freshness, u32, usize)> {
        let [first, second] = [TIMES, TIMES + RECORD].map(|at| {
            let record = between(head, at, at + RECORD);
            let sum = checksum(&[between(record, 0, 4), between(record, 8, RECORD)]);
            let numbers = Numbers(record);
            (record.len() == RECORD && sum == numbers.u32(4)).then(|| {
                let times = Freshness {
                    valid_until: numbers.i64(8),
                    updating: numbers.i64(16),
                    error: numbers.i64(24),
                    date: numbers.i64(32),
                };
                (numbers.u32(0), times)
            })
        });
        let is_second = second.map(|(number, _)| number) > first.map(|(number, _)| number);
        let (number, times) = if is_second { second } else { first }?;
        Some((times, number, if is_second { TIMES } else { TIMES + RECORD }))
    }

    /// The record that puts these times into a file with this beginning, and its offset.
    pub(crate) fn renewal(&self, head: &[u8]) -> Option<([u8; RECORD], u64)> {
        let (_, number, at) = Freshness::newest(head)?;
        Some((self.record(number.saturating_add(1)), at as u64))
    }
}

fn between(bytes: &[u8], start: usize, end: usize) -> &[u8] {
    bytes.get(start..end).unwrap_or_default()
}

fn checksum(parts: &[&[u8]]) -> u32 {
    let mut sum = Hasher::new();
    parts.iter().for_each(|part| sum.update(part));
    sum.finalize()
}

/// Reads numbers from bytes. Missing bytes count as 0.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let bytes = self.0.get(at..at + N).and_then(|b| b.try_into().ok());
        bytes.unwrap_or([0; N])
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn i64(&self, at: usize) -> i64 {
        i64::from_le_bytes(self.array(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..40)
    }

    prop_compose! {
        fn entry()(
            status in any::<u16>(),
            times in any::<(i64, i64, i64, i64)>(),
            last_modified in prop::option::of(0i64..),
            parts in (bytes(), bytes(), bytes(), bytes()),
            variant in any::<[u8; 16]>(),
            marks: (bool, bool),
        ) -> CacheEntry {
            let (valid_until, updating, error, date) = times;
            let (key, vary, etag, head) = parts;
            let times = Freshness { valid_until, updating, error, date };
            let variant = (!vary.is_empty()).then_some(CacheKey(variant));
            let (authorized, of_head) = marks;
            CacheEntry {
                status, times, last_modified, etag, key, vary, variant, authorized, of_head, head,
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(entry in entry(), length in 0..i64::MAX as u64) {
            let bytes = entry.encode(length);
            prop_assert_eq!(bytes.len(), entry.size());
            let stored = CacheEntry::decode(&bytes).unwrap();
            prop_assert_eq!(stored.body as usize, bytes.len());
            prop_assert_eq!(stored.length, length);
            prop_assert_eq!(stored.entry, entry);
        }

        #[test]
        fn no_damage_goes_unseen(entry in entry(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = entry.encode(7);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            // The second record of times is not used yet.
            let unused = TIMES + RECORD..FIXED;
            prop_assert_eq!(CacheEntry::decode(&bytes).is_err(), !unused.contains(&at));
        }

        #[test]
        fn new_times_are_seen_whole_or_not_at_all(
            entry in entry(),
            renewals in prop::collection::vec(any::<[i64; 4]>(), 1..5),
            cut in 0..=RECORD,
        ) {
            let mut bytes = entry.encode(7);
            let mut old = entry.times;
            for [valid_until, updating, error, date] in renewals {
                let new = Freshness { valid_until, updating, error, date };
                let (record, at) = new.renewal(&bytes).unwrap();
                let at = at as usize;
                bytes[at..at + cut].copy_from_slice(&record[..cut]);
                let seen = CacheEntry::decode(&bytes).unwrap().entry;
                prop_assert!(seen.times == old || seen.times == new);
                bytes[at..at + RECORD].copy_from_slice(&record);
                let whole = CacheEntry { times: new, ..entry.clone() };
                prop_assert_eq!(&CacheEntry::decode(&bytes).unwrap().entry, &whole);
                old = new;
            }
        }

        #[test]
        fn a_part_asks_for_the_rest(entry in entry(), at in any::<prop::sample::Index>()) {
            let bytes = entry.encode(7);
            let part = &bytes[..at.index(bytes.len())];
            match CacheEntry::decode(part).unwrap_err() {
                Unusable::More(n) => prop_assert_eq!(n, bytes.len()),
                other => prop_assert_eq!(other, Unusable::TooSmall),
            }
        }

        #[test]
        fn anything_may_be_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = CacheEntry::decode(&[MAGIC.as_slice(), &bytes].concat());
            let _ = CacheEntry::decode(&bytes);
        }
    }
}
