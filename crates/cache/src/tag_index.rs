//! The index of tags: files of records beside the answers. It survives a restart and takes no
//! memory.
//!
//! The directory `tags` has a file for each first byte of a tag. A record says that the answer of a
//! key was stored with a tag. It is appended before the answer gets its name, so every stored
//! answer has its records. A record may outlive its answer, so a purge also reads the answer's
//! head. When a file has doubled since it was cleaned, records of answers that are gone are
//! removed.
//!
//! ```text
//! file    0  magic, 8 bytes    8  records when it was cleaned last, 8    16  0
//! record  0  tag, 8 bytes      8  key, 16     24  time, seconds, 4       28  checksum of the rest, 4
//! ```

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use weir_engine::file_operation;

use crate::key::CacheKey;
use crate::store::CacheDirectory;
use crate::tags::{Tag, Tags};

const MAGIC: &[u8; 8] = b"weirtg01";
/// Bytes of a record, and of a file's head.
const RECORD: usize = 32;
/// A file with fewer records is not cleaned.
const FEW: u64 = 128;
/// A younger record is kept, since its answer may not have its name yet. In seconds.
const YOUNG: u32 = 3600;
/// How often a file is opened again if it is replaced meanwhile.
const TRIES: usize = 16;
/// How long a thread of the pool waits for the lock of a file, and the pauses between attempts. A
/// process may be stopped while it holds the lock.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);

/// A record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TagRecord {
    tag: Tag,
    key: CacheKey,
    time: u32,
}

impl TagRecord {
    fn encode(&self) -> [u8; RECORD] {
        let mut out = [0; RECORD];
        out[..8].copy_from_slice(&self.tag.0);
        out[8..24].copy_from_slice(&self.key.0);
        out[24..28].copy_from_slice(&self.time.to_le_bytes());
        let sum = crc32fast::hash(&out[..28]);
        out[28..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// `None` if the record is damaged.
    fn decode(bytes: &[u8; RECORD]) -> Option<TagRecord> {
        let (tag, rest) = bytes.split_first_chunk::<8>()?;
        let (key, rest) = rest.split_first_chunk::<16>()?;
        let (time, rest) = rest.split_first_chunk::<4>()?;
        let sum = u32::from_le_bytes(*rest.first_chunk::<4>()?);
        let time = u32::from_le_bytes(*time);
        let record = TagRecord { tag: Tag(*tag), key: CacheKey(*key), time };
        (crc32fast::hash(&bytes[..28]) == sum).then_some(record)
    }
}

/// Adds records of an answer that is about to be stored with these tags. `stays` returns whether a
/// key has an answer, or `None` if the index is not loaded yet.
///
/// # Errors
///
/// The error of the file system. The answer must not be stored, since it could not be purged.
pub(crate) fn note(
    place: &CacheDirectory,
    key: &CacheKey,
    tags: &Tags,
    stays: impl Fn(&CacheKey) -> Option<bool>,
) -> io::Result<()> {
    let time = now();
    // Tags are sorted, so those of one file are adjacent.
    for some in tags.all.chunk_by(|a, b| a.0[0] == b.0[0]) {
        let Some(first) = some.first() else { continue };
        let records = some.iter().map(|tag| TagRecord { tag: *tag, key: *key, time });
        let bytes: Vec<u8> = records.flat_map(|record| record.encode()).collect();
        append(&path_of(place, *first), &bytes, &stays)?;
    }
    Ok(())
}

/// The keys of answers that were stored with one of these tags.
///
/// # Errors
///
/// The error of the file system.
pub(crate) fn keys(place: &CacheDirectory, tags: &Tags) -> io::Result<Vec<CacheKey>> {
    let mut keys = Vec::new();
    for some in tags.all.chunk_by(|a, b| a.0[0] == b.0[0]) {
        let Some(first) = some.first() else { continue };
        let bytes = match std::fs::read(path_of(place, *first)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        keys.extend(records(&bytes).filter(|r| some.binary_search(&r.tag).is_ok()).map(|r| r.key));
    }
    keys.sort_unstable();
    keys.dedup();
    Ok(keys)
}

fn path_of(place: &CacheDirectory, tag: Tag) -> PathBuf {
    place.directory.join("tags").join(format!("{:02x}", tag.0[0]))
}

/// The records after the head.
fn records(bytes: &[u8]) -> impl Iterator<Item = TagRecord> {
    let (all, _) = bytes.as_chunks::<RECORD>();
    all.iter().skip(1).filter_map(TagRecord::decode)
}

fn head(cleaned: u64) -> [u8; RECORD] {
    let mut out = [0; RECORD];
    out[..8].copy_from_slice(MAGIC);
    out[8..16].copy_from_slice(&cleaned.to_le_bytes());
    out
}

fn append(
    path: &Path,
    records: &[u8],
    stays: impl Fn(&CacheKey) -> Option<bool>,
) -> io::Result<()> {
    let file = locked(path)?;
    let length = file.metadata()?.len();
    // A killed process may have left a part of a record, which is overwritten.
    let mut end = length - length % RECORD as u64;
    if end == 0 {
        file.write_all_at(&head(0), 0)?;
        end = RECORD as u64;
    }
    file_operation("write", path, || file.write_all_at(records, end))?;
    let count = (end + records.len() as u64) / RECORD as u64;
    let mut cleaned = [0; 8];
    file.read_exact_at(&mut cleaned, 8)?;
    if count > FEW.max(u64::from_le_bytes(cleaned).saturating_mul(2)) {
        clean(path, &file, stays)?;
    }
    Ok(())
}

/// Opens and locks a file, so that no other process changes it until it is closed.
fn locked(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let until = Instant::now() + PATIENCE;
    for _ in 0..TRIES {
        let file = match file_operation("open", path, || options.open(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let directory = path.parent().ok_or(io::ErrorKind::NotFound)?;
                DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
                options.open(path)?
            }
            opened => opened?,
        };
        lock(&file, until)?;
        // While this process waited for the lock, a cleaned file may have taken the name.
        if std::fs::metadata(path)
            .is_ok_and(|named| named.ino() == file.metadata().map_or(0, |f| f.ino()))
        {
            return Ok(file);
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

#[expect(clippy::disallowed_methods, reason = "a thread for file operations, which may wait")]
fn lock(file: &File, until: Instant) -> io::Result<()> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::ResourceBusy.into()),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
}

/// Writes a new file, without duplicates and without records of answers that are gone. It replaces
/// the old one while that is locked.
fn clean(path: &Path, file: &File, stays: impl Fn(&CacheKey) -> Option<bool>) -> io::Result<()> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
    file.read_exact_at(&mut bytes, 0)?;
    let now = now();
    let mut left: HashMap<(Tag, CacheKey), u32> = HashMap::new();
    for record in records(&bytes) {
        let young = now.saturating_sub(record.time) < YOUNG;
        if young || stays(&record.key).unwrap_or(true) {
            let time = left.entry((record.tag, record.key)).or_default();
            *time = record.time.max(*time);
        }
    }
    let mut out = head(left.len() as u64).to_vec();
    for ((tag, key), time) in left {
        out.extend_from_slice(&TagRecord { tag, key, time }.encode());
    }
    let new = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = std::fs::write(&new, &out).and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// Seconds since 1970.
fn now() -> u32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u32::try_from(since.as_secs()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Trial;

    fn tags(names: &[String]) -> Tags {
        let text = names.join(" ");
        Tags::of([(&b"xkey"[..], text.as_bytes())].into_iter(), b"")
    }

    fn key(n: u32) -> CacheKey {
        CacheKey::of(&n.to_le_bytes())
    }

    fn size(place: &CacheDirectory) -> u64 {
        let files = std::fs::read_dir(place.directory.join("tags")).unwrap().flatten();
        files.map(|file| file.metadata().unwrap().len()).sum()
    }

    #[test]
    fn a_tag_has_its_answers_after_a_restart_and_after_damage() {
        let trial = Trial::new("tags");
        let place = &trial.cache.settings.place;
        let of = |n: u32| tags(&[format!("n{n}"), "all".into()]);
        for n in 0..50 {
            note(place, &key(n), &of(n), |_| None).unwrap();
        }
        assert_eq!(keys(place, &tags(&["n7".into()])).unwrap(), [key(7)]);
        assert_eq!(keys(place, &tags(&["all".into()])).unwrap().len(), 50);
        assert_eq!(keys(place, &tags(&["none".into()])).unwrap(), []);
        // A killed process leaves a part of a record. The next record is found all the same.
        let path = path_of(place, Tag::named(b"all"));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(&[1; 13]);
        bytes[RECORD + 3] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        note(place, &key(99), &of(99), |_| None).unwrap();
        let found = keys(place, &tags(&["all".into()])).unwrap();
        assert!(found.len() >= 50 && found.contains(&key(99)), "{}", found.len());
    }

    #[test]
    fn a_lock_that_stays_taken_is_not_waited_for_without_end() {
        let trial = Trial::new("locked");
        let place = &trial.cache.settings.place;
        let names = tags(&["x".into()]);
        note(place, &key(1), &names, |_| None).unwrap();
        let held = locked(&path_of(place, Tag::named(b"x"))).unwrap();
        let error = note(place, &key(2), &names, |_| None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        drop(held);
        note(place, &key(3), &names, |_| None).unwrap();
        assert_eq!(keys(place, &names).unwrap().len(), 2);
    }

    /// Each answer is stored again and again; at the end each tag and answer takes less than 100 bytes.
    #[test]
    fn records_of_one_answer_do_not_pile_up() {
        let trial = Trial::new("piles");
        let place = &trial.cache.settings.place;
        const ANSWERS: u32 = 300;
        const TAGS: u32 = 8;
        for round in 0..6 {
            for n in 0..ANSWERS {
                let names: Vec<String> =
                    (0..TAGS).map(|t| format!("{}", t * ANSWERS + n)).collect();
                note(place, &key(n), &tags(&names), |_| Some(round < 5)).unwrap();
            }
        }
        let most = u64::from(ANSWERS * TAGS) * 2 * RECORD as u64 + 256 * FEW * RECORD as u64;
        assert!(size(place) < most, "{}", size(place));
        // The share of a file that is not cleaned yet counts little once there are many.
        const { assert!(2 * RECORD < 100) };
    }

    #[test]
    fn records_of_answers_that_are_gone_leave() {
        let trial = Trial::new("gone");
        let place = &trial.cache.settings.place;
        let path = path_of(place, Tag::named(b"x"));
        note(place, &key(0), &tags(&["x".into()]), |_| None).unwrap();
        // Old records of many answers.
        let mut bytes = std::fs::read(&path).unwrap();
        for n in 1..1000 {
            let record = TagRecord { tag: Tag::named(b"x"), key: key(n), time: 1 };
            bytes.extend_from_slice(&record.encode());
        }
        std::fs::write(&path, &bytes).unwrap();
        note(place, &key(5000), &tags(&["x".into()]), |k| Some(*k == key(7))).unwrap();
        let mut expected = vec![key(0), key(7), key(5000)];
        expected.sort_unstable();
        assert_eq!(keys(place, &tags(&["x".into()])).unwrap(), expected);
    }
}
