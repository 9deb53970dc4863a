//! Files of a cache. Blocking functions run on threads for file operations, never on a loop.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use weir_engine::{Doer, FileInfo, FilePool, Files, OpenFile, OpenHow, Rank, file_operation};

use crate::body::Range;
use crate::entry::{CacheEntry, LONGEST_HEAD, Stored, Unusable};
use crate::key::CacheKey;

/// Bytes of the first read, enough for most heads.
const FIRST: usize = 8 * 1024;
/// Files up to this size are read whole, in one operation.
const WHOLE: u64 = 64 * 1024;
/// The block of most file systems.
const BLOCK: u64 = 4096;

/// The directory of a cache, and its `levels`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheDirectory {
    /// The directory.
    pub directory: PathBuf,
    /// Digits of each level.
    pub levels: Vec<usize>,
}

impl CacheDirectory {
    /// The path of a key's file.
    pub fn path(&self, key: &CacheKey) -> PathBuf {
        self.directory.join(key.path(&self.levels))
    }
}

/// An open cache file.
#[derive(Debug)]
pub struct Opened {
    /// The file.
    pub file: Arc<OpenFile>,
    /// The answer's metadata and head.
    pub stored: Stored,
    /// The file's metadata.
    pub info: FileInfo,
    /// The bytes that were read: the head and perhaps the body.
    pub read: Bytes,
}

impl Opened {
    /// Opens a file and reads its head: from the page cache if it is there, else through the file
    /// pool as `who`.
    ///
    /// # Errors
    ///
    /// The error of the file system, or the reason why the file cannot be used.
    pub async fn open(
        files: &Files,
        who: Doer,
        path: &Path,
    ) -> io::Result<Result<Opened, Unusable>> {
        let how = OpenHow::read();
        let (file, info, mut read) = files.open_and_read(who, path, &how, first).await?;
        let mut want = 1;
        loop {
            while read.len() < want {
                if read.capacity() == read.len() {
                    read.reserve(want - read.len());
                }
                let at = read.len() as u64;
                let (got, back) = files.read_at(&file, read, at).await;
                read = back;
                if got? == 0 {
                    return Ok(Err(if want == 1 { Unusable::TooSmall } else { Unusable::Damaged }));
                }
            }
            match CacheEntry::decode(&read) {
                Err(Unusable::More(n)) if n <= LONGEST_HEAD => want = n,
                Err(Unusable::More(_)) => return Ok(Err(Unusable::Damaged)),
                Err(why) => return Ok(Err(why)),
                // A truncated file. A crash of this program does not leave one, but something else
                // may.
                Ok(stored) if info.len < stored.body.saturating_add(stored.length) => {
                    return Ok(Err(Unusable::Damaged));
                }
                Ok(stored) => {
                    let read = Bytes::from(read);
                    return Ok(Ok(Opened { file, stored, info, read }));
                }
            }
        }
    }

    /// The body, as a part of the file.
    pub fn range(&self) -> Range {
        let Stored { body: offset, length, .. } = self.stored;
        Range { file: self.file.clone(), info: self.info, offset, length }
    }

    /// The body, if it was read whole.
    pub fn body(&self) -> Option<Bytes> {
        let end = self.stored.body.saturating_add(self.stored.length);
        let is_whole = self.read.len() as u64 >= end;
        is_whole.then(|| self.read.slice(self.stored.body as usize..end as usize))
    }
}

/// How many bytes are read when a file is opened.
fn first(info: &FileInfo) -> usize {
    if info.len <= WHOLE { info.len.max(1) as usize } else { FIRST }
}

/// A file under a temporary name. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct TemporaryFile {
    pub(crate) file: Arc<OpenFile>,
    path: PathBuf,
    named: bool,
}

impl TemporaryFile {
    /// Creates a file in `directory`. The threads of `pool` close and remove it.
    pub(crate) fn create(
        directory: &Path,
        key: &CacheKey,
        pool: &FilePool,
    ) -> io::Result<TemporaryFile> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}.{}.{number:010}", key.hex(), std::process::id());
            let path = directory.join(name);
            match create_new(&path) {
                Ok(file) => return Ok(TemporaryFile { file: pool.hold(file), path, named: false }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => make_directories(directory)?,
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes the head, which completes the file, and gives it its name.
    pub(crate) fn publish(mut self, head: &[u8], path: &Path) -> io::Result<Published> {
        file_operation("write", &*self.path, || self.file.write_all_at(head, 0))?;
        let published = Published::of(&self.file.metadata()?);
        match file_operation("rename", path, || rename(&self.path, path)) {
            Err(e) if e.kind() == io::ErrorKind::CrossesDevices => self.copy(path),
            renamed => renamed.map(|()| {
                self.named = true;
                published
            }),
        }
    }

    /// Publishes on another file system: copies the file beside the target and renames the copy.
    fn copy(&self, path: &Path) -> io::Result<Published> {
        let beside = path.with_extension(format!("{}.tmp", std::process::id()));
        if let Some(directory) = path.parent() {
            make_directories(directory)?;
        }
        let copied = std::fs::copy(&self.path, &beside).and_then(|_| {
            let published = Published::of(&std::fs::metadata(&beside)?);
            std::fs::rename(&beside, path).map(|()| published)
        });
        if copied.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        copied
    }
}

/// A published file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Published {
    /// Its inode number.
    pub(crate) inode: u64,
    /// Bytes that it takes on the disk.
    pub(crate) size: u64,
}

impl Published {
    fn of(info: &Metadata) -> Published {
        Published { inode: info.ino(), size: size_on_disk(info) }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.named {
            let path = std::mem::take(&mut self.path);
            self.file.pool().insist(Rank::Later, move || drop(remove_file(&path)));
        }
    }
}

/// Removes a file. Blocks.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    file_operation("unlink", path, || std::fs::remove_file(path))
}

fn create_new(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    file_operation("open", path, || options.open(path))
}

fn make_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match std::fs::rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let directory = to.parent().ok_or(io::ErrorKind::NotFound)?;
            make_directories(directory)?;
            std::fs::rename(from, to)
        }
        renamed => renamed,
    }
}

/// Writes an answer's new times into its file, if that still has this answer. Other requests may
/// read the head or send the body meanwhile: see [`crate::entry`].
///
/// # Errors
///
/// The error of the file system; `InvalidData` if the file has another answer.
pub(crate) fn rewrite(path: &Path, stored: &Stored) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut head = vec![0; stored.entry.size()];
    file.read_exact_at(&mut head, 0)?;
    let entry = &stored.entry;
    let same = CacheEntry::decode(&head).is_ok_and(|found| {
        found.length == stored.length
            && (&found.entry.key, &found.entry.head) == (&entry.key, &entry.head)
            && found.entry.variant == entry.variant
    });
    match entry.times.renewal(&head).filter(|_| same) {
        Some((record, at)) => file.write_all_at(&record, at),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Bytes that a file takes on the disk, from the blocks that the file system has allocated. Its
/// length is used instead if there are fewer blocks, because of delayed allocation or compression.
/// It is also used if there are many more, which are preallocated and will be freed.
fn size_on_disk(info: &Metadata) -> u64 {
    let (length, given) = (info.len(), info.blocks().saturating_mul(512));
    let many = length.saturating_add(info.blksize().saturating_mul(8));
    if (length..many).contains(&given) { given } else { whole_blocks(length) }
}

/// Bytes that a file of this length takes on most file systems.
pub fn whole_blocks(length: u64) -> u64 {
    length.checked_next_multiple_of(BLOCK).unwrap_or(length)
}

/// A file in a directory of the cache.
pub(crate) struct CacheFile {
    pub(crate) path: PathBuf,
    /// `None` if the name is no cache key.
    pub(crate) key: Option<CacheKey>,
    /// Bytes that it takes on the disk.
    pub(crate) size: u64,
    pub(crate) modified: Option<std::time::SystemTime>,
}

/// Visits all files below a directory, as long as `found` returns true. Returns false if it
/// stopped.
pub(crate) fn walk(directory: &Path, found: &mut dyn FnMut(CacheFile) -> bool) -> io::Result<bool> {
    for item in std::fs::read_dir(directory)? {
        // A file may disappear meanwhile.
        let Ok(item) = item else { continue };
        let Ok(kind) = item.file_type() else { continue };
        let path = item.path();
        if kind.is_dir() {
            match walk(&path, found) {
                Ok(true) | Err(_) => continue,
                Ok(false) => return Ok(false),
            }
        }
        if !kind.is_file() {
            continue;
        }
        let Ok(info) = item.metadata() else { continue };
        let key = path.file_name().and_then(|n| n.to_str()).and_then(CacheKey::from_hex);
        let (size, modified) = (size_on_disk(&info), info.modified().ok());
        let named = CacheFile { path, key, size, modified };
        if !found(named) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Visits the files of a key and its variants. Only names are compared.
pub(crate) fn beside(
    place: &CacheDirectory,
    key: &CacheKey,
    found: &mut dyn FnMut(CacheKey, &Path),
) -> io::Result<()> {
    let path = place.path(key);
    let items = match std::fs::read_dir(path.parent().unwrap_or(&place.directory)) {
        // A directory is created with its first file.
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        items => items?,
    };
    for item in items.flatten() {
        let name = item.file_name();
        if let Some(named) = name.to_str().and_then(CacheKey::from_hex)
            && named.is_beside(key)
        {
            found(named, &item.path());
        }
    }
    Ok(())
}

/// Reads the metadata and head of the answer in a file.
pub fn read_entry(path: &Path) -> Option<CacheEntry> {
    let file = File::open(path).ok()?;
    let mut bytes = vec![0; FIRST];
    loop {
        let n = file.read_at(&mut bytes, 0).ok()?;
        match CacheEntry::decode(bytes.get(..n)?) {
            Ok(stored) => return Some(stored.entry),
            Err(Unusable::More(more)) if more > bytes.len() && more <= LONGEST_HEAD => {
                bytes.resize(more, 0);
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
#[path = "store/tests.rs"]
mod tests;
